#include "runtime/plan/Print.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

using namespace merak::planpb;

namespace merak {

std::string humanBytes(uint64_t bytes) {
  static const char *const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string memoryTable(const PlanFile &file,
                        std::span<const uint64_t> arenas) {
  // Columns in the order of the life of a step; unknown categories behind.
  std::vector<std::string> columns{"parameters",  "gradients",     "optimizer",
                                   "activations", "communication", "workspace"};
  std::map<uint32_t, const MemoryRow *> rows;
  for (const MemoryRow &row : file.memory()) {
    rows[row.program()] = &row;
    std::map<std::string, uint64_t> sorted(row.bytes().begin(),
                                           row.bytes().end());
    for (const auto &[name, bytes] : sorted)
      if (std::find(columns.begin(), columns.end(), name) == columns.end())
        columns.push_back(name);
  }
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> head{"program", "ranks"};
  head.insert(head.end(), columns.begin(), columns.end());
  head.insert(head.end(), {"arena", "bytes"});
  cells.push_back(head);
  for (size_t p = 0; p < arenas.size(); ++p) {
    std::vector<int> ranks;
    for (int r = 0; r < file.ranks_size(); ++r)
      if (file.ranks(r).program() == p)
        ranks.push_back(r);
    std::vector<std::string> line{fmt::format("{}", p), rankList(ranks)};
    for (const std::string &column : columns) {
      uint64_t bytes = 0;
      if (auto row = rows.find(static_cast<uint32_t>(p)); row != rows.end())
        if (auto it = row->second->bytes().find(column);
            it != row->second->bytes().end())
          bytes = it->second;
      line.push_back(humanBytes(bytes));
    }
    line.push_back(humanBytes(arenas[p]));
    line.push_back(fmt::format("{}", arenas[p]));
    cells.push_back(line);
  }
  std::vector<size_t> widths(head.size(), 0);
  for (const std::vector<std::string> &line : cells)
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const std::vector<std::string> &line : cells) {
    for (size_t i = 0; i < line.size(); ++i)
      text += fmt::format("{}{:>{}}", i ? "  " : "", line[i], widths[i]);
    text += "\n";
  }
  return text;
}

std::string memoryTable(const LoadedPlan &plan) {
  std::vector<uint64_t> arenas;
  for (const Program &program : plan.programs)
    arenas.push_back(program.arena_bytes());
  return memoryTable(plan.file, arenas);
}

} // namespace merak
