// Plans built by hand, and a backend with a few obvious kernels, for tests of
// the runtime that need no compiler.
#pragma once

#include "runtime/core/HostBackend.h"
#include "runtime/launch/Session.h"

#include <functional>
#include <map>
#include <string>

namespace merak::runtime::test {

using planpb::Instruction;

// Library kernels over dense f32 operands; i64 for "ids".
//   fill            → out            scalar 0
//   row_sum         x [n,d] → out [d]; accumulates if asked
//   scale           x → out          scalar 0
//   sgd             g → w            scalar 0: lr
//   to_float        ids → out
//   divide          a, b → out
class TestBackend : public HostBackend {
public:
  using HostBackend::HostBackend;
  static BackendFactory factory();

protected:
  Result<std::unique_ptr<Prepared>>
  prepareLibrary(const Instruction &instruction, std::span<const View> inputs,
                 std::span<const View> outputs) override;
  Status runLibrary(const KernelCall &call) override;
};

// "8@(mb,dp) 4" → factors {8 over mb, dp}, {4}: one factor a dimension.
planpb::Layout
layoutOf(const std::vector<std::pair<int64_t, std::vector<std::string>>> &dims);

// Appends things to a program and returns their index.
class ProgramBuilder {
public:
  explicit ProgramBuilder(planpb::Program &program) : program_(program) {}
  // `slots` > 1 gives a buffer of slot class 0.
  uint32_t
  buffer(const std::string &name, planpb::DType dtype,
         const std::vector<int64_t> &shape, uint32_t slots = 1,
         planpb::Buffer::Category category = planpb::Buffer::ACTIVATIONS);
  planpb::Buffer &at(uint32_t buffer) {
    return *program_.mutable_buffers(int(buffer));
  }
  uint32_t procedure(const std::string &name);
  // To the last procedure. Operands are whole buffers.
  Instruction &add(Instruction::Kind kind, const std::string &op,
                   const std::vector<uint32_t> &inputs,
                   const std::vector<uint32_t> &outputs, uint32_t stream = 0);
  void record(uint32_t event, uint32_t stream);
  void wait(uint32_t event, uint32_t stream);
  planpb::Call &call(uint32_t procedure, int64_t microbatch = -1,
                     std::vector<uint32_t> slots = {});
  planpb::Program &program() { return program_; }

private:
  planpb::Program &program_;
};

void setScalar(Instruction &instruction, double value);
void setRuntime(Instruction &instruction, const std::string &name);

// One data-parallel rank of `dp`, all of the same program. Input x [batch, 4],
// parameter w [4]. A step: g = sum over all samples of x; w -= lr * g;
// "loss" = w[0] before the update. Uses a communication stream and slots.
LoadedPlan dataParallelPlan(int64_t dp, int64_t microbatches, int64_t batch);

// Two stages and `dp` replicas: stage 0 doubles x and sends it; stage 1 sums
// and updates w, as above; so g = 2 * sum.
LoadedPlan pipelinePlan(int64_t dp, int64_t microbatches, int64_t batch);

// Gives the parameter values by a file in a fresh folder, which becomes
// model_dir. Returns the folder.
std::string writeWeights(LoadedPlan &plan, const std::string &name,
                         const std::vector<float> &values);

// A fresh folder below the system's folder for temporary files.
std::string temporaryFolder();
std::string readFile(const std::string &path);
void writeFile(const std::string &path, const std::string &bytes);

} // namespace merak::runtime::test
