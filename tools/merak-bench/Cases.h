// What calibration measures: library kernels on a grid of shapes, as the
// instructions a plan would hold, so that the cost model sees both alike.
#pragma once

#include "runtime/plan/Plan.h"

#include <string>
#include <vector>

namespace merak::bench {

// An instruction to measure and the program whose buffers it names.
struct Case {
  const planpb::Program *program;
  const planpb::Instruction *instruction;
  std::string key;     // names it in files and on the terminal
  std::string kernels; // the file of a generated kernel; empty: of the library
};

// The sizes of a grid. Contractions, attention and convolutions are measured in
// each of the types, the others in the first of them where they have a choice.
struct GridSizes {
  using Sizes = std::vector<int64_t>;
  Sizes rows, sides; // of products: m, and k and n
  double mostFlops;  // of one product
  // A batch of sequences with so many heads; heads of so many elements.
  int64_t attentionBatch, heads;
  Sizes sequences, headElements;
  int64_t convolutionBatch;
  Sizes channels, images;    // of convolutions; images are square
  std::vector<Sizes> tables; // rows and columns of what works row by row
  Sizes elements;            // of what is moved or updated
  std::vector<planpb::DType> types;
  Sizes distances; // see MeasureOptions
};
const GridSizes &hostGrid(bool quick);
const GridSizes &deviceGrid(bool quick);

// The grid. Procedure 0 of the program holds one instruction a case.
planpb::Program libraryProgram(const GridSizes &sizes);
std::vector<Case> casesOf(const planpb::Program &program);

// What a plan runs, each kernel and each shape once, small ones left out:
// generated kernels, and with `library` its library kernels.
std::vector<Case> casesOf(const LoadedPlan &plan, bool library);

} // namespace merak::bench
