// Names for places in a plan, as messages and listings print them.
#pragma once

#include "runtime/plan/Plan.h"

#include <set>

namespace merak {

// `einsum "h.0/MatMul"`, `send "act0"`, `all_reduce`, `wait 3`.
std::string describe(const planpb::Instruction &instruction);
// `procedure 1 "stage0.forward" · instruction 3 einsum "h.0/MatMul"`.
std::string describe(const planpb::Program &program, int procedure,
                     int instruction);
// `call 4 "stage0.forward" microbatch 1`.
std::string describeCall(const planpb::Program &program, int call);
// The same with the instruction.
std::string describeAt(const planpb::Program &program, int call,
                       int instruction);
// `f32[4,8]`.
std::string describe(planpb::DType dtype,
                     const google::protobuf::RepeatedField<int64_t> &shape);

// Collects problems: each key once, the rest of a flood as a count.
class Problems {
public:
  explicit Problems(std::string context = "") : context_(std::move(context)) {}
  void add(const std::string &text);
  // Adds `text` unless `key` was there already; counts repetitions.
  void addOnce(const std::string &key, const std::string &text);
  bool seen(const std::string &key) const { return keys_.count(key) != 0; }
  Status take();

private:
  static constexpr int kShown = 50;
  std::string context_;
  std::set<std::string> keys_;
  int count_ = 0;
  Status status_;
};

} // namespace merak
