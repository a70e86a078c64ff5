#include "runtime/plan/Optimizer.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace merak {

template <typename Enum, size_t N>
static std::optional<Enum> find(const std::string_view (&names)[N],
                                std::string_view name) {
  const auto *found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names))
    return std::nullopt;
  return Enum(found - std::begin(names));
}

std::optional<OptimizerKind> parseOptimizerKind(std::string_view name) {
  return find<OptimizerKind>(kOptimizerKinds, name);
}
std::optional<RateSchedule> parseRateSchedule(std::string_view name) {
  return find<RateSchedule>(kRateSchedules, name);
}

std::vector<std::string_view> Optimizer::states() const {
  if (isAdam())
    return {"exp_avg", "exp_avg_sq"};
  if (kind == OptimizerKind::Adagrad)
    return {"sum"};
  if (momentum != 0)
    return {"momentum"};
  return {};
}

std::vector<std::pair<std::string_view, std::string>>
Optimizer::constants() const {
  std::vector<std::pair<std::string_view, std::string>> found;
  auto add = [&](std::string_view name, double value) {
    found.emplace_back(name, fmt::format("{}", value));
  };
  add("weight_decay", kind == OptimizerKind::Adam ? 0 : weightDecay);
  if (firstCount)
    found.emplace_back("first_count", std::to_string(*firstCount));
  if (kind == OptimizerKind::Sgd) {
    add("momentum", momentum);
    add("dampening", dampening);
    found.emplace_back("nesterov", nesterov ? "1" : "0");
    return found;
  }
  add("eps", eps);
  if (kind == OptimizerKind::Adagrad) {
    add("lr_decay", lrDecay);
    return found;
  }
  add("beta1", beta1);
  add("beta2", beta2);
  if (kind == OptimizerKind::Adam)
    add("l2", weightDecay);
  if (plainRoot) {
    found.emplace_back("plain_root", "1");
    add("post_decay", postDecay);
  }
  return found;
}

} // namespace merak
