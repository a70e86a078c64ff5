// How long the parts of a plan take: what the simulator asks of a machine.
// passes/CostModel/PlanCosts.h answers from a cluster file.
#pragma once

#include "runtime/plan/Plan.h"

#include <vector>

namespace merak::report {

// Answers are for one undisturbed instruction, without waiting for others.
class Costs {
public:
  virtual ~Costs() = default;
  // A kernel, a library call or the reading of an input on this rank.
  virtual double computeSeconds(const planpb::Program &program,
                                const planpb::Instruction &instruction,
                                int rank) const = 0;
  // From the moment the last of the ranks (group order) is there.
  virtual double collectiveSeconds(const planpb::Program &program,
                                   const planpb::Instruction &instruction,
                                   const std::vector<int> &ranks) const = 0;
  virtual double transferSeconds(const planpb::Program &program,
                                 const planpb::Instruction &instruction,
                                 int from, int to) const = 0;
  // Of a communication, the seconds in which its links carry nothing of it
  // and are free for others.
  virtual double latencySeconds(const planpb::Instruction &, int, int) const {
    return 0;
  }
  // Of `seconds` of a communication, those in which its devices themselves are
  // at work for it and are missed elsewhere.
  virtual double workSeconds(const planpb::Program &,
                             const planpb::Instruction &,
                             double seconds) const {
    return seconds;
  }
  // Ranks of one node meet over other links than ranks of different ones.
  virtual int64_t nodeOf(int) const { return 0; }
  // How much longer a computation lasts while its rank communicates, and a
  // communication while one of its ranks computes; at least 1.
  virtual double computeSlowdown() const { return 1; }
  virtual double communicationSlowdown() const { return 1; }
};

// Bytes that an instruction moves: as the compiler wrote it, else the size of
// its operands.
double instructionBytes(const planpb::Program &program,
                        const planpb::Instruction &instruction);
// "all_reduce", "send".
std::string communicationKind(const planpb::Instruction &instruction);
// Axes of the group, "dp,tp", or where the peer is, "pp=1".
std::string communicationPartners(const planpb::Program &program,
                                  const planpb::Instruction &instruction);
// Of the larger side of a communication: what the alpha-beta formulas take.
double messageBytes(const planpb::Program &program,
                    const planpb::Instruction &instruction);

} // namespace merak::report
