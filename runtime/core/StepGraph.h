// A whole step of one rank as a single object of its device: what the executor
// would enqueue, instruction by instruction and from a thread for each stream,
// is captured once and then launched with one call.
//
// What changes from step to step is put in place before each launch: data are
// read into host memory that the captured copies take them from, and calls
// with a learning rate or a step number among their scalars get new arguments.
// Everything else stands in device memory: the factor that skips a step whose
// gradients are not finite, accumulators, states of optimizers.
#pragma once

#include "runtime/core/RankProgram.h"

namespace merak::runtime {

class StepGraph {
public:
  // Captures the step. At least one step must have run before, so that
  // libraries have opened what they need. The error says what cannot be
  // captured; nothing has been executed then.
  static Result<std::unique_ptr<StepGraph>> capture(RankProgram &program,
                                                    Backend &backend,
                                                    Communicator &comm,
                                                    const StepScalars &scalars);
  ~StepGraph();

  size_t operations() const { return captured_->operations(); }
  // Reads the data of the step, launches it and waits for its end.
  Status run(const StepScalars &scalars, InputReader *reader);

private:
  // An instruction of one call.
  struct Place {
    const LaneCall *call;
    Op *op;
    StreamHandle stream;
  };
  struct Input {
    Place at;
    void *staging;
  };
  class Issue;

  StepGraph(RankProgram &program, Backend &backend, Communicator &comm)
      : program_(program), backend_(backend), comm_(comm) {}
  Status prepare();
  Status error(const Place &at, Status status) const {
    return std::move(status).withContext(program_.describe(*at.call, *at.op));
  }

  RankProgram &program_;
  Backend &backend_;
  Communicator &comm_;
  std::unique_ptr<CapturedStep> captured_;
  std::vector<Input> inputs_;
  std::vector<Place> changing_; // by KernelCall::changes
};

} // namespace merak::runtime
