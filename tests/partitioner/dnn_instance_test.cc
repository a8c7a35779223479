#include "partitioner/dnn_instance.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/read_file.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;

DnnInstance Load(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  absl::StatusOr<DnnInstance> instance = DnnInstanceFromJson(text.value_or(""));
  EXPECT_TRUE(instance.ok()) << instance.status();
  return instance.value_or(DnnInstance());
}

std::string Data(const std::string& name) {
  return absl::StrCat(AUTOPART_SOURCE_DIR, "/tests/data/dnn-partitioning/", name);
}

// Everything that the published rule asks, checked from its definition.
void ExpectValid(const DnnInstance& instance, const DnnPartition& partition) {
  const std::vector<int>& stage = partition.partition.stage_of_node;
  ASSERT_EQ(stage.size(), instance.nodes.size());
  const auto cpus = std::count(partition.is_cpu.begin(), partition.is_cpu.end(), true);
  EXPECT_LE(cpus, instance.max_cpus);
  EXPECT_LE(static_cast<int>(partition.is_cpu.size()) - cpus, instance.max_accelerators);
  for (size_t a = 0; a < instance.nodes.size(); ++a) {
    ASSERT_GE(stage[a], 0);
    EXPECT_TRUE(partition.is_cpu[stage[a]] || instance.nodes[a].on_accelerator);
    for (size_t b = 0; b < a; ++b) {
      if (instance.nodes[a].color >= 0 && instance.nodes[a].color == instance.nodes[b].color) {
        EXPECT_EQ(stage[a], stage[b]);
      }
    }
  }
  for (const DnnEdge& edge : instance.edges) {
    if (!instance.nodes[edge.from].backward && !instance.nodes[edge.to].backward) {
      EXPECT_LE(stage[edge.from], stage[edge.to]);
    }
  }
  const std::vector<DnnLoad> loads = DnnLoads(instance, partition, Objective::kSum);
  double value = 0;
  for (size_t s = 0; s < loads.size(); ++s) {
    value = std::max(value, loads[s].load_ms);
    EXPECT_TRUE(partition.is_cpu[s] || loads[s].bytes <= instance.accelerator_bytes);
  }
  EXPECT_DOUBLE_EQ(partition.partition.value, value);
  EXPECT_LE(partition.partition.bound, value);
}

TEST(DnnInstance, ReachesTheProvenOptimumOfPublicGraphs) {
  const std::vector<std::pair<std::string, double>> rows = {
      {"bert24_inference.json", 17.78990625},
      {"bert24_training.json.gz", 41.7458125},
      {"gnmt_inference.json.gz", 32.9106582},
      {"resnet50_inference.json.gz", 33.77466602},
  };
  for (const auto& [file, optimum] : rows) {
    SCOPED_TRACE(file);
    const DnnInstance instance = Load(Data(file));
    absl::StatusOr<DnnPartition> partition = PartitionDnnInstance(instance, {});
    ASSERT_TRUE(partition.ok()) << partition.status();
    ExpectValid(instance, *partition);
    EXPECT_NEAR(partition->partition.value, optimum, 1e-6 * optimum);
    EXPECT_EQ(ToJson(instance, *partition, Objective::kSum),
              ToJson(instance, *PartitionDnnInstance(instance, {}), Objective::kSum));
  }
}

