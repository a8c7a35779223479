#include "runtime/cli/partition_flags.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "partitioner/byte_size.h"

namespace autopart {
namespace {

// "count=4,speed=0.5,memory=40GiB", each part once, in any order; memory is --memory where it is
// not said.
absl::StatusOr<DeviceType> ParseDeviceType(const std::string& text, int64_t memory_bytes) {
  DeviceType type;
  type.memory_bytes = memory_bytes;
  std::vector<std::string> seen;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto bad = [&](const auto&... pieces) {
      return absl::InvalidArgumentError(absl::StrCat("--device-type: ", pieces...));
    };
    if (pair.size() != 2) {
      return bad("'", part, "' in '", text, "': write for example count=4,speed=0.5,memory=40GiB");
    }
    if (std::find(seen.begin(), seen.end(), pair[0]) != seen.end()) {
      return bad(pair[0], " is there twice in '", text, "'");
    }
    seen.push_back(pair[0]);
    if (pair[0] == "count") {
      if (!absl::SimpleAtoi(pair[1], &type.count) || type.count < 1) {
        return bad("count is '", pair[1], "', want a whole number of at least 1");
      }
    } else if (pair[0] == "speed") {
      if (!absl::SimpleAtod(pair[1], &type.speed) || !(type.speed > 0)) {
        return bad("speed is '", pair[1], "', want a number above 0");
      }
    } else if (pair[0] == "memory") {
      absl::StatusOr<int64_t> memory = SizeOf("--device-type: memory", pair[1]);
      if (!memory.ok()) return memory.status();
      type.memory_bytes = *memory;
    } else {
      return bad("there is no '", pair[0], "': say count, speed, memory");
    }
  }
  return type;
}

// One rate for all links, or one for each boundary between two stages.
absl::Status ReadBandwidth(const std::string& text, PartitionOptions& options) {
  std::vector<double> rates;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    absl::StatusOr<int64_t> rate = SizeOf("--bandwidth", part);
    if (!rate.ok()) return rate.status();
    if (*rate == 0) return absl::InvalidArgumentError("--bandwidth is 0");
    rates.push_back(static_cast<double>(*rate) / 1e3);  // of a millisecond
  }
  options.bytes_per_ms = *std::max_element(rates.begin(), rates.end());
  options.all_reduce_bytes_per_ms = *std::min_element(rates.begin(), rates.end());
  if (rates.size() == 1) return absl::OkStatus();
  if (static_cast<int>(rates.size()) != options.num_stages - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bandwidth: ", rates.size(), " rates, want one, or one for each of the ",
                     std::max(0, options.num_stages - 1), " boundaries between the --stages ",
                     options.num_stages));
  }
  for (const double rate : rates) options.link_speeds.push_back(rate / options.bytes_per_ms);
  return absl::OkStatus();
}

absl::Status ReadSchedule(const PartitionFlags& flags, int num_devices, PartitionOptions& options) {
  const int m = flags.micro_batches.value_or(0);
  if (flags.schedule == "gpipe") {
    if (m == 0) {
      return absl::InvalidArgumentError(
          "--schedule gpipe keeps all micro-batches in flight: say how many, --micro-batches M");
    }
    options.in_flight = {m};
  } else if (flags.schedule == "1f1b") {
    const int places = std::max(options.num_stages, num_devices);
    options.in_flight.resize(m > 0 ? std::min(m, places) : places);
    std::iota(options.in_flight.begin(), options.in_flight.end(), 1);
  } else if (flags.schedule == "forward") {
    options.in_flight = {0};
  }
  return absl::OkStatus();
}

}  // namespace

