// The options --elastic and --cluster of merak-run.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace merak::runtime {

struct ElasticOptions {
  bool on = false;
  std::string cluster; // a file; empty: the plan's cluster, hosts unknown
};

void addElasticOptions(CLI::App &app, ElasticOptions &options);
// What they mean together; empty: nothing is wrong.
std::string usageProblem(const ElasticOptions &options);

} // namespace merak::runtime
