// The library kernels of plans: what an Instruction may name, and by whose
// rates each is priced. docs/Kernels.md says what they mean; backends, which
// can have no other ones, compute them; the cost model takes the class.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace merak {

// Kernels whose time depends on their sizes in one way: the rates of the class
// stand in for those of a kernel that nobody measured. Rows: anything that goes
// over rows of a tensor.
enum class RateClass {
  Elementwise,
  Matmul,
  Attention,
  Conv,
  Copy,
  Gather,
  Optimizer,
  Rows
};
inline constexpr int kRateClasses = 8;

// As files of clusters write it.
constexpr const char *nameOf(RateClass rates) {
  constexpr const char *kNames[kRateClasses] = {
      "elementwise", "matmul", "attention", "conv",
      "copy",        "gather", "optimizer", "rows"};
  return kNames[static_cast<int>(rates)];
}

// What an instruction reads and writes of its operands.
//   All     their elements
//   Part    of the output as many as the input has, and all where it does not
//           add
//   Named   of the first output (a parameter) and all operands of its shape as
//           many rows as the first input, a row-sparse gradient, has
//   Looked  of the first input (a table) at most as many as the output has
//   Behind  of the outputs as many rows as the second input has ids; without
//           ids one of `stripes` parts
enum class Touches { All, Part, Named, Looked, Behind };

struct LibraryKernel {
  std::string_view name;
  RateClass rates = RateClass::Rows;
  Touches touches = Touches::All;
};

// In the order of docs/Kernels.md.
inline constexpr auto kLibraryKernels = std::to_array<LibraryKernel>({
    {"einsum", RateClass::Matmul},
    {"copy", RateClass::Copy},
    {"fill", RateClass::Copy},
    {"slice", RateClass::Copy},
    {"place", RateClass::Copy, Touches::Part},
    {"reduce_sum", RateClass::Rows},
    {"reduce_max", RateClass::Rows},
    {"gather", RateClass::Gather, Touches::Looked},
    {"scatter_add", RateClass::Gather},
    {"scatter_reduce", RateClass::Gather},
    {"coalesce", RateClass::Gather},
    {"split_ids", RateClass::Gather},
    {"top_k", RateClass::Rows},
    {"softmax", RateClass::Rows},
    {"softmax_grad", RateClass::Rows},
    {"layer_norm", RateClass::Rows},
    {"layer_norm_grad", RateClass::Rows},
    {"layer_norm_param_grad", RateClass::Rows},
    {"rms_norm", RateClass::Rows},
    {"rms_norm_grad", RateClass::Rows},
    {"rms_norm_param_grad", RateClass::Rows},
    {"softmax_cross_entropy", RateClass::Rows},
    {"softmax_cross_entropy_grad", RateClass::Rows},
    {"pick", RateClass::Rows},
    {"pick_grad", RateClass::Rows},
    {"attention", RateClass::Attention},
    {"attention_grad", RateClass::Attention},
    {"rotary", RateClass::Rows},
    {"dropout", RateClass::Rows},
    {"conv", RateClass::Conv},
    {"conv_grad_input", RateClass::Conv},
    {"conv_grad_weight", RateClass::Conv},
    {"max_pool", RateClass::Rows},
    {"max_pool_grad", RateClass::Rows},
    {"avg_pool", RateClass::Rows},
    {"avg_pool_grad", RateClass::Rows},
    {"sgd_update", RateClass::Optimizer},
    {"adamw_update", RateClass::Optimizer},
    {"adagrad_update", RateClass::Optimizer},
    {"sgd_update_rows", RateClass::Optimizer, Touches::Named},
    {"adamw_update_rows", RateClass::Optimizer, Touches::Named},
    {"adagrad_update_rows", RateClass::Optimizer, Touches::Named},
    {"sgd_replay", RateClass::Optimizer, Touches::Behind},
    {"adamw_replay", RateClass::Optimizer, Touches::Behind},
    {"adagrad_replay", RateClass::Optimizer, Touches::Behind},
    {"square_sum", RateClass::Rows},
    {"clip_factor", RateClass::Rows},
    {"scale", RateClass::Copy},
});

// Null: there is no such kernel.
constexpr const LibraryKernel *findLibraryKernel(std::string_view name) {
  for (const LibraryKernel &kernel : kLibraryKernels)
    if (kernel.name == name)
      return &kernel;
  return nullptr;
}

constexpr bool isLibraryKernel(std::string_view name) {
  for (const LibraryKernel &kernel : kLibraryKernels)
    if (kernel.name == name)
      return true;
  return false;
}

// Not constant, so that a name which is none ends the compilation; also where
// there are no exceptions to throw.
void noLibraryKernelOfThisName();

// The name of a kernel that a backend implements. One that is not in the table
// does not compile. (A pointer into the table compared with null is no constant
// for GCC under UBSan.)
struct LibraryKernelName {
  const char *text;
  consteval LibraryKernelName(const char *name) : text(name) {
    if (!isLibraryKernel(name))
      noLibraryKernelOfThisName();
  }
  operator std::string() const { return text; }
};

} // namespace merak
