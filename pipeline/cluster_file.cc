// JSON is read as the YAML that it is.
#include "pipeline/cluster_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <stdexcept>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace autopart {
namespace {

constexpr int kMostOfAKind = 1000000;  // hosts of a group, devices of a host

// What is wrong with the file; caught at the border.
struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void Fail(const YAML::Node& node, const std::string& text) {
  const YAML::Mark mark = node.Mark();
  throw Mistake(mark.is_null() ? text : absl::StrCat("line ", mark.line + 1, ": ", text));
}

struct Unit {
  std::string_view name;
  double size;
};

constexpr Unit kBytes[] = {{"B", 1},
                           {"kB", 1e3},
                           {"MB", 1e6},
                           {"GB", 1e9},
                           {"TB", 1e12},
                           {"KiB", 1024.0},
                           {"MiB", 1024.0 * 1024},
                           {"GiB", 1024.0 * 1024 * 1024},
                           {"TiB", 1024.0 * 1024 * 1024 * 1024}};
// To bytes and operations a millisecond, and milliseconds.
constexpr Unit kBandwidth[] = {{"B/s", 1e-3},       {"kB/s", 1},        {"MB/s", 1e3},
                               {"GB/s", 1e6},       {"TB/s", 1e9},      {"Mbit/s", 1e3 / 8},
                               {"Gbit/s", 1e6 / 8}, {"Tbit/s", 1e9 / 8}};
constexpr Unit kFlops[] = {{"GFLOPS", 1e6}, {"TFLOPS", 1e9}, {"PFLOPS", 1e12}};
constexpr Unit kTime[] = {{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1}, {"s", 1e3}};

// "450 GB/s". The unit is required: a bare number has been read wrongly too often.
double Quantity(const YAML::Node& node, const std::string& what, std::span<const Unit> units) {
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  const size_t end = text.find_first_not_of("0123456789.+-eE");
  const std::string number = text.substr(0, end);
  double value = 0;
  const bool is_number = absl::SimpleAtod(number, &value) && std::isfinite(value) && value >= 0;
  if (is_number && end != std::string::npos) {
    const size_t begin = text.find_first_not_of(' ', end);
    const std::string unit = text.substr(std::min(begin, text.size()));
    for (const Unit& known : units) {
      if (unit == known.name) return value * known.size;
    }
  }
  std::vector<std::string> names;
  for (const Unit& known : units) names.emplace_back(known.name);
  Fail(node, absl::StrCat(what, " should be a number with a unit (", absl::StrJoin(names, ", "),
                          "), not '", text, "'"));
}

double Share(const YAML::Node& node, const std::string& what) {
  double value = 0;
  if (node.IsScalar() && absl::SimpleAtod(node.Scalar(), &value) && value > 0 && value <= 1) {
    return value;
  }
  Fail(node, absl::StrCat(what, " should be a number above 0 and at most 1, not '",
                          node.IsScalar() ? node.Scalar() : "", "'"));
}

int CountOf(const YAML::Node& node, const std::string& what) {
  int value = 0;
  if (node.IsScalar() && absl::SimpleAtoi(node.Scalar(), &value) && value >= 1 &&
      value <= kMostOfAKind) {
    return value;
  }
  Fail(node, absl::StrCat(what, " should be a whole number from 1 to ", kMostOfAKind, ", not '",
                          node.IsScalar() ? node.Scalar() : "", "'"));
}

std::string TextOf(const YAML::Node& node, const std::string& what) {
  if (node.IsScalar()) return node.Scalar();
  Fail(node, absl::StrCat(what, " should be a text"));
}

// A mapping with no other keys than those known.
void CheckKeys(const YAML::Node& node, const std::string& where,
               const std::vector<std::string>& known) {
  if (!node.IsMap()) {
    Fail(node, absl::StrCat(where, " should have fields: ", absl::StrJoin(known, ", ")));
  }
  for (const auto& entry : node) {
    const std::string key = TextOf(entry.first, "a key");
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      Fail(entry.first, absl::StrCat(where, " has no field '", key, "': known are ",
                                     absl::StrJoin(known, ", ")));
    }
  }
}

const YAML::Node Required(const YAML::Node& node, const std::string& where,
                          const std::string& key) {
  const YAML::Node child = node[key];
  if (!child.IsDefined()) Fail(node, absl::StrCat(where, ": ", key, " is missing"));
  return child;
}

DeviceSpec Known(const YAML::Node& node, const std::string& name) {
  absl::StatusOr<DeviceSpec> spec = FindDevice(name);
  if (!spec.ok()) Fail(node, std::string(spec.status().message()));
  return *std::move(spec);
}

LinkSpec ReadLink(const YAML::Node& node, const std::string& where) {
  CheckKeys(node, where, {"bandwidth", "latency", "shared"});
  LinkSpec link;
  link.bytes_per_ms =
      Quantity(Required(node, where, "bandwidth"), where + ": bandwidth", kBandwidth);
  if (link.bytes_per_ms == 0) Fail(node, where + ": bandwidth must be above 0");
  link.latency_ms = Quantity(Required(node, where, "latency"), where + ": latency", kTime);
  if (const YAML::Node shared = node["shared"]; shared.IsDefined()) {
    if (!YAML::convert<bool>::decode(shared, link.shared)) {
      Fail(shared, where + ": shared should be true or false");
    }
  }
  return link;
}

