#include "runtime/launch/ElasticOptions.h"

namespace merak::runtime {

void addElasticOptions(CLI::App &app, ElasticOptions &options) {
  app.add_flag("--elastic", options.on,
               "go on whatever happens: --restarts, --replan, --copies, "
               "--hosts and --launcher as they fit the plan and --cluster, "
               "which a line says; those that are given count");
  app.add_option("--cluster", options.cluster,
                 "with --elastic: the cluster file that the plan was compiled "
                 "for; ranks are on the hosts that it names");
}

std::string usageProblem(const ElasticOptions &options) {
  return options.on || options.cluster.empty() ? ""
                                               : "--cluster is for --elastic";
}

} // namespace merak::runtime
