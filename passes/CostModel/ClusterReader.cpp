// Reads cluster files. Every problem is found in one pass and named by its path
// in the file: "links.inter.bandwidth: expected ..., found -3".
#include "passes/CostModel/ClusterHosts.h"
#include "passes/CostModel/ParseJson.h"
#include "support/ReadFile.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <set>

namespace merak::costmodel {
namespace {

using Json = nlohmann::ordered_json;

// Far above any machine; a hostile file must not make vectors of it.
constexpr int64_t kMostDevices = 1 << 20;

const std::set<std::string> kDtypes{"f64", "f32", "bf16", "f16", "f8",
                                    "i64", "i32", "i8",   "u8"};

// What a number must be, as the message says it.
struct Number {
  const char *what; // "a positive number of bytes per second"
  bool positive = true;
  double most = 0; // 0: no limit
};
constexpr Number kBytesPerSecond{"a positive number of bytes per second"};
constexpr Number kFlopsPerSecond{"a positive number of operations per second"};
constexpr Number kSeconds{"a number of seconds of at least 0", false};
constexpr Number kBytes{"a positive number of bytes"};
constexpr Number kSize{"a positive number"};
constexpr Number kEfficiency{"a number above 0 and at most 1", true, 1};

class ClusterReader {
public:
  explicit ClusterReader(const std::string &file) : file(file) {}

  // After reading: names by entry of `nodes`, empty where there is none.
  const std::vector<std::string> &hostNames() const { return hosts; }

  Result<Cluster> read(const std::string &text) {
    const Result<Json> parsed = parseJson(text, file);
    if (!parsed)
      return parsed.status();
    const Json &json = *parsed;
    if (!json.is_object())
      return Status::error(file + ": expected a JSON object");
    bool longForm = json.contains("kinds") || json.contains("nodes");
    known(json, "",
          longForm ? std::vector<std::string>{"name", "notes", "kinds", "nodes",
                                              "links", "collectives", "host",
                                              "rates"}
                   : std::vector<std::string>{
                         "name", "notes", "devices", "devices_per_node",
                         "device", "links", "collectives", "host", "rates"});
    out.name = text_(json, "", "name");
    text_(json, "", "notes");
    out.kinds.clear();
    if (longForm) {
      readKinds(json);
      readNodes(json);
    } else {
      readShort(json);
    }
    readLinks(json);
    readCollectives(json);
    readHost(json);
    if (counted)
      readRates(json);
    if (!status.ok())
      return status;
    return out;
  }

private:
  void problem(const std::string &path, const std::string &text) {
    status.merge(Status::error(file + ": " + path + ": " + text));
  }
  void wrong(const std::string &path, const std::string &expected,
             const Json &found) {
    std::string text = found.dump();
    if (text.size() > 40)
      text = text.substr(0, 40) + "...";
    problem(path, fmt::format("expected {}, found {}", expected, text));
  }

  void known(const Json &json, const std::string &path,
             const std::vector<std::string> &fields) {
    for (const auto &[key, value] : json.items())
      if (std::find(fields.begin(), fields.end(), key) == fields.end())
        problem(path + key, fmt::format("unknown field, expected one of {}",
                                        fmt::join(fields, ", ")));
  }

  // Null if absent, with a problem if it is required.
  const Json *field(const Json &json, const std::string &path,
                    const std::string &key, bool required) {
    if (json.is_object() && json.contains(key))
      return &json[key];
    if (required)
      problem(path + key, "missing");
    return nullptr;
  }
  // The same, and an object.
  const Json *object(const Json &json, const std::string &path,
                     const std::string &key, bool required) {
    const Json *value = field(json, path, key, required);
    if (value && !value->is_object()) {
      wrong(path + key, "an object", *value);
      return nullptr;
    }
    return value;
  }

  std::string text_(const Json &json, const std::string &path,
                    const std::string &key) {
    const Json *value = field(json, path, key, false);
    if (value && !value->is_string())
      wrong(path + key, "a text", *value);
    return value && value->is_string() ? value->get<std::string>() : "";
  }

  int64_t whole(const Json &json, const std::string &path,
                const std::string &key, bool required, int64_t otherwise,
                int64_t most = INT64_MAX) {
    const Json *value = field(json, path, key, required);
    if (!value)
      return otherwise;
    if (value->is_number_integer() && value->get<int64_t>() >= 1 &&
        value->get<int64_t>() <= most)
      return value->get<int64_t>();
    // Sizes like 24e9 are whole as well.
    if (value->is_number_float()) {
      double number = value->get<double>();
      if (number >= 1 && number <= double(most) && number < 9e18 &&
          number == double(int64_t(number)))
        return int64_t(number);
    }
    wrong(path + key,
          most == INT64_MAX
              ? "a whole number of at least 1"
              : fmt::format("a whole number between 1 and {}", most),
          *value);
    return otherwise;
  }

