#include "partitioner/cost_graph.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/graphs.h"

namespace autopart {
namespace {

using ::autopart::testing::Chain;
using ::autopart::testing::RandomGraph;
using ::testing::HasSubstr;

TEST(CostGraph, RoundTripsThroughJson) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CostGraph graph = RandomGraph(seed, {.num_nodes = 20, .groups = true, .memory = true});
    graph.model_hash = "00ff";
    graph.device = "h100";
    graph.loss = graph.results[0];
    graph.nodes[3].module = "transformer.h.0 \"quoted\" \n é";
    graph.nodes[4].forward_ms = 0.1 + 0.2;  // not exact in decimal
    const absl::StatusOr<CostGraph> loaded = CostGraphFromJson(ToJson(graph));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(*loaded, graph) << "seed " << seed;
  }
}

TEST(CostGraph, NamesWhatIsWrong) {
  struct Row {
    const char* name;
    std::function<void(CostGraph&)> spoil;
    const char* message;
  };
  const std::vector<Row> rows = {
      {"producer", [](CostGraph& g) { g.values[2].producer = 9; }, "value 2 (n1) has producer 9"},
      {"consumer", [](CostGraph& g) { g.values[2].consumers = {9}; },
       "value 2 (n1): consumers: there is no node 9, the graph has 3 nodes"},
      {"unsorted",
       [](CostGraph& g) {
         g.values[1].consumers = {2, 1};
       },
       "value 1 (n0): consumers want to be ascending node ids, each once: 1 stands behind 2"},
      {"backward edge", [](CostGraph& g) { g.values[3].consumers = {1}; },
       "a cycle: node 1 (n1) -> node 2 (n2)"},
      {"self edge", [](CostGraph& g) { g.values[3].consumers = {2}; },
       "a cycle: node 2 (n2) -> node 2 (n2)"},
      {"negative size", [](CostGraph& g) { g.values[1].bytes = -1; }, "negative size"},
      {"view of later", [](CostGraph& g) { g.values[1].view_of = 2; }, "does not come before"},
      {"nan", [](CostGraph& g) { g.nodes[1].forward_ms = std::nan(""); }, "node 1 (n1)"},
      {"infinite",
       [](CostGraph& g) { g.nodes[1].backward_input_ms = std::numeric_limits<double>::infinity(); },
       "not finite"},
      {"parameter id", [](CostGraph& g) { g.nodes[1].parameters = {0}; },
       "parameters: there is no parameter 0, the graph has 0 parameters"},
      {"saves later", [](CostGraph& g) { g.nodes[0].saved_values = {3}; }, "made later"},
      {"saved id", [](CostGraph& g) { g.nodes[0].saved_values = {77}; },
       "saved_values: there is no value 77, the graph has 4 values"},
      {"group", [](CostGraph& g) { g.nodes[0].group = -2; }, "group -2"},
      {"result", [](CostGraph& g) { g.results = {77}; },
       "results: there is no value 77, the graph has 4 values"},
      {"loss", [](CostGraph& g) { g.loss = 77; }, "loss is value 77"},
      {"overflow",
       [](CostGraph& g) {
         g.values[1].bytes = g.values[2].bytes = std::numeric_limits<int64_t>::max() / 3;
       },
       "64 bits"},
  };
  for (const Row& row : rows) {
    CostGraph graph = Chain(3, 1, 4);
    ASSERT_TRUE(Validate(graph).ok());
    row.spoil(graph);
    const absl::Status status = Validate(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.message)) << row.name;
  }
}

TEST(CostGraph, RefusesBrokenJson) {
  const std::string good = ToJson(Chain(2));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  struct Row {
    std::string text;
    const char* message;
  };
  const std::vector<Row> rows = {
      {"", "not JSON"},
      {good.substr(0, good.size() / 2), "not JSON"},
      {"[1, 2]", "want an object"},
      {"{}", "format: missing"},
      {replaced("autopart.cost_graph", "autopart.plan"), "want 'autopart.cost_graph'"},
      {replaced("\"version\":1", "\"version\":2"), "up to version 1; update autopart"},
      {replaced("\"producer\":0", "\"producer\":\"zero\""),
       "values[1].producer: want a whole number"},
      {replaced("\"producer\":0", "\"producer\":0.5"), "values[1].producer: want a whole number"},
      {replaced("\"producer\":0", "\"producer\":99999999999"), "number too large"},
      {replaced("\"producer\":0", "\"producer\":99999999999999999999"), "values[1].producer"},
      {replaced("\"producer\":0", "\"producer\":5"), "has producer 5"},
      {replaced("\"forward_ms\":1.0", "\"forward_ms\":null"), "nodes[0].forward_ms: want a number"},
      {replaced("\"consumers\":[0]", "\"consumers\":[\"x\"]"), "values[0].consumers[0]"},
      {replaced("\"nodes\":[", "\"knots\":["), "nodes: missing"},
  };
  for (const Row& row : rows) {
    const absl::StatusOr<CostGraph> graph = CostGraphFromJson(row.text);
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(graph.status().message()), HasSubstr(row.message));
  }
}

TEST(CostGraph, SurvivesEveryTruncationAndFlippedByte) {
  const std::string good = ToJson(Chain(2));
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(CostGraphFromJson(good.substr(0, i)).ok());
    std::string flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x15);
    (void)CostGraphFromJson(flipped);  // whatever it says, it returns
  }
}

}  // namespace
}  // namespace autopart