TEST(DnnInstance, AllPublishedGraphsAreProvenOptimal) {
  const std::filesystem::path folder =
      std::filesystem::path(AUTOPART_SOURCE_DIR) /
      "../shared/partition-data/dnn-partitioning/throughput-inputs";
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "SKIPPED: no published graphs in " << folder
                 << "; the four in tests/data stand in for them";
  }
  const std::vector<std::pair<const char*, double>> rows = {
      {"LayerGraphs/bert24_inference", 17.78990625},
      {"LayerGraphs/bert24_training", 41.7458125},
      {"LayerGraphs/gnmt_inference", 32.9106582},
      {"LayerGraphs/gnmt_training", 107.0044141},
      {"LayerGraphs/inceptionv3_inference", 51.551864},
      {"LayerGraphs/inceptionv3_training", 122.761616},
      {"LayerGraphs/resnet50_inference", 33.77466602},
      {"LayerGraphs/resnet50_training", 78.6318125},
      {"OperatorGraphs/bert_l-3_inference", 27.91856768},
      {"OperatorGraphs/bert_l-3_training", 65.30314912},
      {"OperatorGraphs/bert_l-6_inference", 29.57950581},
      {"OperatorGraphs/bert_l-6_training", 72.86496632},
      {"OperatorGraphs/bert_l-12_inference", 147.4779844},
      {"OperatorGraphs/bert_L-12_training", 437.9976379},
      {"OperatorGraphs/resnet50_inference", 124.3488498},
      {"OperatorGraphs/resnet50_training", 255.1944165},
  };
  for (const auto& [file, optimum] : rows) {
    SCOPED_TRACE(file);
    const DnnInstance instance = Load((folder / absl::StrCat(file, ".json")).string());
    const DnnOptions options;
    absl::StatusOr<DnnPartition> partition = PartitionDnnInstance(instance, options);
    ASSERT_TRUE(partition.ok()) << partition.status();
    ExpectValid(instance, *partition);
    EXPECT_NEAR(partition->partition.value, optimum, optimum * 1e-8);
    EXPECT_TRUE(partition->partition.optimal);
  }
}

// Forward nodes with backward twins, some without, an orphan or two, a few CPU-only nodes.
DnnInstance RandomInstance(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
  DnnInstance instance;
  const int forward = 4 + below(3);
  const bool training = below(2) == 0;
  for (int n = 0; n < forward; ++n) {
    DnnNode& node = instance.nodes.emplace_back();
    node.id = absl::StrCat(n);
    node.accelerator_ms = 1 + below(8);
    node.cpu_ms = node.accelerator_ms * (1 + below(4));
    node.bytes = below(10);
    node.output_ms = below(4);
    node.on_accelerator = below(12) > 0;
    node.color = n;
    for (int from = 0; from < n; ++from) {
      if (below(3) == 0 || from == n - 1) instance.edges.push_back({from, n});
    }
  }
  if (training) {
    for (int n = 0; n < forward; ++n) {
      DnnNode node = instance.nodes[n];
      node.id = absl::StrCat(forward + n);
      node.backward = true;
      if (below(5) == 0) node.color = forward + n;  // an orphan
      instance.nodes.push_back(node);
      instance.edges.push_back({n, forward + n});
    }
    const std::vector<DnnEdge> edges = instance.edges;
    for (const DnnEdge& edge : edges) {
      if (edge.to < forward) instance.edges.push_back({forward + edge.to, forward + edge.from});
    }
  }
  instance.max_accelerators = 1 + below(2);
  instance.max_cpus = below(3);
  instance.accelerator_bytes = below(2) == 0 ? 1e9 : 15 + below(30);
  return instance;
}

// May the edge's ends be on these stages? Forward runs down the chain. Backward runs up it, which
// is left to say for classes without forward nodes only: the others are where their forward nodes
// are.
bool IsInOrder(const DnnInstance& instance, const DnnEdge& edge, const std::vector<int>& stage) {
  const auto follows_forward = [&](int n) {
    return std::any_of(instance.nodes.begin(), instance.nodes.end(), [&](const DnnNode& node) {
      return !node.backward && node.color == instance.nodes[n].color;
    });
  };
  const bool from_backward = instance.nodes[edge.from].backward;
  const bool to_backward = instance.nodes[edge.to].backward;
  if (from_backward != to_backward) return true;
  if (!from_backward) return stage[edge.from] <= stage[edge.to];
  if (follows_forward(edge.from) && follows_forward(edge.to)) return true;
  return stage[edge.from] >= stage[edge.to];
}

