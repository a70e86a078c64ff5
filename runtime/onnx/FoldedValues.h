// Initializers that an exporter computed from a parameter: what import undid is
// done again when trained values are written back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace merak::runtime {

struct FoldedUse {
  std::string parameter, initializer;
  // Operators of ONNX on one number, in the order they are applied; one with a
  // second, known operand has it behind a colon: "Add:1".
  std::vector<std::string> functions;
  // Of the parameter once it is broadcast; empty: none.
  std::vector<int64_t> permutation;

  // Whether an initializer of shape `to` can be made from a parameter.
  bool fits(const std::vector<int64_t> &from,
            const std::vector<int64_t> &to) const;
};

// Whether it is one of the functions that import undoes.
bool isFoldedFunction(const std::string &function);

// `values`: numbers in f32, as parameters are stored.
void applyFunctions(const std::vector<std::string> &functions,
                    std::string &values);

// The elements of `values` [from...] at each index of `to`: broadcast as NumPy
// does, then permuted.
std::string moveElements(const std::string &values,
                         const std::vector<int64_t> &from,
                         const std::vector<int64_t> &to,
                         const std::vector<int64_t> &permutation,
                         uint64_t elementSize);

} // namespace merak::runtime
