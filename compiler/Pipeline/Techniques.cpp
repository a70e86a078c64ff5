#include "compiler/Pipeline/Techniques.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak {
namespace {

using O = CompilerOptions;
using Given = std::optional<TechniqueUse>;

// An axis of the mesh that is 1 divides nothing.
Given axisOf(const O &o, const char *axis) {
  auto it = o.mesh.find(axis);
  if (it == o.mesh.end())
    return std::nullopt;
  return it->second > 1 ? TechniqueUse::On : TechniqueUse::Off;
}

// "auto" leaves it to the search.
Given valueOf(const std::string &text, const char *off) {
  if (text.empty())
    return std::nullopt;
  return text == "auto" ? TechniqueUse::Open
         : text == off  ? TechniqueUse::Off
                        : TechniqueUse::On;
}

Given chunksOf(const O &o) {
  if (o.schedule == "interleaved")
    return TechniqueUse::On;
  return o.chunks ? Given(TechniqueUse::Off) : std::nullopt;
}

// The cluster's file, which nobody has read yet, may have such devices.
bool mayHaveUnlikeDevices(const O &o) {
  const int64_t devices = o.devices.value_or(1);
  return !o.cluster.empty() || !o.forRates.empty() ||
         (devices & (devices - 1)) != 0;
}

void allowOpen(O &) {} // it is open unless an option rules it out
const char *never(const O &) { return nullptr; }

} // namespace

const std::vector<Technique> &techniques() {
  static const std::vector<Technique> all = {
      {"data", "replicas of a stage share the samples (dp)",
       [](const O &o) { return axisOf(o, "dp"); }, allowOpen,
       [](O &o) { o.mesh["dp"] = 1; }, never},
      {"tensor", "the ranks of a stage share its operators (tp)",
       [](const O &o) { return axisOf(o, "tp"); }, allowOpen,
       [](O &o) { o.mesh["tp"] = 1; }, never},
      {"pipeline", "stages one after another (pp)",
       [](const O &o) { return axisOf(o, "pp"); }, allowOpen,
       [](O &o) { o.mesh["pp"] = 1; }, never},
      {"interleave", "several parts of the model on each stage", chunksOf,
       allowOpen, [](O &o) { o.chunks = 1; }, never},
      {"recompute", "activations are made again instead of kept",
       [](const O &o) {
         return o.recompute == "auto" ? Given() // its default
                                      : valueOf(o.recompute, "none");
       },
       allowOpen, [](O &o) { o.recompute = "none"; }, never},
      {"tp-overlap", "two submicrobatches hide each other's collectives",
       [](const O &o) { return valueOf(o.tpOverlap, "0"); },
       [](O &o) { o.tpOverlap = "auto"; }, [](O &o) { o.tpOverlap = "0"; },
       [](const O &o) {
         return o.cluster.empty()
                    ? "without --cluster, whose links say what it could hide"
                    : nullptr;
       }},
      {"zero", "replicas share parameters, gradients and optimizer state",
       [](const O &o) { return valueOf(o.zero, "0"); },
       [](O &o) { o.zero = "auto"; }, [](O &o) { o.zero = "0"; },
       [](const O &) {
         return "planning all its levels takes up to 1.5 times as long";
       }},
      {"sequence", "tokens are split over tp where nothing else is",
       [](const O &o) { return valueOf(o.sequence, "off"); },
       [](O &o) { o.sequence = "auto"; }, [](O &o) { o.sequence = "off"; },
       [](const O &) {
         return "planning with and without it takes up to twice as long";
       }},
      {"context", "tokens are split over tp everywhere, weights are whole",
       [](const O &o) { return valueOf(o.context, "off"); },
       [](O &o) { o.context = "auto"; }, [](O &o) { o.context = "off"; },
       [](const O &) {
         return "planning with and without it takes up to twice as long";
       }},
      {"mixed", "layouts differ between parts of the model",
       [](const O &o) { return valueOf(o.mixed, "off"); },
       [](O &o) { o.mixed = "auto"; }, [](O &o) { o.mixed = "off"; },
       [](const O &o) {
         return o.sparse != "off"
                    ? nullptr
                    : "planning with up to three of them takes up to eight "
                      "times as long";
       }},
      {"parts", "stages have devices and degrees of their own",
       [](const O &o) { return valueOf(o.parts, "off"); },
       [](O &o) { o.parts = "auto"; }, [](O &o) { o.parts = "off"; },
       [](const O &o) {
         return mayHaveUnlikeDevices(o)
                    ? nullptr
                    : "of equal devices whose number is a power of two one "
                      "mesh is hardly beaten, and planning takes longer";
       }},
  };
  return all;
}

static const Technique *find(const std::string &name) {
  for (const Technique &technique : techniques())
    if (name == technique.name)
      return &technique;
  return nullptr;
}

Status applyTechniques(const std::vector<std::string> &allow,
                       const std::vector<std::string> &forbid,
                       CompilerOptions &options) {
  Status status;
  const CompilerOptions asked = options;
  auto apply = [&](const char *option, const std::vector<std::string> &names,
                   TechniqueUse against, auto Technique::*change) {
    for (const std::string &name : names) {
      const Technique *technique = find(name);
      if (!technique) {
        std::vector<std::string> known;
        for (const Technique &one : techniques())
          known.push_back(one.name);
        status.merge(
            Status::error(fmt::format("{}: expected names of {}, found '{}'",
                                      option, fmt::join(known, ", "), name)));
      } else if (std::find(allow.begin(), allow.end(), name) != allow.end() &&
                 std::find(forbid.begin(), forbid.end(), name) !=
                     forbid.end()) {
        if (against == TechniqueUse::On) // once for both
          status.merge(Status::error(
              fmt::format("--allow and --forbid both name '{}'", name)));
      } else if (technique->given(asked) == against) {
        status.merge(Status::error(fmt::format(
            "{}={} contradicts the option that decides it", option, name)));
      } else {
        (technique->*change)(options);
      }
    }
  };
  apply("--allow", allow, TechniqueUse::Off, &Technique::allow);
  apply("--forbid", forbid, TechniqueUse::On, &Technique::forbid);
  return status;
}

std::vector<planning::LeftOut> leftOut(const CompilerOptions &options) {
  std::vector<planning::LeftOut> all;
  for (const Technique &technique : techniques())
    if (technique.use(options) == TechniqueUse::Off)
      all.push_back(
          {technique.name,
           !technique.given(options)
               ? fmt::format("off by default: {}; --allow={}",
                             technique.offByDefault(options), technique.name)
               : "ruled out by an option"});
  return all;
}

std::string describeTechniques() {
  std::vector<std::string> all;
  for (const Technique &technique : techniques()) {
    const char *reason = technique.offByDefault(CompilerOptions());
    all.push_back(
        fmt::format("{} ({}{})", technique.name, technique.what,
                    reason ? fmt::format("; off by default: {}", reason) : ""));
  }
  return fmt::format("techniques by name: {}", fmt::join(all, ", "));
}

} // namespace merak
