// Plans written by hand, for tests: a builder that places buffers one after the
// other, and a small pipeline of two ranks that trains two matrices.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak::plantest {

class ProgramBuilder {
public:
  explicit ProgramBuilder(const std::vector<std::string> &streams);

  // Appends a buffer to the arena; returns its index.
  int buffer(const std::string &name, planpb::Buffer::Category category,
             const std::vector<int64_t> &shape, uint32_t slots = 1,
             planpb::DType dtype = planpb::F32);
  // Says which tensor or input the buffer holds; the layout's global shape must
  // be that of the tensor.
  void holds(int buffer, const std::string &tensor,
             const layout::Layout &layout);
  int group(const std::vector<std::string> &axes);

  // Starts a procedure; instructions are appended to the last one.
  int procedure(const std::string &name, Action action);
  planpb::Instruction &library(const std::string &op,
                               const std::vector<int> &inputs,
                               const std::vector<int> &outputs);
  planpb::Instruction &collective(uint32_t stream,
                                  planpb::Instruction::Collective op, int group,
                                  int input, int output);
  planpb::Instruction &send(uint32_t stream, const std::string &channel,
                            int buffer, const std::string &axis, int64_t peer);
  planpb::Instruction &recv(uint32_t stream, const std::string &channel,
                            int buffer, const std::string &axis, int64_t peer);
  planpb::Instruction &load(const std::string &input, int buffer);
  // Stream `to` waits here for what stream `from` has done so far.
  void order(uint32_t from, uint32_t to);

  planpb::Call &call(int procedure, int64_t microbatch = -1,
                     const std::vector<uint32_t> &slots = {});
  static void wait(planpb::Call &call, uint32_t stream, uint32_t on,
                   uint32_t earlierCall);

  planpb::Program &proto() { return program_; }

private:
  planpb::Instruction &add(planpb::Instruction::Kind kind, uint32_t stream);
  planpb::Operand whole(int buffer) const;
  planpb::Program program_;
};

// Two ranks (pp=2), a global batch of 4 rows in two microbatches:
//   rank 0: h = x w0          streams: compute, comm, act, grad
//   rank 1: loss += sum(h w1)
// Gradients flow back over channel "grad", both ranks reduce the squared
// gradient norm over pp, then update by SGD. Rank 1 runs forward and backward
// in alternation. Buffers: see the .cpp.
LoadedPlan samplePlan();

// One stage of `samplePlan` on every pp coordinate of a pp x dp mesh, with the
// gradients and the loss reduced over dp.
LoadedPlan replicatedPlan(int64_t dp);

} // namespace merak::plantest
