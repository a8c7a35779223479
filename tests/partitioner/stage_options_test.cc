// Replicas and recompute against exhaustive search: never better than the best, always valid by the
// referee, no bound above it, and nearly always equal to it.
#include <algorithm>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "partitioner/internal/recompute.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "tests/testing/brute_force.h"
#include "tests/testing/graphs.h"

namespace autopart {
namespace {

using ::autopart::testing::BestPartition;
using ::autopart::testing::GraphBuilder;
using ::autopart::testing::RandomGraph;
using ::autopart::testing::RandomGraphOptions;
using ::autopart::testing::RecomputeSets;
using ::autopart::testing::Subsets;

// What options.recompute lets a stage of these nodes choose.
RecomputeSets AllowedSets(const CostGraph& graph, Recompute recompute) {
  return [&graph, recompute](const std::vector<int>& nodes) -> std::vector<std::vector<int>> {
    if (recompute == Recompute::kAuto) return Subsets(nodes);
    if (recompute == Recompute::kAll) return {nodes};
    if (recompute == Recompute::kNone) return {{}};
    const internal::RecomputeLevels levels = internal::ChooseRecomputeLevels(graph, recompute);
    std::vector<int> cheap;
    for (const int n : nodes) {
      if (levels.level_of_node[n] <= 1) cheap.push_back(n);
    }
    return {cheap};
  };
}

struct Family {
  const char* name;
  Recompute recompute;
  int num_devices;
  int num_stages;
  bool allow_fewer;
  Objective objective;
  bool memory_limit;
  double least_optimal;  // share of the graphs where the best is found
};

class StageOptions : public ::testing::TestWithParam<Family> {};

TEST_P(StageOptions, AreNeverBeatenAndNearlyAlwaysMatched) {
  const Family& family = GetParam();
  int solved = 0, optimal = 0, proven = 0, refused = 0, wrongly_refused = 0;
  double worst = 1;
  for (uint64_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomGraphOptions graph_options{4 + static_cast<int>(seed % 3), seed % 4 == 3, true};
    const CostGraph graph = RandomGraph(seed, graph_options);
    PartitionOptions options;
    options.num_stages = family.num_stages;
    options.num_devices = family.num_devices;
    options.allow_empty_stages = family.allow_fewer;
    options.objective = family.objective;
    options.bytes_per_ms = 10;
    options.latency_ms = 0.25;
    options.in_flight = {1, 2, 3, 4};
    options.recompute = family.recompute;
    if (family.num_devices > 0 && seed % 2 == 0) {
      options.micro_batches = 12;
      options.all_reduce_bytes_per_ms = 20;
    }
    if (family.memory_limit) options.memory_bytes = 150 + 30 * static_cast<int>(seed % 20);
    const auto best = BestPartition(graph, options, AllowedSets(graph, family.recompute));
    const absl::StatusOr<Partition> partition = PartitionGraph(graph, options);
    if (!partition.ok()) {
      ++refused;
      wrongly_refused += best.has_value();
      EXPECT_TRUE(partition.status().code() == absl::StatusCode::kResourceExhausted ||
                  partition.status().code() == absl::StatusCode::kInvalidArgument)
          << partition.status();
      continue;
    }
    ASSERT_TRUE(best.has_value()) << "a partition where there is none";
    EXPECT_TRUE(VerifyPartition(graph, *partition, options).ok())
        << VerifyPartition(graph, *partition, options);
    EXPECT_GE(partition->value, best->value * (1 - 1e-9));
    EXPECT_LE(partition->bound, best->value * (1 + 1e-9)) << partition->bound_kind;
    EXPECT_TRUE(!partition->optimal || partition->value <= best->value * (1 + 1e-9));
    EXPECT_EQ(*PartitionFromJson(ToJson(*partition)), *partition);
    ++solved;
    proven += partition->optimal;
    optimal += partition->value <= best->value * (1 + 1e-9);
    worst = std::max(worst, best->value > 0 ? partition->value / best->value : 1);
  }
  std::printf(
      "%-22s %d solved, %d optimal, %d proven, worst ratio %.4f, %d refused, %d of them wrongly\n",
      family.name, solved, optimal, proven, worst, refused, wrongly_refused);
  EXPECT_GE(solved, 40);
  EXPECT_GE(optimal, family.least_optimal * solved);
  if (family.recompute != Recompute::kAuto) {
    EXPECT_EQ(proven, solved);
  }
  EXPECT_LE(wrongly_refused, 1);
}

constexpr Objective kSum = Objective::kSum, kOverlap = Objective::kOverlap;
INSTANTIATE_TEST_SUITE_P(
    Families, StageOptions,
    ::testing::Values(
        Family{"ReplicasAnyStages", Recompute::kNone, 5, 0, false, kSum, false, 0.95},
        Family{"ReplicasTwoStages", Recompute::kNone, 5, 2, false, kOverlap, false, 0.95},
        Family{"ReplicasFewerStages", Recompute::kNone, 5, 3, true, kSum, true, 0.95},
        Family{"ReplicasMemory", Recompute::kNone, 4, 0, false, kOverlap, true, 0.95},
        Family{"AllRecompute", Recompute::kAll, 0, 3, false, kSum, true, 0.95},
        Family{"CheapRecompute", Recompute::kCheap, 0, 3, false, kSum, true, 0.95},
        Family{"AutoRecompute", Recompute::kAuto, 0, 3, false, kSum, true, 0.7},
        Family{"AutoRecomputeReplicas", Recompute::kAuto, 4, 0, false, kOverlap, true, 0.7}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace autopart
