#include "tools/merak-bench/SampleFile.h"

#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace merak::bench {

using Json = nlohmann::ordered_json;

Result<SampleFile> SampleFile::open(const std::string &path,
                                    const std::string &settings) {
  SampleFile result;
  result.path_ = path;
  std::ifstream in(path);
  std::string line;
  if (!in || !std::getline(in, line)) {
    std::ofstream out(path);
    out << Json{{"settings", settings}}.dump() << "\n";
    if (!out.flush())
      return Status::error(fmt::format("cannot write '{}'", path));
    return result;
  }
  Json header = Json::parse(line, nullptr, false);
  if (!header.is_object() || header.value("settings", "") != settings)
    return Status::error(fmt::format(
        "{}: was measured with other settings, expected {}; remove the file to "
        "start again",
        path, Json(settings).dump()));
  while (std::getline(in, line)) {
    // The last line of an interrupted run may be cut off: measured again.
    Json json = Json::parse(line, nullptr, false);
    if (!json.is_object())
      continue;
    costmodel::Sample sample;
    sample.key = json.value("key", "");
    sample.work.name = json.value("name", "");
    sample.work.dtype = json.value("dtype", "f32");
    for (auto [name, value] :
         {std::pair("flops", &sample.work.flops),
          std::pair("bytes", &sample.work.bytes),
          std::pair("m", &sample.work.m), std::pair("n", &sample.work.n),
          std::pair("k", &sample.work.k),
          std::pair("distance", &sample.distance),
          std::pair("seconds", &sample.seconds)})
      *value = json.value(name, 0.0);
    if (!sample.key.empty() && sample.seconds > 0)
      result.samples_.push_back(sample);
  }
  return result;
}

const costmodel::Sample *SampleFile::find(const std::string &key) const {
  for (const costmodel::Sample &sample : samples_)
    if (sample.key == key)
      return &sample;
  return nullptr;
}

Status SampleFile::add(const costmodel::Sample &sample) {
  samples_.push_back(sample);
  std::ofstream out(path_, std::ios::app);
  const costmodel::Kernel &work = sample.work;
  out << "\n" // after a line that was cut off
      << Json{{"key", sample.key},
              {"name", work.name},
              {"dtype", work.dtype},
              {"flops", work.flops},
              {"bytes", work.bytes},
              {"m", work.m},
              {"n", work.n},
              {"k", work.k},
              {"distance", sample.distance},
              {"seconds", sample.seconds}}
             .dump();
  if (!out.flush())
    return Status::error(fmt::format("cannot write '{}'", path_));
  return {};
}

void SampleFile::remove() const { std::remove(path_.c_str()); }

} // namespace merak::bench
