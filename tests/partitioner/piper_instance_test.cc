// Piper's form: what the reader refuses, what the referee catches, and plans against exhaustive
// search over cuts, replicas, tensor degrees and configurations.
#include "partitioner/piper_instance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace autopart {
namespace {

using Json = nlohmann::json;

Json Configuration(const std::string& id, double time, double a, double b) {
  return {{"id", id},
          {"timePerSample", time},
          {"parameterSize", 4.0},
          {"memoryUsageA", a},
          {"memoryUsageB", b},
          {"syncTimeFw", Json::object()},
          {"syncTimeBw", Json::object()}};
}

// 0 -> 1 -> 2, each with and without recompute.
Json ThreeNodes() {
  Json json = {{"maxDevices", 3},   {"maxMemoryPerDevice", 100.0}, {"mbsInBatch", 4},
               {"bandwidth", 10.0}, {"nodes", Json::array()},      {"edges", Json::array()}};
  for (int n = 0; n < 3; ++n) {
    Json configurations = {Configuration("vanilla", 3, 20, 10), Configuration("again", 4, 2, 28)};
    for (Json& configuration : configurations) {
      if (n > 0) configuration["syncTimeFw"][std::to_string(n - 1)] = 0.0;
      if (n < 2) configuration["syncTimeBw"][std::to_string(n + 1)] = 0.0;
    }
    json["nodes"].push_back({{"id", n}, {"name", "layer"}, {"TMPCs", {{"1", configurations}}}});
    if (n > 0) {
      json["edges"].push_back({{"sourceId", n - 1}, {"destId", n}, {"communicationCost", 5.0}});
    }
  }
  return json;
}

PiperInstance Read(const Json& json) {
  absl::StatusOr<PiperInstance> instance = PiperInstanceFromJson(json.dump());
  EXPECT_TRUE(instance.ok()) << instance.status();
  return instance.ok() ? *instance : PiperInstance();
}

TEST(PiperReader, SaysWhatIsWrongAndWhere) {
  struct Row {
    const char* name;
    std::function<void(Json&)> damage;
    const char* says;
  };
  const Row rows[] = {
      {"no nodes",
       [](Json& j) {
         j["nodes"] = Json::array();
         j["edges"] = Json::array();
       },
       "there are none"},
      {"no devices", [](Json& j) { j["maxDevices"] = 0; }, "maxDevices is 0"},
      {"too many devices", [](Json& j) { j["maxDevices"] = 1'000'000; }, "maxDevices"},
      {"no micro-batch", [](Json& j) { j["mbsInBatch"] = 0; }, "mbsInBatch is 0"},
      {"no bandwidth", [](Json& j) { j["bandwidth"] = 0.0; }, "bandwidth is 0"},
      {"negative memory", [](Json& j) { j["maxMemoryPerDevice"] = -1.0; }, "maxMemoryPerDevice"},
      {"no memory field", [](Json& j) { j.erase("maxMemoryPerDevice"); },
       "maxMemoryPerDevice: missing"},
      {"id twice", [](Json& j) { j["nodes"][1]["id"] = 0; }, "nodes[1].id: 0 is there twice"},
      {"dangling edge", [](Json& j) { j["edges"][0]["destId"] = 9; },
       "edges[0].destId: there is no node 9"},
      {"edge to itself", [](Json& j) { j["edges"][0]["destId"] = 0; }, "to itself"},
      {"negative edge", [](Json& j) { j["edges"][0]["communicationCost"] = -1.0; },
       "edges[0].communicationCost: negative"},
      {"no configurations", [](Json& j) { j["nodes"][2]["TMPCs"] = Json::object(); },
       "nodes[2].TMPCs: there is no configuration"},
      {"no tensor degree", [](Json& j) { j["nodes"][2]["TMPCs"]["two"] = Json::array(); },
       "'two' is no tensor degree"},
      {"negative time", [](Json& j) { j["nodes"][0]["TMPCs"]["1"][1]["timePerSample"] = -3.0; },
       "nodes[0].TMPCs.1[1].timePerSample"},
      {"overflowing memory",
       [](Json& j) {
         j["nodes"][0]["TMPCs"]["1"][0]["memoryUsageA"] = Json::parse("1e308").get<double>() * 10;
       },
       "memoryUsageA"},
      {"name twice", [](Json& j) { j["nodes"][0]["TMPCs"]["1"][1]["id"] = "vanilla"; },
       "'vanilla' is there twice"},
      {"no sync entry",
       [](Json& j) { j["nodes"][1]["TMPCs"]["1"][0]["syncTimeFw"] = Json::object(); },
       "nothing for the edge with node 0"},
      {"sync is text", [](Json& j) { j["nodes"][1]["TMPCs"]["1"][0]["syncTimeFw"]["0"] = "x"; },
       "want a number"},
      {"cycle",
       [](Json& j) {
         j["edges"].push_back({{"sourceId", 2}, {"destId", 0}, {"communicationCost", 1.0}});
         for (Json& c : j["nodes"][2]["TMPCs"]["1"]) c["syncTimeBw"]["0"] = 0.0;
         for (Json& c : j["nodes"][0]["TMPCs"]["1"]) c["syncTimeFw"]["2"] = 0.0;
       },
       "cycle"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Json json = ThreeNodes();
    row.damage(json);
    const absl::StatusOr<PiperInstance> instance = PiperInstanceFromJson(json.dump());
    ASSERT_FALSE(instance.ok());
    EXPECT_EQ(instance.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(instance.status().message()).find(row.says), std::string::npos)
        << instance.status();
  }
  EXPECT_FALSE(PiperInstanceFromJson("[1, 2").ok());
  EXPECT_TRUE(LooksLikePiperInstance(ThreeNodes().dump()));
}

TEST(PiperPlan, IsCountedAsDefined) {
  PiperInstance instance = Read(ThreeNodes());
  PiperPlan plan;
  plan.stages = {{{0}, {0}, 2, 1}, {{1, 2}, {1, 0}, 1, 1}};
  const std::vector<PiperStageMetrics> metrics = PiperMetrics(instance, plan);
  EXPECT_EQ(metrics[0].in_flight, 2);  // three replicas from here on, two of them here
  EXPECT_DOUBLE_EQ(metrics[0].compute, 1.5);
  EXPECT_DOUBLE_EQ(metrics[0].edges, 2 * 5.0 / 2 / 10);
  EXPECT_DOUBLE_EQ(metrics[0].all_reduce, 4 * 0.5 * 4 / 4 / 10);
  EXPECT_DOUBLE_EQ(metrics[0].memory_bytes, 2 * 20 + 10);
  EXPECT_DOUBLE_EQ(metrics[1].compute, 7);
  EXPECT_DOUBLE_EQ(metrics[1].memory_bytes, 2 + 28 + 20 + 10);
  plan.value = metrics[1].load;
  EXPECT_TRUE(VerifyPlan(instance, plan).ok()) << VerifyPlan(instance, plan);

  const auto breaks = [&](std::function<void(PiperPlan&)> damage) {
    PiperPlan damaged = plan;
    damage(damaged);
    return !VerifyPlan(instance, damaged).ok();
  };
  EXPECT_TRUE(breaks([](PiperPlan& p) { p.stages[0].replicas = 3; }));  // does not divide 4
  EXPECT_TRUE(breaks([](PiperPlan& p) { p.stages[1].replicas = 2; }));  // four devices
  EXPECT_TRUE(breaks([](PiperPlan& p) { std::swap(p.stages[0], p.stages[1]); }));
  EXPECT_TRUE(breaks([](PiperPlan& p) { p.stages[1].nodes[0] = 0; }));
  EXPECT_TRUE(breaks([](PiperPlan& p) { p.stages[1].configurations[0] = 2; }));
  EXPECT_TRUE(breaks([](PiperPlan& p) { p.stages[1].tensor_degree = 2; }));
  EXPECT_TRUE(breaks([](PiperPlan& p) { p.value *= 0.99; }));
  EXPECT_TRUE(breaks([](PiperPlan& p) { p.bound = p.value * 1.01; }));
  instance.memory_bytes = 59;
  EXPECT_EQ(VerifyPlan(instance, plan).code(), absl::StatusCode::kResourceExhausted);
}

// A value in [0, below), the same on every machine.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 2 + 1) {}
  int operator()(int below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(below));
  }

