#include "tools/merak-bench/BenchTool.h"

#include "runtime/core/ThreadPool.h"
#include "support/OptionChecks.h"
#include "support/OptionErrors.h"
#include "tools/merak-bench/Calibration.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace merak::bench {

constexpr const char *kTool = "merak-bench";

int benchToolMain(int argc, const char *const *argv,
                  const runtime::BackendRegistry &backends,
                  const runtime::WorldRegistry &worlds, const GridSizes *grid) {
  CalibrationOptions options;
  std::string ranks;
  CLI::App app("Measures the machine it stands on", kTool);
  app.require_subcommand(1);
  CLI::App *command = app.add_subcommand(
      "calibrate", "measures kernels and communication of in-process CPU "
                   "ranks, or kernels of a GPU, and writes a cluster file for "
                   "merakc --cluster");
  command->add_option("-o,--output", options.output, "cluster file to write")
      ->required();
  command->add_option("--backend", options.backend, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command
      ->add_option("--ranks", ranks,
                   "threads that run at once, 2 of a CPU, 1 of a GPU; or env: "
                   "one process a rank, from torchrun's variables, Slurm or "
                   "mpirun, to measure the links between them")
      ->check(CLI::IsMember({"env"}) | isFrom(1, 256));
  command->add_option("--threads", options.threads, "threads of each rank")
      ->check(isFrom(1, 256));
  command->add_flag("--quick", options.quick,
                    "a smaller grid, in about three minutes");
  command->add_option("--plan", options.plans,
                      "plan whose generated kernels are measured as well, "
                      "of a GPU all its kernels; may be repeated");
  command->add_flag("--trust-plan", options.trustPlan,
                    "run the plans' kernels, which are machine code, although "
                    "this user's merakc did not make them");
  command->add_option("--rates", options.rates,
                      "with --ranks=env: a cluster file whose rates of kernels "
                      "are taken, only links are measured");
  command->add_flag("--quiet", options.quiet, "prints errors only");
  tellErrorsAs(app, kTool);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!options.rates.empty() && ranks != "env") {
    fmt::print(stderr, "{}: error: --rates needs --ranks=env\n", kTool);
    return 2;
  }
  auto run = [&](runtime::World *world) -> Status {
    std::unique_ptr<runtime::Backend> device;
    if (options.backend != "cpu") {
      runtime::ThreadPool pool(1);
      auto opened = backends.at(options.backend)(pool);
      if (!opened)
        return opened.status();
      device = std::move(*opened);
    }
    const GridSizes &sizes = grid     ? *grid
                             : device ? deviceGrid(options.quick)
                                      : hostGrid(options.quick);
    return calibrate(options, std::move(device), world, sizes);
  };
  if (ranks == "env")
    return runtime::asRank(
        kTool, options.backend, worlds,
        [&](runtime::World &world, std::string &) { return run(&world); });
  if (!ranks.empty())
    options.ranks = std::stoi(ranks);
  return runtime::exitCode(kTool, run(nullptr));
}

} // namespace merak::bench
