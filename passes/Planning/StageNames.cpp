#include "passes/Planning/StageNames.h"

namespace merak::planning {

std::vector<std::string> beginNames(const Graph &graph,
                                    const std::vector<int> &begin) {
  const std::vector<std::string> names = forwardNames(graph);
  std::vector<std::string> begins;
  int position = 0;
  size_t part = 1;
  for (size_t i = 0; i < graph.ops.size() && part + 1 < begin.size(); ++i)
    if (graph.ops[i].phase == Phase::Forward && position++ == begin[part]) {
      begins.push_back(names[i]);
      ++part;
    }
  return begins;
}

} // namespace merak::planning
