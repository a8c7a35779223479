#include "tests/partitioner/fuzz/readers.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "partitioner/cost_graph.h"
#include "partitioner/dnn_instance.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "partitioner/piper_instance.h"
#include "tests/testing/graphs.h"

namespace autopart::testing {
namespace {

constexpr size_t kMaxNodes = 40;  // partitioned; larger ones are read only

Effort Little() {
  Effort effort;
  effort.iterations = 1;
  effort.threads = 1;
  effort.prove = false;
  return effort;
}

void Require(bool holds, std::string_view what) {
  if (!holds) throw std::logic_error(std::string(what));
}

void RequireOk(const absl::Status& status) {
  if (!status.ok()) throw std::logic_error(status.ToString());
}

// A refusal has to be one that a user can act on.
void RequireRefusal(const absl::Status& status) {
  Require(status.code() == absl::StatusCode::kInvalidArgument ||
              status.code() == absl::StatusCode::kResourceExhausted,
          status.ToString());
  Require(!status.message().empty(), "a refusal without a reason");
}

std::vector<std::string> CostGraphSamples() {
  CostGraph chain = Chain(3, 1, 8);
  chain.nodes[0].group = chain.nodes[1].group = 2;
  std::vector<std::string> samples = {ToJson(chain)};
  for (uint64_t seed = 0; seed < 6; ++seed) {
    samples.push_back(ToJson(RandomGraph(seed, {.num_nodes = 3 + static_cast<int>(seed),
                                                .groups = seed % 2 == 0,
                                                .memory = seed % 3 > 0})));
  }
  return samples;
}

std::vector<std::string> DnnSamples() {
  return {
      R"({"maxFPGAs":2,"maxCPUs":1,"maxSizePerFPGA":100,"nodes":[
      {"id":"a","fpgaLatency":1,"cpuLatency":10,"supportedOnFpga":1,"size":4},
      {"id":7,"fpgaLatency":2,"cpuLatency":20,"supportedOnFpga":true,"colorClass":3}],
      "edges":[{"sourceId":"a","destId":7,"cost":0.5}]})",
      R"({"maxFPGAs":3,"maxSizePerFPGA":1e10,"nodes":[
      {"id":1,"fpgaLatency":1,"cpuLatency":9,"size":4e9,"colorClass":1},
      {"id":2,"fpgaLatency":2,"cpuLatency":9,"size":4e9,"colorClass":2},
      {"id":3,"fpgaLatency":3,"cpuLatency":9,"size":4e9,"colorClass":3},
      {"id":6,"fpgaLatency":1,"cpuLatency":9,"colorClass":3,"isBackwardNode":true},
      {"id":5,"fpgaLatency":1,"cpuLatency":9,"colorClass":2,"isBackwardNode":true},
      {"id":4,"fpgaLatency":1,"cpuLatency":9,"colorClass":9,"isBackwardNode":true}],
      "edges":[{"sourceId":1,"destId":2,"cost":0.5},{"sourceId":2,"destId":3,"cost":0.25},
      {"sourceId":1,"destId":3,"cost":0.5},{"sourceId":3,"destId":6,"cost":0.125},
      {"sourceId":6,"destId":5,"cost":0.5},{"sourceId":5,"destId":4,"cost":0.25}]})"};
}

std::vector<std::string> PiperSamples() {
  return {R"({"maxMemoryPerDevice":100,"maxDevices":3,"bandwidth":10,"mbsInBatch":6,"nodes":[
      {"id":0,"name":"a","TMPCs":{"1":[{"id":"vanilla","timePerSample":2,"parameterSize":3,
       "memoryUsageA":4,"memoryUsageB":5,"syncTimeFw":{},"syncTimeBw":{"1":0.5}},
       {"id":"activation recomp","timePerSample":3,"parameterSize":3,"memoryUsageA":1,
       "memoryUsageB":5,"syncTimeFw":{},"syncTimeBw":{"1":0.5}}]}},
      {"id":1,"name":"b","TMPCs":{"1":[{"id":"vanilla","timePerSample":4,"parameterSize":1,
       "memoryUsageA":2,"memoryUsageB":1,"syncTimeFw":{"0":0.25},"syncTimeBw":{}}]}}],
      "edges":[{"sourceId":0,"destId":1,"communicationCost":2}]})"};
}

}  // namespace

