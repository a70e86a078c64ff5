// merak-conformance: every kernel on every backend, every collective on every
// communicator, against scalar references in double precision; a table at the
// end. Exit code 0 if nothing failed.
//
//   merak-conformance                 what one process can run
//   merak-conformance NAME...         these backends and communicators
//   mpirun -np 4 merak-conformance mpi
//   RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
//     merak-conformance nccl       one such process for each GPU
#include "test/conformance/Targets.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::conformance {
namespace {

struct Table {
  std::vector<std::string> names; // of the columns
  std::vector<Column> columns;
  std::map<std::string, std::string> absent; // column: why it was not run

  void add(const std::string &name, Result<Column> column) {
    if (!column.ok()) {
      absent[name] = column.status().str();
      return;
    }
    names.push_back(name);
    columns.push_back(std::move(*column));
  }

  // Prints; returns the number of failed cases.
  int print(const char *what) const {
    std::map<std::string, int> reasons; // numbered notes
    int failed = 0;
    size_t width = std::string(what).size();
    for (const Column &column : columns)
      for (const auto &[row, tally] : column)
        width = std::max(width, row.size());
    if (!columns.empty()) {
      fmt::print("{:<{}}", what, width);
      for (const std::string &name : names)
        fmt::print("  {:>24}", name);
      fmt::print("\n");
      std::map<std::string, bool> rows;
      for (const Column &column : columns)
        for (const auto &[row, tally] : column)
          rows[row];
      for (const auto &[row, unused] : rows) {
        fmt::print("{:<{}}", row, width);
        for (const Column &column : columns) {
          const auto found = column.find(row);
          fmt::print("  {:>24}", found == column.end()
                                     ? "-"
                                     : cell(found->second, reasons));
        }
        fmt::print("\n");
      }
      std::map<int, std::string> byNumber;
      for (const auto &[reason, number] : reasons)
        byNumber[number] = reason;
      for (const auto &[number, reason] : byNumber)
        fmt::print("unsupported ({}): {}\n", number, reason);
    }
    for (const auto &[name, why] : absent)
      fmt::print("{} was not run: {}\n", name, why);
    for (size_t i = 0; i < columns.size(); ++i)
      for (const auto &[row, tally] : columns[i]) {
        failed += tally.failed;
        for (const std::string &failure : tally.failures)
          fmt::print("FAILED {}: {}\n", names[i], failure);
      }
    return failed;
  }

  static std::string cell(const Tally &tally,
                          std::map<std::string, int> &reasons) {
    std::string text = fmt::format("{} passed", tally.passed);
    if (tally.failed)
      text += fmt::format(", {} FAILED", tally.failed);
    std::vector<int> numbers;
    for (const auto &[reason, count] : tally.unsupported)
      numbers.push_back(
          reasons.try_emplace(reason, int(reasons.size()) + 1).first->second);
    std::sort(numbers.begin(), numbers.end());
    if (!numbers.empty())
      text += fmt::format(" ({})", fmt::join(numbers, ","));
    return text;
  }
};

int run(const std::vector<std::string> &chosen, bool leads) {
  auto wanted = [&](const std::string &name, bool byDefault) {
    return chosen.empty()
               ? byDefault
               : std::find(chosen.begin(), chosen.end(), name) != chosen.end();
  };
  Table kernels, collectives;
  for (const BackendTarget &target : backendTargets()) {
    if (!wanted(target.name, true))
      continue;
    runtime::ThreadPool pool(1);
    if (auto backend = target.make(pool); !backend.ok())
      kernels.absent[target.name] = backend.status().str();
    else
      kernels.add(target.name, runKernels(target));
  }
  for (const CommTarget &target : commTargets())
    if (wanted(target.name, !target.processes))
      collectives.add(target.name, runCommunicator(target));
    else if (chosen.empty())
      collectives.absent[target.name] = target.needs();
  if (!leads)
    return collectives.absent.empty() ? 0 : 1;
  int failed = kernels.print("kernel");
  fmt::print("\n");
  failed += collectives.print("collective");
  int passed = 0;
  for (const Table *table : {&kernels, &collectives})
    for (const Column &column : table->columns)
      for (const auto &[row, tally] : column)
        passed += tally.passed;
  fmt::print("{} passed, {} failed\n", passed, failed);
  // What was asked for by name must have run.
  const bool absent = !chosen.empty() &&
                      (!kernels.absent.empty() || !collectives.absent.empty());
  return failed || absent || !passed ? 1 : 0;
}

} // namespace
} // namespace merak::conformance

int main(int argc, char **argv) {
  using namespace merak::conformance;
  std::vector<std::string> chosen(argv + 1, argv + argc), known;
  for (const BackendTarget &target : backendTargets())
    known.push_back(target.name);
  for (const CommTarget &target : commTargets())
    known.push_back(target.name);
  for (const std::string &name : chosen)
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fmt::print(stderr, "merak-conformance: no \"{}\"; there are {}\n", name,
                 fmt::join(known, ", "));
      return 2;
    }
  const char *rank = std::getenv("OMPI_COMM_WORLD_RANK");
  for (const char *name : {"PMI_RANK", "RANK"})
    if (!rank)
      rank = std::getenv(name);
  return run(chosen, !rank || std::string(rank) == "0");
}