  double number(const Json &value, const std::string &path, Number kind) {
    double found = value.is_number() ? value.get<double>() : -1;
    if (found < 0 || (kind.positive && found == 0) ||
        (kind.most > 0 && found > kind.most)) {
      wrong(path, kind.what, value);
      return 0;
    }
    return found;
  }
  double real(const Json &json, const std::string &path, const std::string &key,
              Number kind, bool required, double otherwise = 0) {
    const Json *value = field(json, path, key, required);
    return value ? number(*value, path + key, kind) : otherwise;
  }

  // ---------------------------------------------------------------- devices

  void readShort(const Json &json) {
    out.count = whole(json, "", "devices", true, 1, kMostDevices);
    out.perNode =
        whole(json, "", "devices_per_node", false, out.count, kMostDevices);
    if (out.count % out.perNode != 0)
      problem("devices", fmt::format("{} is not a multiple of "
                                     "devices_per_node, which is {}",
                                     out.count, out.perNode));
    out.kinds.emplace_back();
    if (const Json *device = object(json, "", "device", true)) {
      readDevice(*device, "device.", "kind", out.kinds.back());
      out.kinds.back().name = out.kinds.back().backend;
    }
  }

  void readKinds(const Json &json) {
    if (const Json *kinds = object(json, "", "kinds", true)) {
      for (const auto &[name, value] : kinds->items()) {
        out.kinds.emplace_back();
        out.kinds.back().name = name;
        if (value.is_object())
          readDevice(value, "kinds." + name + ".", "backend", out.kinds.back());
        else
          wrong("kinds." + name, "an object", value);
      }
      if (kinds->empty())
        problem("kinds", "expected at least one kind of device, found none");
    }
    for (const Device &kind : out.kinds)
      if (kind.backend != out.kinds.front().backend)
        problem("kinds." + kind.name + ".backend",
                fmt::format("\"{}\" contradicts \"{}\" of kinds.{}: a plan is "
                            "for one backend",
                            kind.backend, out.kinds.front().backend,
                            out.kinds.front().name));
    if (out.kinds.empty())
      out.kinds.emplace_back();
  }

  void readDevice(const Json &json, const std::string &path,
                  const std::string &backendKey, Device &device) {
    known(json, path,
          {backendKey, "flops", "memory_bandwidth", "memory_bytes",
           "launch_seconds", "distances", "kernels", "slowdown"});
    if (const Json *backend = field(json, path, backendKey, true)) {
      if (*backend == "cpu" || *backend == "cuda")
        device.backend = *backend;
      else
        wrong(path + backendKey, "\"cpu\" or \"cuda\"", *backend);
    }
    if (const Json *flops = field(json, path, "flops", true))
      readFlops(*flops, path + "flops", device);
    device.memoryBandwidth =
        real(json, path, "memory_bandwidth", kBytesPerSecond, true);
    // CPU ranks may leave their memory to the operating system.
    device.memoryBytes =
        whole(json, path, "memory_bytes", device.backend != "cpu", 0);
    device.launchSeconds = real(json, path, "launch_seconds", kSeconds, false);
    if (const Json *distances = field(json, path, "distances", false))
      readDistances(*distances, path + "distances", device);
    if (const Json *kernels = object(json, path, "kernels", false))
      for (const auto &[name, value] : kernels->items())
        readKernel(value, path + "kernels." + name, device.distances.size(),
                   device.kernels[name]);
    if (const Json *slowdown = object(json, path, "slowdown", false)) {
      std::string inside = path + "slowdown.";
      known(*slowdown, inside, {"compute", "communication"});
      device.computeSlowdown = factor(*slowdown, inside, "compute");
      device.communicationSlowdown = factor(*slowdown, inside, "communication");
    }
  }

  double factor(const Json &json, const std::string &path,
                const std::string &key) {
    const Json *value = field(json, path, key, false);
    if (!value || (value->is_number() && value->get<double>() >= 1))
      return value ? value->get<double>() : 1;
    wrong(path + key, "a factor of at least 1", *value);
    return 1;
  }

