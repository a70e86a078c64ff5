// Questions on the command line: techniques by name, numbers of devices.
#include "compiler/Pipeline/Techniques.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

ParsedOptions parse(std::vector<const char *> arguments) {
  arguments.insert(arguments.begin(), {"merakc", "model.onnx"});
  return parseOptions(int(arguments.size()), arguments.data());
}
CompilerOptions good(std::vector<const char *> arguments) {
  arguments.insert(arguments.end(), {"-o", "out.plan"});
  ParsedOptions parsed = parse(std::move(arguments));
  EXPECT_FALSE(parsed.exitCode) << parsed.text;
  return parsed.options;
}
std::string refused(std::vector<const char *> arguments) {
  ParsedOptions parsed = parse(std::move(arguments));
  EXPECT_EQ(parsed.exitCode.value_or(0), 2);
  return parsed.text;
}
std::vector<std::string> names(const std::vector<planning::LeftOut> &all) {
  std::vector<std::string> names;
  for (const planning::LeftOut &one : all)
    names.push_back(one.name);
  return names;
}

// Forbidding all and allowing all say what the options themselves would.
TEST(Techniques, StandForOptions) {
  std::string all;
  for (const Technique &technique : techniques())
    all += (all.empty() ? "" : ",") + std::string(technique.name);
  const CompilerOptions none = good({("--forbid=" + all).c_str()});
  EXPECT_EQ(none.mesh,
            (std::map<std::string, int64_t>{{"pp", 1}, {"dp", 1}, {"tp", 1}}));
  EXPECT_EQ(none.zero, "0");
  EXPECT_EQ(none.sequence, "off");
  EXPECT_EQ(none.tpOverlap, "0");
  EXPECT_EQ(none.recompute, "none");
  EXPECT_EQ(none.chunks, 1);
  EXPECT_EQ(leftOut(none).size(), techniques().size());
  for (const planning::LeftOut &one : leftOut(none))
    if (one.name != "zero" && one.name != "sequence" && one.name != "context" &&
        one.name != "tp-overlap") {
      EXPECT_EQ(one.reason, "ruled out by an option") << one.name;
    }
  const CompilerOptions some = good({("--allow=" + all).c_str()});
  EXPECT_TRUE(leftOut(some).empty());
  EXPECT_TRUE(some.mesh.empty());
  EXPECT_EQ(some.zero, "auto");
}

// Each is on its own: no other one is decided with it.
TEST(Techniques, AreIndependent) {
  const CompilerOptions silent = good({"--cluster=c.json"});
  for (const Technique &technique : techniques()) {
    CompilerOptions without = silent, with = silent;
    technique.forbid(without);
    technique.allow(with);
    EXPECT_EQ(technique.use(without), TechniqueUse::Off) << technique.name;
    EXPECT_EQ(technique.use(with), TechniqueUse::Open) << technique.name;
    for (const Technique &other : techniques())
      if (&other != &technique) {
        EXPECT_EQ(other.use(without), other.use(silent)) << other.name;
        EXPECT_EQ(other.use(with), other.use(silent)) << other.name;
      }
    EXPECT_FALSE(technique.given(silent)) << technique.name;
  }
}

TEST(Techniques, WhatIsLeftOutHasAReason) {
  EXPECT_EQ(names(leftOut(good({"--cluster=c.json"}))),
            (std::vector<std::string>{"zero", "sequence", "context", "mixed"}));
  EXPECT_EQ(names(leftOut(good({}))),
            (std::vector<std::string>{"tp-overlap", "zero", "sequence",
                                      "context", "mixed", "parts"}));
  // Of three devices, or with rates, stages may differ.
  EXPECT_EQ(names(leftOut(good({"--devices=3"}))).back(), "mixed");
  EXPECT_EQ(names(leftOut(good({"--devices=4"}))).back(), "parts");
  EXPECT_EQ(names(leftOut(good({"--devices=4", "--for-rates=1:2"}))).back(),
            "mixed");
  // Among the plans of a frontier, too.
  EXPECT_EQ(names(leftOut(parse({"--frontier=f.json", "--devices=3"}).options))
                .back(),
            "mixed");
  EXPECT_EQ(
      leftOut(
          parse({"--frontier=f.json", "--devices=3", "--parts=off"}).options)
          .back(),
      (planning::LeftOut{"parts", "ruled out by an option"}));
  EXPECT_EQ(
      leftOut(good({"--zero=auto", "--sequence-parallel=on",
                    "--context-parallel=auto", "--mixed-layouts=auto",
                    "--cluster=c.json", "--mesh=tp=1"})),
      (std::vector<planning::LeftOut>{{"tensor", "ruled out by an option"}}));
}

