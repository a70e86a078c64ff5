#include "runtime/launch/SaveOptions.h"
#include "support/OptionChecks.h"

namespace merak::runtime {

void addCheckpointOptions(CLI::App &app, CheckpointOptions &options,
                          SessionOptions &session) {
  app.add_option("--save", options.save.dir,
                 "folder of checkpoints, one generation step-N at the end");
  app.add_option("--save-every", options.saveEvery,
                 "also one after every N steps")
      ->check(isFrom(1));
  app.add_option("--keep", options.save.keep, "generations to keep")
      ->check(isFrom(1));
  app.add_flag("--save-wait", options.wait,
               "steps wait until a generation is written: it needs no copy in "
               "memory then");
  app.add_option("--load", options.load,
                 "folder of checkpoints, one generation of it, or .safetensors "
                 "file with parameters");
  app.add_flag("--force-resume", options.force,
               "go on with other data or another --seed than --load had");
  app.add_option_function<std::string>(
         "--on-nonfinite",
         [&session](const std::string &what) {
           session.onNonFinite = what == "skip"     ? OnNonFinite::skip
                                 : what == "ignore" ? OnNonFinite::ignore
                                                    : OnNonFinite::stop;
         },
         "of a step whose loss or gradients are not finite: stop and save "
         "nothing (default); skip: it changes nothing; ignore")
      ->check(CLI::IsMember({"stop", "skip", "ignore"}));
}

std::string usageProblem(const CheckpointOptions &options) {
  if (options.saveEvery > 0 && options.save.dir.empty())
    return "--save-every needs --save";
  if (options.wait && options.save.dir.empty())
    return "--save-wait needs --save";
  if (options.force && options.load.empty())
    return "--force-resume needs --load";
  return {};
}

Status checkAgainst(const SessionOptions &session,
                    const planpb::PlanFile &plan) {
  if (session.onNonFinite == OnNonFinite::skip && plan.mode() == "train" &&
      !plan.optimizer().guarded())
    return Status::error(
        "--on-nonfinite=skip: the plan's updates change the weights in any "
        "case; compile the model again");
  return {};
}

} // namespace merak::runtime