bool FeedCostGraph(std::string_view text) {
  const absl::StatusOr<CostGraph> graph = CostGraphFromJson(text);
  if (!graph.ok()) {
    RequireRefusal(graph.status());
    return false;
  }
  RequireOk(Validate(*graph));
  const absl::StatusOr<CostGraph> again = CostGraphFromJson(ToJson(*graph));
  RequireOk(again.status());
  Require(*again == *graph, "writing and reading changes the graph");
  if (graph->nodes.size() > kMaxNodes) return true;

  PartitionOptions options;
  options.effort = Little();
  options.allow_empty_stages = text.size() % 2 == 0;
  options.objective = text.size() % 4 < 2 ? Objective::kSum : Objective::kOverlap;
  options.bytes_per_ms = 10;
  options.num_stages = 1 + static_cast<int>(text.size() % 3);
  options.in_flight = {1, 2, 3};
  if (text.size() % 5 == 0) options.memory_bytes = 200;
  const absl::StatusOr<Partition> partition = PartitionGraph(*graph, options);
  if (partition.ok()) {
    RequireOk(VerifyPartition(*graph, *partition, options));
  } else {
    RequireRefusal(partition.status());
  }
  return true;
}

bool FeedDnnInstance(std::string_view text) {
  (void)LooksLikeDnnInstance(text);
  const absl::StatusOr<DnnInstance> instance = DnnInstanceFromJson(text);
  if (!instance.ok()) {
    RequireRefusal(instance.status());
    return false;
  }
  if (instance->nodes.size() > kMaxNodes) return true;
  DnnOptions options;
  options.effort = Little();
  const absl::StatusOr<DnnPartition> partition = PartitionDnnInstance(*instance, options);
  if (!partition.ok()) {
    RequireRefusal(partition.status());
    return true;
  }
  const std::vector<int>& stage = partition->partition.stage_of_node;
  Require(stage.size() == instance->nodes.size(), "not every node has a stage");
  const auto num_cpus = std::count(partition->is_cpu.begin(), partition->is_cpu.end(), true);
  Require(num_cpus <= instance->max_cpus, "too many CPUs");
  Require(static_cast<int>(partition->is_cpu.size()) - num_cpus <= instance->max_accelerators,
          "too many accelerators");
  for (const DnnEdge& edge : instance->edges) {
    const bool forward = !instance->nodes[edge.from].backward && !instance->nodes[edge.to].backward;
    Require(!forward || stage[edge.from] <= stage[edge.to], "an edge goes back");
  }
  const std::vector<DnnLoad> loads = DnnLoads(*instance, *partition, options.objective);
  for (size_t s = 0; s < loads.size(); ++s) {
    Require(partition->is_cpu[s] || loads[s].bytes <= instance->accelerator_bytes,
            "over the memory");
    Require(loads[s].load_ms <= partition->partition.value, "a stage is over the value");
  }
  Require(partition->partition.bound <= partition->partition.value, "the bound is over the value");
  Require(!ToJson(*instance, *partition, options.objective).empty(), "nothing is written");
  return true;
}

bool FeedPiperInstance(std::string_view text) {
  (void)LooksLikePiperInstance(text);
  const absl::StatusOr<PiperInstance> instance = PiperInstanceFromJson(text);
  if (!instance.ok()) {
    RequireRefusal(instance.status());
    return false;
  }
  if (instance->nodes.size() > kMaxNodes || instance->max_devices > 64) return true;
  const absl::StatusOr<PiperPlan> plan = PlanPiperInstance(*instance);
  if (!plan.ok()) {
    RequireRefusal(plan.status());
    return true;
  }
  RequireOk(VerifyPlan(*instance, *plan));
  Require(plan->bound <= plan->value, "the bound is over the value");
  Require(!ToJson(*instance, *plan).empty(), "nothing is written");
  return true;
}

const std::vector<Reader>& Readers() {
  static const auto* const readers =
      new std::vector<Reader>{{"cost_graph", FeedCostGraph, CostGraphSamples},
                              {"dnn_instance", FeedDnnInstance, DnnSamples},
                              {"piper_instance", FeedPiperInstance, PiperSamples, 5'000}};
  return *readers;
}

}  // namespace autopart::testing