// The least maximum load over all assignments of classes to devices in order, or negative if none
// is allowed.
double BestLoad(const DnnInstance& instance) {
  const int devices = instance.max_accelerators + instance.max_cpus;
  std::vector<int> colors;
  for (const DnnNode& node : instance.nodes) colors.push_back(node.color);
  std::sort(colors.begin(), colors.end());
  colors.erase(std::unique(colors.begin(), colors.end()), colors.end());
  // Places of the chain in all orders of the devices' kinds.
  std::vector<bool> is_cpu(devices);
  for (int d = 0; d < instance.max_cpus; ++d) is_cpu[devices - 1 - d] = true;
  double best = -1;
  do {
    std::vector<int> stage_of_color(colors.size());
    while (true) {
      DnnPartition partition;
      partition.is_cpu = is_cpu;
      for (const DnnNode& node : instance.nodes) {
        const auto it = std::lower_bound(colors.begin(), colors.end(), node.color);
        partition.partition.stage_of_node.push_back(stage_of_color[it - colors.begin()]);
      }
      const std::vector<int>& stage = partition.partition.stage_of_node;
      bool allowed = true;
      for (size_t n = 0; n < instance.nodes.size(); ++n) {
        allowed = allowed && (is_cpu[stage[n]] || instance.nodes[n].on_accelerator);
      }
      for (const DnnEdge& edge : instance.edges) {
        allowed = allowed && IsInOrder(instance, edge, stage);
      }
      if (allowed) {
        double value = 0;
        const std::vector<DnnLoad> loads = DnnLoads(instance, partition, Objective::kSum);
        for (int s = 0; s < devices; ++s) {
          value = std::max(value, loads[s].load_ms);
          allowed = allowed && (is_cpu[s] || loads[s].bytes <= instance.accelerator_bytes);
        }
        if (allowed && (best < 0 || value < best)) best = value;
      }
      size_t digit = 0;
      while (digit < stage_of_color.size() && ++stage_of_color[digit] == devices) {
        stage_of_color[digit++] = 0;
      }
      if (digit == stage_of_color.size()) break;
    }
  } while (std::next_permutation(is_cpu.begin(), is_cpu.end()));
  return best;
}

TEST(DnnInstance, MatchesBruteForceWithCpusMemoryAndBackwardNodes) {
  int solved = 0, optimal = 0, refused = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const DnnInstance instance = RandomInstance(seed);
    const double best = BestLoad(instance);
    absl::StatusOr<DnnPartition> partition = PartitionDnnInstance(instance, {});
    if (!partition.ok()) {
      EXPECT_EQ(partition.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_LT(best, 0) << partition.status();
      ++refused;
      continue;
    }
    ExpectValid(instance, *partition);
    EXPECT_GE(partition->partition.value, best * (1 - 1e-9));
    EXPECT_LE(partition->partition.bound, best * (1 + 1e-9));
    ++solved;
    optimal += partition->partition.value <= best * (1 + 1e-9);
  }
  std::printf("%d solved, %d optimal, %d refused\n", solved, optimal, refused);
  EXPECT_GE(solved, 40);
  EXPECT_EQ(optimal, solved);
}

constexpr char kSmall[] = R"({"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 100,
  "nodes": [{"id": "a", "fpgaLatency": 1, "cpuLatency": 10, "supportedOnFpga": 1, "size": 4},
            {"id": 7, "fpgaLatency": 2, "cpuLatency": 20, "supportedOnFpga": true}],
  "edges": [{"sourceId": "a", "destId": 7, "cost": 0.5}]})";