 private:
  uint64_t state_;
};

PiperInstance RandomInstance(uint64_t seed) {
  Numbers below(seed);
  PiperInstance instance;
  instance.max_devices = 2 + below(3);
  instance.memory_bytes = 15 + below(120);
  instance.micro_batches = below(2) == 0 ? 12 : 4;
  instance.bandwidth = 10;
  instance.nodes.resize(2 + below(3));
  const int num_nodes = static_cast<int>(instance.nodes.size());
  for (int n = 0; n < num_nodes; ++n) {
    instance.nodes[n].id = 10 + n;
    for (int to = n + 1; to < num_nodes; ++to) {
      if (below(2) == 0) continue;
      instance.nodes[n].out_edges.push_back(static_cast<int>(instance.edges.size()));
      instance.nodes[to].in_edges.push_back(static_cast<int>(instance.edges.size()));
      instance.edges.push_back({n, to, static_cast<double>(below(10))});
    }
  }
  for (PiperNode& node : instance.nodes) {
    const int time = 2 + below(8), a = 5 + below(20);
    for (int degree = 1; degree <= 2; ++degree) {
      if (degree == 2 && below(4) == 0) continue;
      for (int c = 0; c < 2 + below(2); ++c) {
        PiperConfiguration& configuration = node.configurations[degree].emplace_back();
        configuration.name = std::string(1, static_cast<char>('a' + c));
        configuration.time = (time + c * (1 + below(3))) / (degree == 1 ? 1.0 : 1.6);
        configuration.flight_bytes = std::max(0, a - 6 * c) / degree;
        configuration.fixed_bytes = 4 + 3 * c;
        configuration.parameter_bytes = below(2) == 0 ? 8 : 6;
        for (size_t e = 0; e < node.in_edges.size(); ++e) {
          configuration.in_sync_bytes.push_back(degree == 1 ? 0 : below(4));
        }
        for (size_t e = 0; e < node.out_edges.size(); ++e) {
          configuration.out_sync_bytes.push_back(degree == 1 ? 0 : below(4));
        }
      }
    }
  }
  return instance;
}

