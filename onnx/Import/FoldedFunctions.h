// What the exporter's optimizer may have done to a parameter: the program's
// functions, told by the names of their results.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak {

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