TEST(Techniques, ContradictionsAreWrongUsage) {
  EXPECT_EQ(refused({"-o", "o", "--allow=zero,fast"}),
            "merakc: --allow: expected names of data, tensor, pipeline, "
            "interleave, recompute, tp-overlap, zero, sequence, context, "
            "mixed, parts, found "
            "'fast'\n");
  EXPECT_EQ(refused({"-o", "o", "--allow=zero", "--forbid=zero"}),
            "merakc: --allow and --forbid both name 'zero'\n");
  for (auto [option, technique] :
       {std::pair{"--mesh=tp=2", "--forbid=tensor"},
        std::pair{"--zero=2", "--forbid=zero"},
        std::pair{"--zero=0", "--allow=zero"},
        std::pair{"--sequence-parallel=on", "--forbid=sequence"},
        std::pair{"--tp-overlap=0", "--allow=tp-overlap"},
        std::pair{"--parts=off", "--allow=parts"},
        std::pair{"--recompute=full", "--forbid=recompute"},
        std::pair{"--schedule=interleaved", "--forbid=interleave"}})
    EXPECT_EQ(refused({"-o", "o", option, technique}),
              std::string("merakc: ") + technique +
                  " contradicts the option that decides it\n")
        << option;
}

TEST(Questions, DevicesAreOneNumberOrSeveral) {
  EXPECT_EQ(good({"--devices=4"}).devices, 4);
  EXPECT_TRUE(good({"--devices=4"}).deviceCounts.empty());
  EXPECT_EQ(good({"--devices=4,4"}).devices, 4);
  const CompilerOptions several =
      parse({"--devices=16,4,8", "--frontier=f.json"}).options;
  EXPECT_EQ(several.deviceCounts, (std::vector<int64_t>{4, 8, 16}));
  EXPECT_FALSE(several.devices);
  for (const char *text : {"--devices=0", "--devices=4,x", "--devices=-1"})
    EXPECT_NE(refused({"-o", "o", text}).find("expected a number from 1"),
              std::string::npos)
        << text;
}

TEST(Sparse, SharesOfTables) {
  const CompilerOptions options =
      good({"--sparse=lazy", "--touched=a=0.5,b=b=1", "--touched=c=1e-3"});
  EXPECT_EQ(options.touched, (std::map<std::string, double>{
                                 {"a", 0.5}, {"b=b", 1}, {"c", 1e-3}}));
  for (const char *text : {"--touched=a", "--touched=a=0", "--touched=a=1.5",
                           "--touched=a=x", "--touched==0.5"})
    EXPECT_NE(refused({"-o", "o", text})
                  .find("expected NAME=SHARE with a share above 0 and up to 1"),
              std::string::npos)
        << text;
}

TEST(Questions, FitTogether) {
  EXPECT_FALSE(parse({"--frontier=f.json"}).exitCode);
  EXPECT_FALSE(parse({"--frontier=f.html", "--pick=3", "-o", "o"}).exitCode);
  EXPECT_EQ(refused({"--frontier=f.json", "--pick=3"}),
            "merakc: -o OUT.plan is required\n");
  EXPECT_EQ(refused({"--pick=3", "-o", "o"}),
            "merakc: --pick needs the --frontier that the point stands in\n");
  EXPECT_EQ(refused({"--frontier=f.txt"}),
            "merakc: --frontier: expected FILE.json or FILE.html\n");
  refused({"--frontier=f.json", "-o", "o"});
  refused({"--frontier=f.json", "--objective=memory"});
  refused({"--frontier=f.json", "--to=plan"});
  refused({"--objective=least", "-o", "o"});
  refused({"--devices=2,4", "-o", "o"});
}

} // namespace
} // namespace merak