TEST(DnnInstance, KeepsIdsAsTheyAreWritten) {
  ASSERT_TRUE(LooksLikeDnnInstance(kSmall));
  absl::StatusOr<DnnInstance> instance = DnnInstanceFromJson(kSmall);
  ASSERT_TRUE(instance.ok()) << instance.status();
  absl::StatusOr<DnnPartition> partition = PartitionDnnInstance(*instance, {});
  ASSERT_TRUE(partition.ok()) << partition.status();
  EXPECT_EQ(partition->partition.value, 2.5);
  EXPECT_EQ(ToJson(*instance, *partition, Objective::kSum),
            R"({"fpgas":[{"load":1.5,"nodes":["a"]},{"load":2.5,"nodes":[7]}],)"
            R"("cpus":[{"load":0.0,"nodes":[]}],"maxLoad":2.5})");
}

TEST(DnnInstance, RefusesBrokenInstances) {
  const std::string good = kSmall;
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::pair<std::string, const char*>> rows = {
      {"{\"maxFPGAs\": 2", "not JSON"},
      {replaced("\"maxFPGAs\": 2", "\"maxFPGAs\": \"two\""), "maxFPGAs: want a whole number"},
      {replaced("\"maxFPGAs\": 2", "\"maxFPGAs\": -2"), "maxFPGAs: negative"},
      {replaced("\"id\": 7", "\"id\": \"a\""), "nodes[1].id: \"a\" is there twice"},
      {replaced("\"id\": 7,", ""), "nodes[1].id: missing"},
      {replaced("\"fpgaLatency\": 2", "\"fpgaLatency\": -2"), "nodes[1].fpgaLatency: negative"},
      {replaced("\"destId\": 7", "\"destId\": 8"), "edges[0].destId: there is no node 8"},
      {replaced("\"destId\": 7", "\"destId\": \"a\""), "to itself"},
      {replaced("0.5}", "0.5}, {\"sourceId\": 7, \"destId\": \"a\", \"cost\": 1}"), "cycle"},
      {replaced("0.5}", "0.5}, {\"sourceId\": \"a\", \"destId\": 7, \"cost\": 1}"),
       "all edges of a node cost the same"},
      {R"({"maxFPGAs": 1, "maxSizePerFPGA": 1, "nodes": [], "edges": []})", "there are none"},
  };
  for (const auto& [text, message] : rows) {
    const absl::StatusOr<DnnInstance> instance = DnnInstanceFromJson(text);
    EXPECT_EQ(instance.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(instance.status().message()), HasSubstr(message));
  }
}

TEST(DnnInstance, SaysWhatDoesNotFit) {
  absl::StatusOr<DnnInstance> instance = DnnInstanceFromJson(kSmall);
  instance->max_cpus = 0;
  instance->accelerator_bytes = 3;
  const absl::Status status = PartitionDnnInstance(*instance, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node \"a\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 bytes are missing"));
  instance->nodes[1].on_accelerator = false;
  EXPECT_THAT(std::string(PartitionDnnInstance(*instance, {}).status().message()),
              HasSubstr("node 7 or one that stays with it runs on no accelerator"));
}

// Nodes 0 and 2 of a chain run on a CPU only: with one CPU, node 1 has to join them there.
TEST(DnnInstance, OneCpuIsOneStretchOfThePipeline) {
  DnnInstance instance;
  for (int n = 0; n < 3; ++n) {
    DnnNode& node = instance.nodes.emplace_back();
    node.id = absl::StrCat(n);
    node.accelerator_ms = node.cpu_ms = 1;
    node.on_accelerator = n == 1;
    if (n > 0) instance.edges.push_back({n - 1, n});
  }
  instance.max_accelerators = 2;
  instance.max_cpus = 1;
  instance.accelerator_bytes = 1;
  absl::StatusOr<DnnPartition> together = PartitionDnnInstance(instance, {});
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_EQ(together->partition.value, 3);  // all on the CPU
  instance.max_cpus = 2;
  EXPECT_EQ(PartitionDnnInstance(instance, {})->partition.value, 1);
}

}  // namespace
}  // namespace autopart
