// The partitioner against exhaustive search on small random graphs: always valid, equal to the
// best, and it knows so.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/lower_bound.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "tests/testing/graphs.h"

namespace autopart {
namespace {

using ::autopart::testing::RandomGraph;
using ::autopart::testing::RandomGraphOptions;
using ::testing::HasSubstr;

bool Allowed(const CostGraph& graph, const std::vector<int>& stage_of_node,
             const PartitionOptions& options) {
  for (const CostValue& value : graph.values) {
    for (const int consumer : value.consumers) {
      if (value.producer != kModelInput &&
          stage_of_node[value.producer] > stage_of_node[consumer]) {
        return false;
      }
    }
  }
  for (size_t a = 0; a < graph.nodes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (graph.nodes[a].group != kNoGroup && graph.nodes[a].group == graph.nodes[b].group &&
          stage_of_node[a] != stage_of_node[b]) {
        return false;
      }
    }
  }
  for (int s = 0; s < options.num_stages; ++s) {
    const bool used = std::count(stage_of_node.begin(), stage_of_node.end(), s) > 0;
    if (!used && !options.allow_empty_stages) return false;
    // Empty stages stand at the end: the first holds the model's inputs.
    if (used && s > 0 && std::count(stage_of_node.begin(), stage_of_node.end(), s - 1) == 0) {
      return false;
    }
  }
  return true;
}

struct Best {
  std::optional<double> value;  // empty where nothing fits
  int64_t least_memory = std::numeric_limits<int64_t>::max();
};

Best FindBest(const CostGraph& graph, const PartitionOptions& options) {
  Best best;
  std::vector<int> stage_of_node(graph.nodes.size());
  while (true) {
    if (Allowed(graph, stage_of_node, options)) {
      const PartitionMetrics metrics = ComputeMetrics(graph, stage_of_node, options);
      int64_t memory = 0;
      for (const StageMetrics& stage : metrics.stages)
        memory = std::max(memory, stage.memory_bytes);
      best.least_memory = std::min(best.least_memory, memory);
      if (memory <= options.memory_bytes && metrics.max_load_ms < best.value.value_or(1e300)) {
        best.value = metrics.max_load_ms;
      }
    }
    size_t digit = 0;
    while (digit < stage_of_node.size() && ++stage_of_node[digit] == options.num_stages) {
      stage_of_node[digit++] = 0;
    }
    if (digit == stage_of_node.size()) return best;
  }
}

struct Tally {
  int solved = 0, optimal = 0, proven = 0, refused = 0, wrongly_refused = 0;
  double worst = 1;
};

void Check(const CostGraph& graph, const PartitionOptions& options, Tally& tally) {
  const auto [best, least_memory] = FindBest(graph, options);
  const absl::StatusOr<Partition> partition = PartitionGraph(graph, options);
  if (!partition.ok()) {
    ++tally.refused;
    if (best) ++tally.wrongly_refused;
    const bool known = partition.status().code() == absl::StatusCode::kResourceExhausted ||
                       partition.status().code() == absl::StatusCode::kInvalidArgument;
    EXPECT_TRUE(known) << partition.status();
    if (partition.status().code() == absl::StatusCode::kResourceExhausted) {
      EXPECT_THAT(
          std::string(partition.status().message()),
          HasSubstr(absl::StrCat("The least memory that works is ", least_memory, " bytes")));
    }
    return;
  }
  ASSERT_TRUE(best.has_value()) << "a partition where there is none";
  EXPECT_TRUE(VerifyPartition(graph, *partition, options).ok())
      << VerifyPartition(graph, *partition, options);
  EXPECT_GE(partition->value, *best * (1 - 1e-9));
  EXPECT_LE(partition->bound, *best * (1 + 1e-9)) << partition->bound_kind;
  EXPECT_TRUE(!partition->optimal || partition->value <= *best * (1 + 1e-9));
  ++tally.solved;
  tally.proven += partition->optimal;
  tally.optimal += partition->value <= *best * (1 + 1e-9);
  tally.worst = std::max(tally.worst, *best > 0 ? partition->value / *best : 1);
}

struct Family {
  const char* name;
  RandomGraphOptions graph;
  Objective objective;
  bool memory_limit;
  bool allow_empty;
};

class BruteForce : public ::testing::TestWithParam<Family> {};

TEST_P(BruteForce, IsMatchedAndProven) {
  const Family& family = GetParam();
  Tally tally;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomGraphOptions graph_options = family.graph;
    graph_options.num_nodes = 5 + static_cast<int>(seed % 5);
    const CostGraph graph = RandomGraph(seed, graph_options);
    PartitionOptions options;
    options.num_stages = 2 + static_cast<int>(seed % 3);
    options.objective = family.objective;
    options.bytes_per_ms = 10;
    options.latency_ms = 0.25;
    options.in_flight = {1, 2, 3};
    options.allow_empty_stages = family.allow_empty;
    if (family.memory_limit) options.memory_bytes = 150 + 20 * static_cast<int>(seed % 20);
    Check(graph, options, tally);
  }
  RecordProperty("solved", tally.solved);
  RecordProperty("optimal", tally.optimal);
  std::printf(
      "%-16s %d solved, %d optimal, %d proven, worst ratio %.4f, %d refused, %d of them wrongly\n",
      family.name, tally.solved, tally.optimal, tally.proven, tally.worst, tally.refused,
      tally.wrongly_refused);
  EXPECT_GE(tally.solved, 20);
  EXPECT_EQ(tally.optimal, tally.solved);
  EXPECT_EQ(tally.proven, tally.solved);
  EXPECT_EQ(tally.wrongly_refused, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Families, BruteForce,
    ::testing::Values(Family{"Sum", {}, Objective::kSum, false, false},
                      Family{"Overlap", {}, Objective::kOverlap, false, false},
                      Family{"EmptyAllowed", {}, Objective::kSum, false, true},
                      Family{"Groups", {8, true, false}, Objective::kSum, false, false},
                      Family{"MemorySum", {8, false, true}, Objective::kSum, true, false},
                      Family{"MemoryOverlap", {8, true, true}, Objective::kOverlap, true, false},
                      Family{"MemoryEmpty", {8, false, true}, Objective::kOverlap, true, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace autopart
