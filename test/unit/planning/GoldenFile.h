// The vectors of test/data/golden.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace merak::planning::test {

inline nlohmann::json goldenFile(const std::string &name) {
  std::ifstream file(MERAK_SOURCE_DIR "/test/data/golden/" + name);
  return nlohmann::json::parse(file);
}

// schedules.json.
inline const nlohmann::json &golden() {
  static const nlohmann::json json = goldenFile("schedules.json");
  return json;
}

} // namespace merak::planning::test
