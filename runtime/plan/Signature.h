// Who made a plan. Its generated kernels are machine code, so they are loaded
// only from plans that hold a signature made with this user's key
// (runtime/trust/UserKey.h): one file more in the plan's directory, over all
// others. docs/rationale/signed-plans.md
#pragma once

#include "runtime/plan/Plan.h"

#include <string_view>

namespace merak {

inline constexpr char kSignatureFile[] = "signature";

// loadPlan for a program that runs the plan's kernels. Errors besides: the plan
// has kernels, and no signature of this user's; with `trust` that is none.
Result<LoadedPlan> loadPlanToRun(const std::string &dir, bool trust);

// Whether this process has a key to sign plans with; makes the first one.
Status canSign();

// What is signed: all files of the manifest in its order, then the manifest.
class PlanDigest {
public:
  void add(std::string_view file);
  // The contents of the signature, a line; empty without a key.
  std::string sign() const;
  bool isSignedBy(const std::string &line, const std::string &key) const;

private:
  std::string text_; // digests
};

// The error names the remedy.
Status checkSignature(const std::string &dir, const PlanDigest &digest);

} // namespace merak
