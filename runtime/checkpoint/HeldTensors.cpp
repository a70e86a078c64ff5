#include "runtime/checkpoint/HeldTensors.h"

#include <map>

namespace merak::runtime {

bool holdsTensor(const planpb::Buffer &buffer) {
  return !buffer.tensor().empty() &&
         buffer.category() != planpb::Buffer::GRADIENTS &&
         gradientOf(buffer).empty();
}

std::vector<HeldBuffer> ofOneMesh(const LoadedPlan &plan,
                                  const std::vector<HeldBuffer> &held) {
  std::vector<HeldBuffer> result;
  for (const HeldBuffer &where : held)
    if (plan.file.ranks(where.rank).mesh() ==
        plan.file.ranks(held.front().rank).mesh())
      result.push_back(where);
  return result;
}

std::string gradientOf(const planpb::Buffer &buffer) {
  return buffer.tensor().rfind("grad:", 0) == 0 ? buffer.tensor().substr(5)
                                                : std::string();
}

std::vector<HeldTensor> heldTensors(const LoadedPlan &plan) {
  std::vector<HeldTensor> result;
  std::map<std::string, size_t> index;
  for (const planpb::Tensor &tensor : plan.file.tensors())
    if (tensor.role() != planpb::Tensor::CONSTANT) {
      index[tensor.name()] = result.size();
      result.push_back({&tensor, {}, {}});
    }
  for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
    const planpb::Program &program = plan.programOf(rank);
    for (int b = 0; b < program.buffers_size(); ++b) {
      const planpb::Buffer &buffer = program.buffers(b);
      const auto found = index.find(buffer.tensor());
      if (found == index.end() || !holdsTensor(buffer))
        continue;
      HeldTensor &held = result[found->second];
      (buffer.dtype() == held.tensor->dtype() ? held.values : held.rounded)
          .push_back({rank, b});
    }
  }
  return result;
}

} // namespace merak::runtime