  // One rate of f32, or one for each dtype.
  void readFlops(const Json &json, const std::string &path, Device &device) {
    if (!json.is_object()) {
      device.rates["f32"] = number(json, path, kFlopsPerSecond);
      return;
    }
    for (const auto &[dtype, value] : json.items()) {
      if (!kDtypes.count(dtype))
        problem(path + "." + dtype, fmt::format("unknown type, expected one "
                                                "of {}",
                                                fmt::join(kDtypes, ", ")));
      device.rates[dtype] = number(value, path + "." + dtype, kFlopsPerSecond);
    }
    if (!json.contains("f32"))
      problem(path + ".f32", "missing");
  }

  void readDistances(const Json &json, const std::string &path,
                     Device &device) {
    if (!json.is_array() || json.empty())
      return wrong(path, "a list of bytes", json);
    for (size_t i = 0; i < json.size(); ++i) {
      std::string at = fmt::format("{}[{}]", path, i);
      double bytes = number(json[i], at, kBytes);
      if (!device.distances.empty() && bytes <= device.distances.back())
        problem(at, fmt::format("expected more than the {} before, found {}",
                                device.distances.back(), bytes));
      device.distances.push_back(bytes);
    }
  }

  // `distances`: how many the device has; a point has one rate, or one each.
  void readKernel(const Json &json, const std::string &path, size_t distances,
                  KernelRates &rates) {
    if (!json.is_object())
      return wrong(path, "an object", json);
    std::string inside = path + ".";
    known(json, inside,
          {"launch_seconds", "flops", "combine", "shapes", "sizes"});
    if (const Json *combine = field(json, inside, "combine", false)) {
      rates.adds = *combine == "sum";
      if (!rates.adds && *combine != "max")
        wrong(inside + "combine", "\"max\" or \"sum\"", *combine);
    }
    rates.launch = real(json, inside, "launch_seconds", kSeconds, false, -1);
    rates.flops = real(json, inside, "flops", kFlopsPerSecond, false);
    auto farther = [&](const Json &row, const std::string &at, size_t first,
                       Number kind) {
      std::vector<double> found;
      for (size_t i = first; i < row.size(); ++i)
        found.push_back(number(row[i], fmt::format("{}[{}]", at, i), kind));
      return found;
    };
    rows(json, inside, "shapes", 4, distances, "[m, n, k, efficiency]",
         [&](const Json &row, const std::string &at) {
           ShapePoint point{number(row[0], at + "[0]", kSize),
                            number(row[1], at + "[1]", kSize),
                            number(row[2], at + "[2]", kSize),
                            number(row[3], at + "[3]", kEfficiency),
                            farther(row, at, 4, kEfficiency)};
           for (const ShapePoint &other : rates.shapes)
             if (other.m == point.m && other.n == point.n &&
                 other.k == point.k && other.efficiency != point.efficiency)
               problem(at, fmt::format("efficiency {} contradicts {} of the "
                                       "same shape before",
                                       point.efficiency, other.efficiency));
           rates.shapes.push_back(point);
         });
    rows(json, inside, "sizes", 2, distances, "[bytes, bytes per second]",
         [&](const Json &row, const std::string &at) {
           SizePoint point{number(row[0], at + "[0]", kBytes),
                           number(row[1], at + "[1]", kBytesPerSecond),
                           farther(row, at, 2, kBytesPerSecond)};
           if (!rates.sizes.empty() && point.bytes <= rates.sizes.back().bytes)
             problem(at + "[0]",
                     fmt::format("expected more than the {} before, found {}",
                                 rates.sizes.back().bytes, point.bytes));
           rates.sizes.push_back(point);
         });
  }

  template <typename Row>
  void rows(const Json &json, const std::string &path, const std::string &key,
            size_t width, size_t distances, const char *what, Row row) {
    const Json *list = field(json, path, key, false);
    if (!list)
      return;
    std::string expected = what;
    if (distances > 1)
      expected +=
          fmt::format(" or one rate for each of {} distances", distances);
    if (!list->is_array())
      return wrong(path + key, fmt::format("a list of {}", what), *list);
    for (size_t i = 0; i < list->size(); ++i) {
      std::string at = fmt::format("{}{}[{}]", path, key, i);
      const size_t size = (*list)[i].is_array() ? (*list)[i].size() : 0;
      if (size == width || (distances > 1 && size == width + distances - 1))
        row((*list)[i], at);
      else
        wrong(at, expected, (*list)[i]);
    }
  }

  // ------------------------------------------------------------------ nodes

