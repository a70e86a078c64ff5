#include "compiler/Pipeline/Techniques.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak {
namespace {

// An axis of the mesh that is 1 divides nothing.
template <const char *const &axis>
TechniqueUse useOfAxis(const CompilerOptions &o) {
  auto it = o.mesh.find(axis);
  if (it == o.mesh.end())
    return TechniqueUse::Open;
  return it->second > 1 ? TechniqueUse::On : TechniqueUse::Off;
}
template <const char *const &axis> void forbidAxis(CompilerOptions &o) {
  o.mesh[axis] = 1;
}
void allowNothing(CompilerOptions &) {} // it is open already

constexpr const char *kData = "dp", *kTensor = "tp", *kPipeline = "pp";

// "auto" leaves it to the search.
TechniqueUse useOf(const std::string &text, const char *off,
                   TechniqueUse otherwise) {
  if (text.empty())
    return otherwise;
  return text == "auto" ? TechniqueUse::Open
         : text == off  ? TechniqueUse::Off
                        : TechniqueUse::On;
}

} // namespace

const std::vector<Technique> &techniques() {
  using O = CompilerOptions;
  static const std::vector<Technique> all = {
      {"data", "replicas of a stage share the samples (dp)", nullptr,
       useOfAxis<kData>, allowNothing, forbidAxis<kData>},
      {"tensor", "the ranks of a stage share its operators (tp)", nullptr,
       useOfAxis<kTensor>, allowNothing, forbidAxis<kTensor>},
      {"pipeline", "stages one after another (pp)", nullptr,
       useOfAxis<kPipeline>, allowNothing, forbidAxis<kPipeline>},
      {"interleave", "several parts of the model on each stage", nullptr,
       [](const O &o) {
         return o.schedule == "interleaved" ? TechniqueUse::On
                : o.chunks                  ? TechniqueUse::Off
                                            : TechniqueUse::Open;
       },
       allowNothing, [](O &o) { o.chunks = 1; }},
      {"recompute", "activations are made again instead of kept", nullptr,
       [](const O &o) {
         return useOf(o.recompute, "none", TechniqueUse::Open);
       },
       allowNothing, [](O &o) { o.recompute = "none"; }},
      {"tp-overlap", "two submicrobatches hide each other's collectives",
       "without --cluster, whose links say what they could hide",
       [](const O &o) {
         return useOf(o.tpOverlap, "0",
                      o.cluster.empty() ? TechniqueUse::Off
                                        : TechniqueUse::Open);
       },
       [](O &o) { o.tpOverlap = "auto"; }, [](O &o) { o.tpOverlap = "0"; }},
      {"zero", "replicas share parameters, gradients and optimizer state",
       "planning all its levels takes up to four times as long",
       [](const O &o) { return useOf(o.zero, "0", TechniqueUse::Off); },
       [](O &o) { o.zero = "auto"; }, [](O &o) { o.zero = "0"; }},
      {"sequence", "tokens are split over tp where nothing else is",
       "planning with and without it takes up to twice as long",
       [](const O &o) { return useOf(o.sequence, "off", TechniqueUse::Off); },
       [](O &o) { o.sequence = "auto"; }, [](O &o) { o.sequence = "off"; }},
  };
  return all;
}

static const Technique *find(const std::string &name) {
  for (const Technique &technique : techniques())
    if (name == technique.name)
      return &technique;
  return nullptr;
}

// Whether an option says it, or only its default.
static bool isGiven(const Technique &technique, const CompilerOptions &o) {
  CompilerOptions silent;
  silent.cluster = o.cluster;
  return technique.use(o) != technique.use(silent);
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
      } else if (isGiven(*technique, asked) &&
                 technique->use(asked) == against) {
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
      all.push_back({technique.name,
                     technique.offByDefault && !isGiven(technique, options)
                         ? fmt::format("off by default: {}; --allow={}",
                                       technique.offByDefault, technique.name)
                         : "ruled out by an option"});
  return all;
}

std::string describeTechniques() {
  std::string text = "techniques by name:";
  const char *between = " ";
  for (const Technique &technique : techniques()) {
    text +=
        fmt::format("{}{} ({}{})", between, technique.name, technique.what,
                    technique.offByDefault ? fmt::format("; off by default: {}",
                                                         technique.offByDefault)
                                           : "");
    between = ", ";
  }
  return text;
}

} // namespace merak