void DeclarePartitionFlags(CLI::App& app, PartitionFlags& flags) {
  // One line a flag: their values are in the texts, not in what CLI11 would add.
  const auto one_of = [](std::set<std::string> names) {
    return CLI::IsMember(std::move(names)).description("");
  };
  const auto whole = [](int least, int most) { return CLI::Range(least, most).description(""); };
  app.get_formatter()->column_width(28);
  app.add_option("graph", flags.graph,
                 "autopart.cost_graph, dnn-partitioning or Piper JSON, plain or gzip")
      ->type_name("FILE")
      ->required();
  app.add_option("--stages", flags.stages, "number of stages")
      ->type_name("K")
      ->check(whole(1, 100'000));
  app.add_option("--devices", flags.devices, "devices in all; a stage may have several (replicas)")
      ->type_name("N")
      ->check(whole(1, 100'000));
  app.add_option("--device-type", flags.device_types,
                 "instead, for each type: count=4,speed=0.5,memory=40GiB")
      ->type_name("TYPE")
      ->allow_extra_args(false);
  app.add_option("--memory", flags.memory, "of a device, for example 80GiB")->type_name("BYTES");
  app.add_option("--bandwidth", flags.bandwidth,
                 "a second, for example 25GB; A,B,.. one for each boundary")
      ->type_name("BYTES");
  app.add_option("--micro-batches", flags.micro_batches, "micro-batches of a step")
      ->type_name("M")
      ->check(whole(1, 1'000'000'000));
  app.add_option("--schedule", flags.schedule,
                 "1f1b, gpipe or forward: how many micro-batches are in memory")
      ->type_name("NAME")
      ->check(one_of({"1f1b", "gpipe", "forward"}));
  app.add_option("--recompute", flags.recompute, "none, cheap, all or auto (each stage its own)")
      ->type_name("NAME")
      ->check(one_of({"none", "cheap", "all", "auto"}));
  app.add_option("--objective", flags.objective,
                 "sum (of compute and sends) or overlap (the larger)")
      ->type_name("NAME")
      ->check(one_of({"sum", "overlap"}));
  app.add_option("--time-limit", flags.time_limit, "seconds, a cap on the search")->type_name("S");
  app.add_option("--iterations", flags.iterations, "rounds of search")
      ->type_name("N")
      ->check(whole(0, 1'000'000'000));
  app.add_option("--seed", flags.seed, "of the search")->type_name("N");
  app.add_option("--threads", flags.threads, "of the search; they do not change the answer")
      ->type_name("N")
      ->check(whole(1, 1024));
  app.add_option("-o,--output", flags.output, "write the partition here")->type_name("FILE");
  app.add_option("--format", flags.format, "of stdout: text or json")
      ->type_name("NAME")
      ->check(one_of({"text", "json"}));
}

Objective ObjectiveOf(const PartitionFlags& flags, Objective otherwise) {
  if (flags.objective.empty()) return otherwise;
  return flags.objective == "sum" ? Objective::kSum : Objective::kOverlap;
}

Effort EffortOf(const PartitionFlags& flags) {
  Effort effort;
  effort.iterations = flags.iterations;
  effort.seed = flags.seed.value_or(0);
  if (flags.threads) effort.threads = *flags.threads;
  if (flags.time_limit) effort.time_limit_s = *flags.time_limit;
  return effort;
}

absl::StatusOr<int64_t> SizeOf(const char* flag, std::string_view text) {
  absl::StatusOr<int64_t> size = ParseByteSize(text);
  if (size.ok()) return size;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", std::string(size.status().message())));
}

absl::StatusOr<PartitionOptions> PartitionOptionsOf(const PartitionFlags& flags) {
  PartitionOptions options;
  options.effort = EffortOf(flags);
  options.objective = ObjectiveOf(flags, Objective::kOverlap);
  if (!flags.memory.empty()) {
    absl::StatusOr<int64_t> memory = SizeOf("--memory", flags.memory);
    if (!memory.ok()) return memory.status();
    options.memory_bytes = *memory;
  }
  int num_devices = flags.devices.value_or(0);
  if (!flags.device_types.empty()) {
    if (flags.devices) {
      return absl::InvalidArgumentError("--devices: the --device-type counts say how many");
    }
    for (const std::string& text : flags.device_types) {
      absl::StatusOr<DeviceType> type = ParseDeviceType(text, options.memory_bytes);
      if (!type.ok()) return type.status();
      options.device_types.push_back(*type);
      num_devices += type->count;
    }
  } else {
    options.num_devices = num_devices;
  }
  if (!flags.stages && num_devices == 0) {
    return absl::InvalidArgumentError(
        "say the number of stages, --stages K, or of devices, --devices N");
  }
  options.num_stages = flags.stages.value_or(0);
  options.micro_batches = flags.micro_batches.value_or(0);
  if (!flags.bandwidth.empty()) {
    if (auto status = ReadBandwidth(flags.bandwidth, options); !status.ok()) return status;
  }
  if (!flags.bandwidth.empty() && num_devices > 0 && !flags.micro_batches) {
    return absl::InvalidArgumentError(
        "--bandwidth: replicas add up their gradients once a step, so with devices say of how many "
        "micro-batches a step is, --micro-batches M");
  }
  if (auto status = ReadSchedule(flags, num_devices, options); !status.ok()) return status;
  if (flags.recompute == "cheap") options.recompute = Recompute::kCheap;
  if (flags.recompute == "all") options.recompute = Recompute::kAll;
  if (flags.recompute == "auto") options.recompute = Recompute::kAuto;
  return options;
}

absl::Status CheckUnused(const PartitionFlags& flags, const std::vector<RefusedFlag>& refused) {
  const auto is_set = [&](std::string_view name) {
    if (name == "--stages") return flags.stages.has_value();
    if (name == "--devices") return flags.devices.has_value();
    if (name == "--device-type") return !flags.device_types.empty();
    if (name == "--memory") return !flags.memory.empty();
    if (name == "--bandwidth") return !flags.bandwidth.empty();
    if (name == "--micro-batches") return flags.micro_batches.has_value();
    if (name == "--schedule") return !flags.schedule.empty();
    if (name == "--recompute") return !flags.recompute.empty();
    if (name == "--time-limit") return flags.time_limit.has_value();
    if (name == "--iterations") return flags.iterations.has_value();
    if (name == "--seed") return flags.seed.has_value();
    if (name == "--threads") return flags.threads.has_value();
    return name == "--objective" && !flags.objective.empty();
  };
  for (const RefusedFlag& flag : refused) {
    if (is_set(flag.name)) {
      return absl::InvalidArgumentError(absl::StrCat(flag.name, ": ", flag.why));
    }
  }
  return absl::OkStatus();
}

}  // namespace autopart
