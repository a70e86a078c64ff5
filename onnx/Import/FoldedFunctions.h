// What functions of an exported program do, told by the names of their results:
// what the exporter's optimizer may leave out, or do to a parameter.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak {

// Calls whose result is a part or another form of their operand: the exporter
// leaves out those that change nothing and joins others with what reads them.
bool isView(llvm::StringRef function);
// Calls that only move elements.
bool movesElements(llvm::StringRef function);
// Of those, calls with one operand that do nothing but permute its axes.
bool movesAxes(llvm::StringRef function);
bool takesPart(llvm::StringRef function);
bool repeatsElements(llvm::StringRef function);
bool makesIndices(llvm::StringRef function);
bool makesZeros(llvm::StringRef function);
// Operators whose conversion to ONNX only moves the elements of weights.
bool takesWeightsAsTheyAre(llvm::StringRef function);

// "val_12": a value inside of an operator's conversion, not one of the program.
bool isInternal(llvm::StringRef value);

// A function of one number that can be undone.
struct Invertible {
  const char *function, *type; // in the program, as an operator
  double (*apply)(double), (*inverse)(double);
};
const Invertible *invertible(llvm::StringRef function); // or null

} // namespace merak