// Least value of all plans; infinity where none is valid.
double BestValue(const PiperInstance& instance) {
  const int num_nodes = static_cast<int>(instance.nodes.size());
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> stage_of_node(num_nodes);
  const std::function<void(PiperPlan&, size_t, size_t)> configure = [&](PiperPlan& plan, size_t s,
                                                                        size_t i) {
    if (s == plan.stages.size()) {
      plan.value = 0;
      for (const PiperStageMetrics& m : PiperMetrics(instance, plan)) {
        plan.value = std::max(plan.value, m.load);
      }
      if (plan.value < best && VerifyPlan(instance, plan).ok()) best = plan.value;
      return;
    }
    PiperStage& stage = plan.stages[s];
    if (i == stage.nodes.size()) return configure(plan, s + 1, 0);
    const auto& all = instance.nodes[stage.nodes[i]].configurations;
    const auto found = all.find(stage.tensor_degree);
    if (found == all.end()) return;
    for (size_t c = 0; c < found->second.size(); ++c) {
      stage.configurations[i] = static_cast<int>(c);
      configure(plan, s, i + 1);
    }
  };
  const std::function<void(PiperPlan&, size_t, int)> replicate = [&](PiperPlan& plan, size_t s,
                                                                     int left) {
    if (s == plan.stages.size()) return configure(plan, 0, 0);
    for (int t = 1; t <= 2; ++t) {
      for (int d = 1; d * t <= left; ++d) {
        if (instance.micro_batches % d != 0) continue;
        plan.stages[s].replicas = d;
        plan.stages[s].tensor_degree = t;
        replicate(plan, s + 1, left - d * t);
      }
    }
  };
  while (true) {
    const int used = *std::max_element(stage_of_node.begin(), stage_of_node.end()) + 1;
    PiperPlan plan;
    plan.stages.resize(used);
    for (int n = 0; n < num_nodes; ++n) plan.stages[stage_of_node[n]].nodes.push_back(n);
    bool valid = true;
    for (PiperStage& stage : plan.stages) {
      valid = valid && !stage.nodes.empty();
      stage.configurations.resize(stage.nodes.size());
    }
    for (const PiperEdge& edge : instance.edges) {
      valid = valid && stage_of_node[edge.from] <= stage_of_node[edge.to];
    }
    if (valid) replicate(plan, 0, instance.max_devices);
    int digit = 0;
    while (digit < num_nodes && ++stage_of_node[digit] == num_nodes) stage_of_node[digit++] = 0;
    if (digit == num_nodes) return best;
  }
}

