// The optimizer of a step: one type for the command line, the IR and the plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace merak {

// As torch.optim's, or where they differ as ONNX's operators of training. Adam
// adds weight decay to the gradient, AdamW takes it from the parameter.
enum class OptimizerKind { Sgd, AdamW, Adam, Adagrad };
inline constexpr std::string_view kOptimizerKinds[] = {"sgd", "adamw", "adam",
                                                       "adagrad"};

// How the learning rate changes; `warmup` and `total` count steps.
enum class RateSchedule { Constant, Linear, Cosine };
inline constexpr std::string_view kRateSchedules[] = {"constant", "linear",
                                                      "cosine"};

struct Optimizer {
  OptimizerKind kind = OptimizerKind::AdamW;
  double lr = 1e-3, weightDecay = 0.01;
  double momentum = 0, dampening = 0; // SGD
  bool nesterov = false;              // SGD
  double lrDecay = 0;                 // Adagrad: lr / (1 + lrDecay * count)
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  RateSchedule schedule = RateSchedule::Constant;
  int64_t warmup = 0, total = 0;
  double minFactor = 0;
  // Only of a model's own training algorithm: what ONNX's operators do
  // otherwise than torch.optim.
  bool plainRoot = false; // Adam adds eps before it corrects the root
  double postDecay = 0;   // Adam: 1 - postDecay times the new parameter
  std::optional<int64_t> firstCount; // of updates, in the first step
  std::string rate; // its program, see runtime/plan/RateProgram.h

  bool operator==(const Optimizer &) const = default;

  std::string_view name() const { return kOptimizerKinds[int(kind)]; }
  bool isAdam() const {
    return kind == OptimizerKind::Adam || kind == OptimizerKind::AdamW;
  }
  // Whether a step without a gradient changes neither a parameter nor its
  // states: then it does not matter which rows of a table it is taken on.
  bool restsWithoutGradient() const {
    return weightDecay == 0 && postDecay == 0 &&
           (kind == OptimizerKind::Adagrad ||
            (kind == OptimizerKind::Sgd && momentum == 0));
  }
  // The kernel of an update: adamw has Adam's decay as a constant, too.
  std::string_view kernel() const {
    return isAdam()                     ? "adamw_update"
           : kind == OptimizerKind::Sgd ? "sgd_update"
                                        : "adagrad_update";
  }
  // The same of a row-sparse gradient.
  std::string rowsKernel() const { return std::string(kernel()) + "_rows"; }
  // What it takes of steps that a row was left out of.
  std::string_view replayKernel() const {
    return isAdam()                     ? "adamw_replay"
           : kind == OptimizerKind::Sgd ? "sgd_replay"
                                        : "adagrad_replay";
  }
  // Names of the states beside a parameter, as checkpoints have them after the
  // parameter's name and a dot. Each has the parameter's shape.
  std::vector<std::string_view> states() const;
  // The constants of the kernel, as text: attributes of its instruction.
  std::vector<std::pair<std::string_view, std::string>> constants() const;
};

// By name; nothing: unknown.
std::optional<OptimizerKind> parseOptimizerKind(std::string_view name);
std::optional<RateSchedule> parseRateSchedule(std::string_view name);

// Calls `field(name, &Optimizer::member)` for all but the kind: what writes,
// reads, hashes and compares optimizers goes through this list.
template <typename Field> void eachField(Field &&field) {
  field("lr", &Optimizer::lr);
  field("weight_decay", &Optimizer::weightDecay);
  field("momentum", &Optimizer::momentum);
  field("dampening", &Optimizer::dampening);
  field("nesterov", &Optimizer::nesterov);
  field("lr_decay", &Optimizer::lrDecay);
  field("beta1", &Optimizer::beta1);
  field("beta2", &Optimizer::beta2);
  field("eps", &Optimizer::eps);
  field("schedule", &Optimizer::schedule);
  field("warmup", &Optimizer::warmup);
  field("total", &Optimizer::total);
  field("min_factor", &Optimizer::minFactor);
  field("plain_root", &Optimizer::plainRoot);
  field("post_decay", &Optimizer::postDecay);
  field("first_count", &Optimizer::firstCount);
  field("rate", &Optimizer::rate);
}

} // namespace merak