  void readNodes(const Json &json) {
    const Json *nodes = field(json, "", "nodes", true);
    if (!nodes)
      return;
    if (!nodes->is_array() || nodes->empty())
      return wrong("nodes", "a list of nodes", *nodes);
    std::vector<std::vector<int>> all; // kinds, by node
    int64_t devices = 0;
    for (size_t i = 0; i < nodes->size(); ++i) {
      std::string path = fmt::format("nodes[{}]", i);
      const Json &node = (*nodes)[i];
      if (!node.is_object()) {
        wrong(path, "an object", node);
        continue;
      }
      path += ".";
      known(node, path, {"count", "kind", "devices", "kinds", "host"});
      int64_t count = whole(node, path, "count", false, 1, kMostDevices);
      readNodeHost(node, path, count);
      std::vector<int> kinds = kindsOf(node, path);
      devices += count * int64_t(kinds.size());
      counted = devices <= kMostDevices;
      if (!counted)
        return problem(path + "count",
                       fmt::format("more than {} devices", kMostDevices));
      for (int64_t n = 0; n < count; ++n)
        all.push_back(kinds);
    }
    flatten(all);
    checkHosts();
  }

  // A name goes into a launcher's command, which a shell reads.
  static bool isHostName(const std::string &name) {
    return !name.empty() && name.size() <= 255 && name.front() != '-' &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
             return std::isalnum(c) || c == '.' || c == '-' || c == '_';
           });
  }

  void readNodeHost(const Json &node, const std::string &path, int64_t count) {
    std::string &host = hosts.emplace_back();
    const Json *value = field(node, path, "host", false);
    if (!value)
      return;
    host = value->is_string() ? value->get<std::string>() : "";
    if (!isHostName(host)) {
      host = "?"; // none is missing
      wrong(path + "host", "a name of letters, digits, \".\", \"-\" and \"_\"",
            *value);
    } else if (count > 1)
      problem(
          path + "host",
          fmt::format("one name for {} nodes: give each an entry of its own",
                      count));
    else if (std::count(hosts.begin(), hosts.end(), host) > 1)
      problem(path + "host",
              fmt::format("\"{}\" is that of a node before", host));
  }

  void checkHosts() {
    const bool some = std::any_of(hosts.begin(), hosts.end(),
                                  [](const auto &h) { return !h.empty(); });
    for (size_t i = 0; some && i < hosts.size(); ++i)
      if (hosts[i].empty())
        problem(fmt::format("nodes[{}].host", i),
                "missing: other nodes have it");
  }

  std::vector<int> kindsOf(const Json &node, const std::string &path) {
    const Json *list = field(node, path, "kinds", false);
    if (!list) {
      int kind = -1;
      if (const Json *name = field(node, path, "kind", true))
        kind = kindOf(*name, path + "kind");
      int64_t count = whole(node, path, "devices", true, 1, kMostDevices);
      return std::vector<int>(size_t(count), kind);
    }
    std::vector<int> kinds;
    if (node.contains("kind"))
      problem(path + "kind", "contradicts kinds: give one of the two");
    if (!list->is_array() || list->empty())
      wrong(path + "kinds", "a list of kinds, one a device", *list);
    else
      for (size_t i = 0; i < list->size(); ++i)
        kinds.push_back(
            kindOf((*list)[i], fmt::format("{}kinds[{}]", path, i)));
    if (node.contains("devices") && node["devices"] != kinds.size())
      problem(path + "devices",
              fmt::format("{} contradicts the {} kinds of the node",
                          node["devices"].dump(), kinds.size()));
    return kinds;
  }

  int kindOf(const Json &name, const std::string &path) {
    std::vector<std::string> names;
    for (size_t i = 0; i < out.kinds.size(); ++i) {
      if (name == out.kinds[i].name)
        return int(i);
      names.push_back(out.kinds[i].name);
    }
    wrong(path, fmt::format("one of the kinds {}", fmt::join(names, ", ")),
          name);
    return -1;
  }

  void flatten(const std::vector<std::vector<int>> &nodes) {
    out.count = out.perNode = 0;
    bool sameKind = true, sameSize = true;
    for (size_t n = 0; n < nodes.size(); ++n) {
      sameSize &= nodes[n].size() == nodes.front().size();
      for (int kind : nodes[n]) {
        out.kindOf.push_back(kind);
        out.nodeOf.push_back(int(n));
        sameKind &= kind == 0;
      }
      out.perNode = std::max(out.perNode, int64_t(nodes[n].size()));
    }
    out.count = int64_t(out.kindOf.size());
    if (sameKind)
      out.kindOf.clear();
    if (sameSize)
      out.nodeOf.clear();
  }

  // ------------------------------------------------------------------ links

  bool inNodes() const { return out.count > 1 && out.perNode > 1; }
  bool betweenNodes() const { return out.count > out.perNode; }

