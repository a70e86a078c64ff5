// The techniques that a plan may use, by name, for --allow and --forbid: one
// table, each row in terms of the options that decide the same. No MLIR here.
#pragma once

#include "compiler/Pipeline/Options.h"

namespace merak {

enum class TechniqueUse {
  Open, // the search decides
  Off,
  On // the user decided that it is used
};

struct Technique {
  const char *name;
  const char *what; // in the words of --help
  // What other options say; nothing: they say nothing.
  std::optional<TechniqueUse> (*given)(const CompilerOptions &);
  void (*allow)(CompilerOptions &);
  void (*forbid)(CompilerOptions &);
  // Why the search leaves it out if nobody says anything; null: it does not.
  const char *(*offByDefault)(const CompilerOptions &);

  TechniqueUse use(const CompilerOptions &options) const {
    return given(options).value_or(offByDefault(options) ? TechniqueUse::Off
                                                         : TechniqueUse::Open);
  }
};
const std::vector<Technique> &techniques();

// Writes --allow and --forbid into the options that they stand for. Errors:
// names that nobody knows, and what other options decide otherwise.
Status applyTechniques(const std::vector<std::string> &allow,
                       const std::vector<std::string> &forbid,
                       CompilerOptions &options);

// What the search leaves out under these options, and why.
std::vector<planning::LeftOut> leftOut(const CompilerOptions &options);

// Lines for --help: names, and what is off by default and why.
std::string describeTechniques();

} // namespace merak