// A kind of device is a known one, changed in what is given.
DeviceSpec ReadDevice(const YAML::Node& node, const std::string& where) {
  if (node.IsScalar()) return Known(node, node.Scalar());
  CheckKeys(node, where,
            {"name", "like", "memory", "fp32", "half", "memory_bandwidth", "matrix_efficiency",
             "memory_efficiency", "launch"});
  DeviceSpec device;
  const YAML::Node like = node["like"];
  if (like.IsDefined()) {
    device = Known(like, TextOf(like, where + ": like"));
  } else {
    for (const char* key : {"name", "memory", "fp32", "half", "memory_bandwidth"}) {
      if (!node[key].IsDefined()) {
        Fail(node, absl::StrCat(where, ": ", key, " is missing (or say which known device it is ",
                                "like: ", absl::StrJoin(DeviceNames(), ", "), ")"));
      }
    }
  }
  if (node["name"]) device.name = TextOf(node["name"], where + ": name");
  if (node["memory"]) {
    device.memory_bytes = std::llround(Quantity(node["memory"], where + ": memory", kBytes));
  }
  if (node["fp32"]) device.fp32_flops_per_ms = Quantity(node["fp32"], where + ": fp32", kFlops);
  if (node["half"]) device.half_flops_per_ms = Quantity(node["half"], where + ": half", kFlops);
  if (node["memory_bandwidth"]) {
    device.memory_bytes_per_ms =
        Quantity(node["memory_bandwidth"], where + ": memory_bandwidth", kBandwidth);
  }
  if (node["matrix_efficiency"]) {
    device.matrix_efficiency = Share(node["matrix_efficiency"], where + ": matrix_efficiency");
  }
  if (node["memory_efficiency"]) {
    device.memory_efficiency = Share(node["memory_efficiency"], where + ": memory_efficiency");
  }
  if (node["launch"]) device.launch_ms = Quantity(node["launch"], where + ": launch", kTime);
  for (const double rate :
       {device.fp32_flops_per_ms, device.half_flops_per_ms, device.memory_bytes_per_ms}) {
    if (rate <= 0) Fail(node, where + ": rates must be above 0");
  }
  return device;
}

HostGroup ReadHosts(const YAML::Node& node, const std::string& where) {
  CheckKeys(node, where, {"name", "count", "devices", "link", "network"});
  HostGroup hosts;
  if (node["name"]) hosts.name = TextOf(node["name"], where + ": name");
  if (node["count"]) hosts.count = CountOf(node["count"], where + ": count");
  const YAML::Node devices = Required(node, where, "devices");
  if (!devices.IsSequence() || devices.size() == 0) {
    Fail(devices, where + ": devices should be a list of {count, device}");
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string group = absl::StrCat(where, ".devices[", i, "]");
    CheckKeys(devices[i], group, {"count", "device"});
    DeviceGroup& read = hosts.devices.emplace_back();
    if (devices[i]["count"]) read.count = CountOf(devices[i]["count"], group + ": count");
    read.device = ReadDevice(Required(devices[i], group, "device"), group + ".device");
  }
  if (node["link"]) {
    hosts.link = ReadLink(node["link"], where + ".link");
  } else if (hosts.devices_per_host() > 1) {
    Fail(node, where + ": link is missing: how its devices are connected");
  }
  if (node["network"]) hosts.network = ReadLink(node["network"], where + ".network");
  // What the cost model says of a device's usual neighbour is what this host has.
  for (DeviceGroup& group : hosts.devices) {
    const LinkSpec& link = hosts.link.bytes_per_ms > 0 ? hosts.link : hosts.network;
    group.device.link_bytes_per_ms = link.bytes_per_ms;
    group.device.link_latency_ms = link.latency_ms;
  }
  return hosts;
}

Cluster ReadCluster(const YAML::Node& node) {
  CheckKeys(node, "a cluster", {"name", "hosts"});
  Cluster cluster;
  if (node["name"]) cluster.name = TextOf(node["name"], "name");
  const YAML::Node hosts = Required(node, "a cluster", "hosts");
  if (!hosts.IsSequence() || hosts.size() == 0) Fail(hosts, "hosts should be a list of hosts");
  for (size_t i = 0; i < hosts.size(); ++i) {
    cluster.hosts.push_back(ReadHosts(hosts[i], absl::StrCat("hosts[", i, "]")));
  }
  if (cluster.num_hosts() > 1) {
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (!hosts[i]["network"]) {
        Fail(hosts[i], absl::StrCat("hosts[", i, "]: network is missing: how it reaches the ",
                                    "other hosts"));
      }
    }
  }
  return cluster;
}

}  // namespace

absl::StatusOr<Cluster> ClusterFromYaml(std::string_view text) {
  try {
    const Cluster cluster = ReadCluster(YAML::Load(std::string(text)));
    if (absl::Status s = Validate(cluster); !s.ok()) return s;
    return cluster;
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(
        e.mark.is_null() ? e.msg : absl::StrCat("line ", e.mark.line + 1, ": ", e.msg));
  } catch (const Mistake& e) {
    return absl::InvalidArgumentError(e.what());
  }
}

}  // namespace autopart
