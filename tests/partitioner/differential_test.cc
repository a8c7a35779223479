// The partitioner against trying all partitions, every option alone and in pairs: on random graphs
// of up to twelve nodes, and on all graphs of up to five (slow: seven). The value is the optimum,
// the bound is never above it, and what is refused does not fit.
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "tests/testing/all_dags.h"
#include "tests/testing/brute_force.h"
#include "tests/testing/graphs.h"
#include "tests/testing/seed.h"

namespace autopart {
namespace {

using ::autopart::testing::BestPartition;
using ::autopart::testing::ForEachDag;
using ::autopart::testing::RandomGraph;
using ::autopart::testing::Replay;
using ::autopart::testing::Seeds;
using ::autopart::testing::TestRandom;

struct Tally {
  int solved = 0, best = 0, proven = 0, refused = 0;
};

// `sets`: what a stage may recompute.
void Compare(const CostGraph& graph, const PartitionOptions& options,
             const testing::RecomputeSets& sets, Tally& tally) {
  const std::optional<Partition> best = BestPartition(graph, options, sets);
  const absl::StatusOr<Partition> found = PartitionGraph(graph, options);
  if (!found.ok()) {
    ++tally.refused;
    EXPECT_FALSE(best.has_value()) << found.status() << "\nbut " << ToJson(*best);
    EXPECT_TRUE(absl::IsResourceExhausted(found.status()) ||
                absl::IsInvalidArgument(found.status()))
        << found.status();
    return;
  }
  ASSERT_TRUE(best.has_value()) << "a partition where there is none: " << ToJson(*found);
  const absl::Status valid = VerifyPartition(graph, *found, options);
  EXPECT_TRUE(valid.ok()) << valid;
  const double optimum = best->value;
  EXPECT_GE(found->value, optimum * (1 - 1e-9)) << "better than the best";
  EXPECT_LE(found->bound, optimum * (1 + 1e-9)) << found->bound_kind;
  EXPECT_TRUE(!found->optimal || found->value <= optimum * (1 + 1e-9))
      << "said to be optimal: " << found->value << ", the best is " << optimum;
  ++tally.solved;
  tally.best += found->value <= optimum * (1 + 1e-9);
  tally.proven += found->optimal;
  if (found->value > optimum * (1 + 1e-9)) {
    std::printf("  %.6g for %.6g (%s)\n", found->value, optimum, found->bound_kind.c_str());
  }
}

std::vector<std::vector<int>> Nothing(const std::vector<int>&) { return {{}}; }
std::vector<std::vector<int>> Everything(const std::vector<int>& nodes) { return {nodes}; }

enum Option {
  kMemory,
  kRecompute,
  kReplicas,
  kTypes,
  kLinks,
  kOverlap,
  kEmpty,
  kGroups,
  kNumOptions
};
constexpr const char* kNames[] = {"Memory", "Recompute", "Replicas", "Types",
                                  "Links",  "Overlap",   "Empty",    "Groups"};

struct Pair {
  int first, second;  // equal: one option alone
  bool Has(Option option) const { return first == option || second == option; }
};

std::vector<Pair> Pairs() {
  std::vector<Pair> pairs;
  for (int a = 0; a < kNumOptions; ++a) {
    for (int b = a; b < kNumOptions; ++b) pairs.push_back({a, b});
  }
  return pairs;
}

bool HasDevices(const Pair& pair) { return pair.Has(kReplicas) || pair.Has(kTypes); }

bool CountsMemory(const Pair& pair) { return pair.Has(kMemory) || pair.Has(kRecompute); }

PartitionOptions RandomOptions(const Pair& pair, TestRandom& random) {
  PartitionOptions options;
  options.num_stages = 2 + random.Below(2);
  options.objective = pair.Has(kOverlap) ? Objective::kOverlap : Objective::kSum;
  options.bytes_per_ms = 10;
  options.latency_ms = random.OneIn(2) ? 0.25 : 0;
  options.in_flight = {1, 2, 3};
  options.allow_empty_stages = pair.Has(kEmpty);
  if (pair.Has(kMemory)) options.memory_bytes = 100 + 20 * random.Below(25);
  if (pair.Has(kRecompute)) options.recompute = Recompute::kAll;
  if (pair.Has(kReplicas) && !pair.Has(kTypes)) options.num_devices = 3 + random.Below(3);
  if (pair.Has(kTypes)) {
    for (const double speed : {1.0, 0.5 + 0.25 * random.Below(8)}) {
      DeviceType& type = options.device_types.emplace_back();
      type.count = 1 + random.Below(pair.Has(kReplicas) ? 3 : 2);
      type.speed = speed;
      if (pair.Has(kMemory)) type.memory_bytes = 100 + 20 * random.Below(25);
    }
    const int devices = options.TotalDevices();
    // Without replicas as many stages as devices.
    if (!pair.Has(kReplicas) || devices < options.num_stages) options.num_stages = devices;
  }
  if (HasDevices(pair) && random.OneIn(2)) {
    options.micro_batches = 6;
    options.all_reduce_bytes_per_ms = 20;
  }
  if (pair.Has(kReplicas) && random.OneIn(3) && !pair.Has(kLinks)) options.num_stages = 0;
  for (int s = 0; pair.Has(kLinks) && s + 1 < options.num_stages; ++s) {
    options.link_speeds.push_back(0.25 * (1 + random.Below(8)));
  }
  return options;
}

void CompareRandomGraphs(const Pair& pair, int num_graphs, int most_nodes) {
  Tally tally;
  for (const uint64_t seed : Seeds(0, num_graphs)) {
    SCOPED_TRACE(Replay(seed));
    TestRandom random(seed * 64 + 7);
    const CostGraph graph = RandomGraph(seed, {.num_nodes = 3 + random.Below(most_nodes - 2),
                                               .groups = pair.Has(kGroups),
                                               .memory = CountsMemory(pair)});
    Compare(graph, RandomOptions(pair, random), pair.Has(kRecompute) ? Everything : Nothing, tally);
  }
  std::printf("%d solved: %d best, %d proven; %d refused\n", tally.solved, tally.best, tally.proven,
              tally.refused);
  EXPECT_EQ(tally.best, tally.solved);
  EXPECT_TRUE(std::getenv("AUTOPART_SEED") != nullptr || tally.solved > num_graphs / 3);
}

class Differential : public ::testing::TestWithParam<Pair> {};

TEST_P(Differential, TheValueIsTheOptimum) {
  const bool is_slow_to_try = HasDevices(GetParam()) || GetParam().Has(kRecompute);
  CompareRandomGraphs(GetParam(), 60, is_slow_to_try ? 8 : 12);
}

std::string NameOf(const Pair& pair) {
  return pair.first == pair.second ? std::string(kNames[pair.first])
                                   : absl::StrCat(kNames[pair.first], kNames[pair.second]);
}

INSTANTIATE_TEST_SUITE_P(Options, Differential, ::testing::ValuesIn(Pairs()),
                         [](const auto& info) { return NameOf(info.param); });

class DifferentialSlow : public ::testing::TestWithParam<Pair> {};

TEST_P(DifferentialSlow, TheValueIsTheOptimumOfUpToTwelveNodes) {
  CompareRandomGraphs(GetParam(), 200, 12);
}

INSTANTIATE_TEST_SUITE_P(Options, DifferentialSlow, ::testing::ValuesIn(Pairs()),
                         [](const auto& info) { return NameOf(info.param); });

// Each graph under the options that `pairs_of` says.
void CompareAllGraphs(int num_nodes, const std::function<std::vector<Pair>(int nth)>& pairs_of) {
  Tally tally;
  int nth = 0;
  const int num_graphs = ForEachDag(num_nodes, [&](uint32_t edges) {
    for (const Pair& pair : pairs_of(nth++)) {
      SCOPED_TRACE(absl::StrCat(num_nodes, " nodes, edges ", edges, ", ", NameOf(pair)));
      TestRandom random(edges);
      const CostGraph graph = RandomGraph(edges, {.num_nodes = num_nodes,
                                                  .groups = pair.Has(kGroups),
                                                  .memory = CountsMemory(pair),
                                                  .edges = edges});
      Compare(graph, RandomOptions(pair, random), pair.Has(kRecompute) ? Everything : Nothing,
              tally);
    }
  });
  std::printf("%d nodes: %d graphs; %d solved: %d best, %d proven; %d refused\n", num_nodes,
              num_graphs, tally.solved, tally.best, tally.proven, tally.refused);
  // oeis.org/A003087
  EXPECT_EQ(num_graphs, std::vector<int>({1, 1, 2, 6, 31, 302, 5984, 243668})[num_nodes]);
  EXPECT_EQ(tally.best, tally.solved);
}

TEST(AllGraphs, OfUpToFourNodesAreSolvedUnderEveryPairOfOptions) {
  for (int num_nodes = 1; num_nodes <= 4; ++num_nodes) {
    CompareAllGraphs(num_nodes, [](int) { return Pairs(); });
  }
}

std::vector<Pair> PairsInTurn(int nth) { return {Pairs()[nth % Pairs().size()]}; }

TEST(AllGraphs, OfFiveNodesAreSolvedUnderOptionsInTurn) { CompareAllGraphs(5, PairsInTurn); }

TEST(AllGraphsSlow, OfUpToSixNodesAreSolvedUnderEveryPairOfOptions) {
  for (int num_nodes = 5; num_nodes <= 6; ++num_nodes) {
    CompareAllGraphs(num_nodes, [](int) { return Pairs(); });
  }
}

TEST(AllGraphsSlow, OfSevenNodesAreSolvedUnderOptionsInTurn) { CompareAllGraphs(7, PairsInTurn); }

}  // namespace
}  // namespace autopart
