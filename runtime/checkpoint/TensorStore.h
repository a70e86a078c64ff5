// Global tensors by name, as pieces of mapped files: the model's own weights,
// or those of a checkpoint. A rank reads the boxes it holds and nothing else.
#pragma once

#include "runtime/core/MappedFile.h"
#include "runtime/layout/Layout.h"
#include "runtime/plan/FileIdentity.h"
#include "runtime/plan/Plan.h"

#include <map>

namespace merak::runtime {

// A box of a tensor, dense and row major in memory.
struct StoredPiece {
  std::shared_ptr<MappedFile> file; // keeps `data` alive
  const char *data = nullptr;
  std::vector<int64_t> origin, extent;
};

struct StoredTensor {
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape;
  std::vector<StoredPiece> pieces; // disjoint; none: zeros
};

class TensorStore {
public:
  // The initial values that the plan names. `skip`: tensors that need none,
  // because a checkpoint has them. All absent and short files are reported, and
  // files that `check` finds to be others than the plan was made of. `note`
  // gets what the user should know.
  static Result<TensorStore> fromPlan(const LoadedPlan &plan,
                                      const TensorStore *skip = nullptr,
                                      SourceCheck check = SourceCheck::Sampled,
                                      std::string *note = nullptr);

  void add(const std::string &name, StoredTensor tensor) {
    tensors_[name] = std::move(tensor);
  }
  const StoredTensor *find(const std::string &name) const;
  const std::map<std::string, StoredTensor> &tensors() const {
    return tensors_;
  }

  // Copies a box of the tensor into a dense local tensor of the same type.
  Status read(const std::string &name, const layout::Box &box, void *data,
              const std::vector<int64_t> &shape) const;

private:
  std::map<std::string, StoredTensor> tensors_;
};

} // namespace merak::runtime