TEST(PiperPlan, IsTheBestOfAllAndSaysSo) {
  int solved = 0, refused = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PiperInstance instance = RandomInstance(seed);
    const double best = BestValue(instance);
    const absl::StatusOr<PiperPlan> plan = PlanPiperInstance(instance);
    if (std::isinf(best)) {
      ++refused;
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted) << plan.status();
      continue;
    }
    ASSERT_TRUE(plan.ok()) << plan.status();
    ++solved;
    EXPECT_TRUE(VerifyPlan(instance, *plan).ok()) << VerifyPlan(instance, *plan);
    EXPECT_NEAR(plan->value, best, 1e-8 * best);
    EXPECT_LE(plan->bound, best * (1 + 1e-9));
    EXPECT_TRUE(plan->optimal);
  }
  EXPECT_GE(solved, 60);
  EXPECT_GE(refused, 5);
}

TEST(PiperPlan, WithFewCutsOnlyIsValidAndBounded) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PiperInstance instance = RandomInstance(seed);
    const double best = BestValue(instance);
    const absl::StatusOr<PiperPlan> plan = PlanPiperInstance(instance, {.max_cuts = 3});
    if (!plan.ok()) continue;
    EXPECT_GE(plan->value, best * (1 - 1e-9));
    EXPECT_LE(plan->bound, best * (1 + 1e-9));
    EXPECT_TRUE(!plan->optimal || plan->value <= best * (1 + 1e-8));
  }
}

TEST(PiperPlan, NothingFitsSaysWhatWould) {
  PiperInstance instance = Read(ThreeNodes());
  instance.memory_bytes = 20;
  const absl::Status one_node = PlanPiperInstance(instance).status();
  EXPECT_EQ(one_node.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(one_node.message()).find("node 0"), std::string::npos) << one_node;
  instance.memory_bytes = 31;
  const absl::Status all = PlanPiperInstance(instance).status();
  EXPECT_EQ(all.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(all.message()).find("least memory found"), std::string::npos) << all;
}

TEST(PiperPlan, IsWrittenInTheScorersForm) {
  const PiperInstance instance = Read(ThreeNodes());
  const absl::StatusOr<PiperPlan> plan = PlanPiperInstance(instance);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Json json = Json::parse(ToJson(instance, *plan));
  EXPECT_EQ(json["maxDevices"], 3);
  EXPECT_DOUBLE_EQ(json["tps"].get<double>(), plan->value);
  size_t nodes = 0;
  for (const Json& stage : json["stages"]) {
    nodes += stage["nodes"].size();
    EXPECT_EQ(stage["nodes"].size(), stage["TMPCids"].size());
    EXPECT_GE(stage["dataParallelDegree"].get<int>(), 1);
    EXPECT_EQ(stage["tensorParallelDegree"].get<int>(), 1);
  }
  EXPECT_EQ(nodes, 3u);
}

}  // namespace
}  // namespace autopart
