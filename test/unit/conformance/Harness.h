// One case of the conformance suite: an instruction with its operands' values
// and a naive double-precision reference. The suite runs each case on a backend
// for every memory layout, thread count and accumulate mode.
#pragma once

#include "runtime/core/Backend.h"

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace merak::conformance {

using Shape = std::vector<int64_t>;

// Values of a tensor, row major, whatever its type.
struct Tensor {
  planpb::DType dtype = planpb::F32;
  Shape shape;
  std::vector<double> v;

  int64_t size() const { return static_cast<int64_t>(v.size()); }
};
using Tensors = std::vector<Tensor>;

int64_t elements(const Shape &shape);
Tensor zeros(const Shape &shape, planpb::DType dtype = planpb::F32);
// Reproducible values in [low, high); whole numbers for integer types.
Tensor random(const Shape &shape, unsigned seed, double low = -1,
              double high = 1, planpb::DType dtype = planpb::F32);
Tensor integers(const Shape &shape, const std::vector<double> &values,
                planpb::DType dtype = planpb::I64);
// Rounds every value to what the type can hold.
void roundToType(Tensor &tensor);

struct Case {
  std::string name;
  std::string op;
  std::map<std::string, std::string> attrs;
  Tensors inputs;
  // Shapes and types, and what the memory holds before (updates read it).
  Tensors outputs;
  std::vector<runtime::ScalarValue> scalars;
  // Expected outputs, without accumulation.
  std::function<Tensors(const Case &)> reference;
  // Recomputes inputs that depend on others (lse, mean), after a layout has
  // changed some. Optional.
  std::function<void(Case &)> derive;
  double tolerance = 1e-5; // of the largest expected magnitude (at least 1)
  bool updates = false;    // optimizer: outputs are read, never accumulated
  bool exact = false;      // bit for bit
};

// How operands lie in memory.
enum class MemoryLayout {
  Dense,
  Unaligned, // starts 4 bytes (or one element) off
  Padded,    // gaps after each row and plane
  Reversed,  // first dimension fastest
  Broadcast, // inputs repeat along their first dimension with stride 0
};
const char *layoutName(MemoryLayout layout);
constexpr MemoryLayout kLayouts[] = {
    MemoryLayout::Dense, MemoryLayout::Unaligned, MemoryLayout::Padded,
    MemoryLayout::Reversed, MemoryLayout::Broadcast};

// An element of a type from and to a number.
void encode(planpb::DType dtype, double value, void *to);
double decode(planpb::DType dtype, const void *from);

// A tensor in memory: bytes, a view into them, and a mark on every gap.
constexpr unsigned char kGap = 0xa5;
struct Placed {
  std::vector<unsigned char> bytes;
  runtime::View view;
  int64_t offset = 0; // of the first element, in elements

  int64_t at(int64_t index) const; // row-major index to element position
};
Placed place(const Tensor &tensor, MemoryLayout layout, bool isInput);

// Operands on a device: copied there at first, and back by `fetch`. On a host
// backend they stay where they are.
class OnDevice {
public:
  OnDevice(runtime::Backend &backend, std::vector<Placed> &placed,
           std::vector<runtime::View> &views);
  ~OnDevice();
  void fetch();
  Status status;

private:
  runtime::Backend &backend_;
  std::vector<Placed> &placed_;
  std::vector<void *> memory_;
};

// Makes inputs constant along their first dimension, for Broadcast.
Case forLayout(Case c, MemoryLayout layout);

// What cases run on: the CPU backend, unless a test sets another one.
using BackendMaker =
    std::function<std::unique_ptr<runtime::Backend>(runtime::ThreadPool &pool)>;
BackendMaker &backendMaker();

struct Outcome {
  Status status;
  Tensors outputs;
  std::vector<std::vector<unsigned char>> bits; // of the outputs, row major
  bool gapsUntouched = true; // nothing written between the elements
};
// `over`: the input, if any, over which the first output is written: one view
// of one buffer (runtime/plan/SharedPlaces.h).
Outcome runCase(const Case &c, MemoryLayout layout, int threads,
                bool accumulate, int over = -1);

// Central differences of sum(weights * forward(inputs)) by inputs[which].
using Forward = std::function<Tensors(const Tensors &)>;
Tensor gradient(const Forward &forward, const Tensors &inputs, size_t which,
                const Tensors &weights);

// All cases, by file.
std::vector<Case> einsumCases();
std::vector<Case> moveCases();
std::vector<Case> normCases();
std::vector<Case> lossCases();
std::vector<Case> attentionCases();
std::vector<Case> convCases();
std::vector<Case> dropoutCases();
std::vector<Case> optimizerCases();
std::vector<Case> allCases();

} // namespace merak::conformance
