#include "passes/Resharding/Description.h"

#include "passes/CostModel/ParseJson.h"
#include "passes/Resharding/Messages.h"
#include "runtime/layout/LayoutText.h"
#include "runtime/plan/Plan.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace merak::resharding {

using Json = nlohmann::ordered_json;

namespace {

// Far above any machine: a hostile text must not make vectors of it.
constexpr int64_t kMostDevices = 1 << 20;

std::vector<std::string> split(const std::string &text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool parseNumber(const std::string &text, int64_t &number) {
  const char *end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end && number >= 0 &&
         number < kMostDevices;
}

// Bytes of an element; 0: there is no such type.
int64_t bytesOf(const std::string &dtype) {
  for (int value = 1; value < planpb::DType_ARRAYSIZE; ++value)
    if (dtypeName(planpb::DType(value)) == dtype)
      return dtypeSize(planpb::DType(value));
  return 0;
}

} // namespace

Result<std::vector<MeshAxis>> parseMesh(const std::string &text) {
  std::vector<MeshAxis> axes;
  if (text.empty())
    return axes;
  for (const std::string &part : split(text, ',')) {
    const size_t equals = part.find('=');
    MeshAxis axis{part.substr(0, equals), 0};
    if (equals == std::string::npos || axis.name.empty() ||
        !parseNumber(part.substr(equals + 1), axis.size) || axis.size < 1)
      return Status::error(fmt::format(
          "expected axes with their sizes as in 'dp=2,tp=4', found '{}'",
          text));
    axes.push_back(axis);
  }
  return axes;
}

Result<std::vector<int64_t>> parseDevices(const std::string &text) {
  std::vector<int64_t> devices;
  for (const std::string &part : split(text, ',')) {
    const std::vector<std::string> ends = split(part, '-');
    int64_t first = 0, last = 0;
    if (ends.size() > 2 || !parseNumber(ends.front(), first) ||
        !parseNumber(ends.back(), last) || last < first ||
        int64_t(devices.size()) + last - first >= kMostDevices)
      return Status::error(
          fmt::format("expected devices as in '0-3,7', found '{}'", text));
    for (int64_t device = first; device <= last; ++device)
      devices.push_back(device);
  }
  return devices;
}

namespace {

class Reader : costmodel::JsonProblems {
public:
  Reader(const std::string &file, const std::string &folder)
      : JsonProblems(file), folder(folder) {}

  Result<Description> read(const std::string &text,
                           const costmodel::Cluster *cluster) {
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object())
      return Status::error(file + ": expected a JSON object");
    const bool several = json.contains("boundaries");
    known(json, "",
          several
              ? std::vector<std::string>{"notes", "cluster", "boundaries",
                                         "reshard"}
              : std::vector<std::string>{"notes", "cluster", "name", "dtype",
                                         "source", "target", "reshard"});
    if (json.contains("reshard")) {
      out.strategy = this->text(json, "", "reshard");
      if (!out.strategy->empty())
        problems("reshard", optionsOfPlan(*out.strategy).status());
    }
    if (cluster)
      out.cluster = *cluster;
    else
      readCluster(json);
    if (!several)
      readBoundary(json, "");
    else if (!json["boundaries"].is_array() || json["boundaries"].empty())
      problem("boundaries", "expected a list of at least one");
    else
      for (size_t i = 0; i < json["boundaries"].size(); ++i)
        readBoundary(json["boundaries"][i], fmt::format("boundaries[{}]", i));
    if (!status.ok())
      return status;
    return std::move(out);
  }

private:
  // The text of a field; `missing` where it may be absent.
  std::string text(const Json &json, const std::string &path,
                   const std::string &field, const char *missing = nullptr) {
    auto at = json.find(field);
    if (at != json.end() && at->is_string())
      return at->get<std::string>();
    if (at != json.end() || !missing)
      problem(join(path, field),
              fmt::format("expected a string, found {}",
                          at == json.end() ? "nothing" : at->dump()));
    return missing ? missing : "";
  }

  void readCluster(const Json &json) {
    auto at = json.find("cluster");
    Result<costmodel::Cluster> found = Status();
    if (at != json.end() && at->is_string()) {
      const std::string name = at->get<std::string>();
      found = costmodel::readCluster(
          name.front() == '/' || folder.empty() ? name : folder + "/" + name);
    } else if (at != json.end() && at->is_object()) {
      found = costmodel::parseCluster(at->dump(), file + ": cluster");
    } else {
      return problem("cluster", "expected a cluster or the name of its file");
    }
    status.merge(found.status());
    if (found)
      out.cluster = std::move(*found);
  }

  template <typename T> T parsed(const std::string &path, Result<T> result) {
    problems(path, result.status());
    return result ? std::move(*result) : T();
  }

  Placement readPlacement(const Json &json, const std::string &path) {
    Placement placement;
    if (!json.is_object()) {
      problem(path, "expected an object with layout, mesh and devices");
      return placement;
    }
    const size_t before = status.messages().size();
    known(json, path, {"layout", "mesh", "devices"});
    const std::string layout = text(json, path, "layout");
    const std::string mesh = text(json, path, "mesh", "");
    const std::string devices = text(json, path, "devices");
    if (status.messages().size() > before)
      return placement;
    placement.layout =
        parsed(join(path, "layout"), layout::parseLayout(layout));
    placement.axes = parsed(join(path, "mesh"), parseMesh(mesh));
    placement.devices = parsed(join(path, "devices"), parseDevices(devices));
    if (status.messages().size() == before)
      problems(path, check(placement));
    return placement;
  }

  void readBoundary(const Json &json, const std::string &path) {
    if (!json.is_object())
      return problem(path, "expected an object with source and target");
    if (!path.empty())
      known(json, path, {"name", "dtype", "source", "target"});
    Boundary boundary;
    boundary.name = text(json, path, "name", "");
    if (boundary.name.empty())
      boundary.name = fmt::format("boundary {}", out.boundaries.size());
    boundary.dtype = text(json, path, "dtype", "f32");
    boundary.elementBytes = bytesOf(boundary.dtype);
    if (boundary.elementBytes == 0)
      problem(join(path, "dtype"),
              fmt::format("there is no type '{}'", boundary.dtype));
    auto side = [&](const char *name) {
      return readPlacement(json.contains(name) ? json[name] : Json(),
                           join(path, name));
    };
    boundary.source = side("source");
    boundary.target = side("target");
    out.boundaries.push_back(std::move(boundary));
  }

  const std::string &folder;
  Description out;
};

} // namespace

std::string toJson(const std::vector<Boundary> &boundaries,
                   const std::string &strategy) {
  auto side = [](const Placement &placement) {
    std::string mesh;
    for (const MeshAxis &axis : placement.axes)
      mesh +=
          fmt::format("{}{}={}", mesh.empty() ? "" : ",", axis.name, axis.size);
    return Json{{"layout", placement.layout.str()},
                {"mesh", mesh},
                {"devices", deviceStr(placement.devices)}};
  };
  Json json{{"boundaries", Json::array()}, {"reshard", strategy}};
  for (const Boundary &boundary : boundaries)
    json["boundaries"].push_back({{"name", boundary.name},
                                  {"dtype", boundary.dtype},
                                  {"source", side(boundary.source)},
                                  {"target", side(boundary.target)}});
  return json.dump(1) + "\n";
}

Result<Description> parseDescription(const std::string &json,
                                     const std::string &fileName,
                                     const std::string &folder,
                                     const costmodel::Cluster *cluster) {
  return Reader(fileName, folder).read(json, cluster);
}

} // namespace merak::resharding