  void readLinks(const Json &json) {
    const Json *links = object(json, "", "links", inNodes() || betweenNodes());
    if (!links)
      return;
    known(*links, "links.", {"intra", "inter"});
    // A link is needed if some pair of devices meets over it.
    out.intra = link(*links, "intra", inNodes());
    out.inter = link(*links, "inter", betweenNodes());
    // One that nobody uses is as good as the other.
    if (out.inter.bandwidth <= 0)
      out.inter = out.intra;
    if (out.intra.bandwidth <= 0)
      out.intra = out.inter;
  }

  Link link(const Json &links, const std::string &key, bool required) {
    const Json *value = object(links, "links.", key, required);
    if (!value)
      return {};
    std::string path = "links." + key + ".";
    known(*value, path, {"bandwidth", "latency", "shared"});
    Link result{real(*value, path, "bandwidth", kBytesPerSecond, true),
                real(*value, path, "latency", kSeconds, true)};
    if (const Json *shared = field(*value, path, "shared", false)) {
      if (shared->is_boolean())
        result.shared = *shared;
      else
        wrong(path + "shared", "true or false", *shared);
    }
    return result;
  }

  void readCollectives(const Json &json) {
    const Json *value = field(json, "", "collectives", false);
    if (!value) {
      if (out.kinds.front().backend == "cuda")
        out.algorithm = Algorithm::Nccl;
      return;
    }
    if (*value == "ring")
      out.algorithm = Algorithm::Ring;
    else if (*value == "tree")
      out.algorithm = Algorithm::Tree;
    else if (*value == "direct")
      out.algorithm = Algorithm::Direct;
    else if (*value == "nccl")
      out.algorithm = Algorithm::Nccl;
    else
      wrong("collectives", "\"ring\", \"tree\", \"direct\" or \"nccl\"",
            *value);
  }

  void readHost(const Json &json) {
    const Json *host = object(json, "", "host", false);
    if (!host)
      return;
    known(*host, "host.", {"cores", "threads"});
    out.cores = whole(*host, "host.", "cores", true, 0);
    out.threads = whole(*host, "host.", "threads", false, 1);
    if (out.kinds.front().backend != "cpu")
      problem("host", fmt::format("contradicts the backend \"{}\": only CPU "
                                  "devices share the cores of a node",
                                  out.kinds.front().backend));
  }

  void readRates(const Json &json) {
    const Json *rates = object(json, "", "rates", false);
    if (!rates)
      return;
    std::vector<double> all(size_t(out.count), 1);
    for (const auto &[key, value] : rates->items()) {
      bool digits = !key.empty() && key.size() < 9 &&
                    key.find_first_not_of("0123456789") == std::string::npos;
      int64_t index = digits ? std::stoll(key) : -1;
      double rate = number(value, "rates." + key, kEfficiency);
      if (index < 0 || index >= out.count)
        problem(
            "rates." + key,
            fmt::format("expected a device between 0 and {}", out.count - 1));
      else
        all[size_t(index)] = rate;
    }
    if (std::any_of(all.begin(), all.end(), [](double r) { return r != 1; }))
      out.rateOf = all;
  }

  std::string file;
  Cluster out;
  std::vector<std::string> hosts; // by entry of `nodes`
  bool counted = true;            // the number of devices is known
  Status status;
};

} // namespace

Result<Cluster> parseCluster(const std::string &json,
                             const std::string &fileName) {
  return ClusterReader(fileName).read(json);
}

static Result<std::string> textOf(const std::string &path) {
  std::string text;
  if (const std::string why = readFile(path, text); !why.empty())
    return Status::error(
        fmt::format("cannot read the cluster file '{}': {}", path, why));
  return text;
}

Result<Cluster> readCluster(const std::string &path) {
  const Result<std::string> text = textOf(path);
  return text ? parseCluster(*text, path) : text.status();
}

Result<ClusterHosts> parseClusterHosts(const std::string &json,
                                       const std::string &fileName) {
  ClusterReader reader(fileName);
  Result<Cluster> cluster = reader.read(json);
  if (!cluster)
    return cluster.status();
  ClusterHosts found{std::move(*cluster), {}};
  for (int64_t i = 0; i < found.cluster.count; ++i) {
    found.nodes.resize(size_t(found.cluster.node(i)) + 1);
    ++found.nodes.back().devices;
  }
  // Where there are names, an entry is a node.
  const std::vector<std::string> &names = reader.hostNames();
  for (size_t n = 0; n < found.nodes.size() && n < names.size(); ++n)
    found.nodes[n].host = names[n];
  return found;
}

Result<ClusterHosts> readClusterHosts(const std::string &path) {
  const Result<std::string> text = textOf(path);
  return text ? parseClusterHosts(*text, path) : text.status();
}

} // namespace merak::costmodel
