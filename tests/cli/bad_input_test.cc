// What `autopart partition` says to input that is wrong: one line that names the place, nothing on
// stdout, status 2; and input that looks wrong but is not: an answer.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "partitioner/cost_graph.h"
#include "partitioner/read_file.h"
#include "runtime/cli/command.h"
#include "runtime/cli/partition_command.h"
#include "tests/testing/graphs.h"

namespace autopart {
namespace {

using ::autopart::testing::Chain;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

struct Ran {
  int status;
  std::string out, err;
};

class BadInput : public ::testing::Test {
 protected:
  BadInput() : folder_(::testing::TempDir() + "autopart_bad_input_test/") {
    std::filesystem::create_directories(folder_);
  }
  ~BadInput() override { std::filesystem::remove_all(folder_); }

  Ran Partition(const std::string& text, Args flags) {
    const std::string path = folder_ + "input.json";
    EXPECT_TRUE(WriteFile(path, text).ok());
    return PartitionFile(path, std::move(flags));
  }

  Ran PartitionFile(const std::string& path, Args flags) {
    flags.insert(flags.begin(), path);
    std::ostringstream out, err;
    const int status = PartitionCommand(flags, {out, err});
    return {status, out.str(), err.str()};
  }

  void ExpectRefused(const Ran& ran, const std::string& message) {
    EXPECT_EQ(ran.status, kExitUsage) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(message));
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }

  const std::string folder_;
};

// Text in which the first `from` is replaced.
std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// x -> n0 -> n1 -> n2 -> n3, values 1 to 4 made by nodes 0 to 3.
Json Graph() { return Json::parse(ToJson(Chain(4, 1, 8))); }

// a -> b -> c, and the backward nodes cb -> bb -> ab in the same classes.
Json Instance() {
  return Json::parse(R"({"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 100, "nodes": [
    {"id": 1, "fpgaLatency": 1, "cpuLatency": 9, "size": 4, "colorClass": 1},
    {"id": 2, "fpgaLatency": 2, "cpuLatency": 9, "size": 4, "colorClass": 2},
    {"id": 3, "fpgaLatency": 3, "cpuLatency": 9, "size": 4, "colorClass": 3},
    {"id": 6, "fpgaLatency": 1, "cpuLatency": 9, "size": 4, "colorClass": 3, "isBackwardNode": true},
    {"id": 5, "fpgaLatency": 1, "cpuLatency": 9, "size": 4, "colorClass": 2, "isBackwardNode": true},
    {"id": 4, "fpgaLatency": 1, "cpuLatency": 9, "size": 4, "colorClass": 1, "isBackwardNode": true}],
    "edges": [
    {"sourceId": 1, "destId": 2, "cost": 0.5}, {"sourceId": 2, "destId": 3, "cost": 0.25},
    {"sourceId": 3, "destId": 6, "cost": 0.125},
    {"sourceId": 6, "destId": 5, "cost": 0.5}, {"sourceId": 5, "destId": 4, "cost": 0.25}]})");
}

struct Row {
  const char* name;
  std::function<void(Json&)> spoil;
  const char* message;
};

const int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST_F(BadInput, CostGraphsAreRefusedWithThePlaceOfTheMistake) {
  const std::vector<Row> rows = {
      {"cycle",
       [](Json& g) {
         g["values"][3]["consumers"] = {1, 3};
       },
       "a cycle: node 1 (n1) -> node 2 (n2) -> node 1 (n1)"},
      {"self loop", [](Json& g) { g["values"][2]["consumers"] = {1}; },
       "a cycle: node 1 (n1) -> node 1 (n1)"},
      {"order",
       [](Json& g) {  // n2 is made by no one's reader: no cycle, but an edge back
         g["values"][2]["consumers"] = Json::array();
         g["values"][3]["consumers"] = {1};
       },
       "number the nodes in an order in which they can run"},
      {"negative time", [](Json& g) { g["nodes"][2]["forward_ms"] = -1; },
       "node 2 (n2) has a time that is negative or not finite"},
      {"negative size", [](Json& g) { g["values"][2]["bytes"] = -1; },
       "value 2 (n1) has a negative size"},
      {"sum of times over double",
       [](Json& g) {
         for (Json& node : g["nodes"]) node["forward_ms"] = 1e308;
       },
       "the times add up to infinity"},
      {"sum of sizes over 64 bits",
       [](Json& g) {
         for (Json& node : g["nodes"]) node["saved_bytes"] = kHuge / 2;
       },
       "the sizes add up to more than 64 bits hold"},
      {"size over 64 bits",
       [](Json& g) { g["values"][2]["bytes"] = uint64_t{std::numeric_limits<uint64_t>::max()}; },
       "values[2].bytes: number too large"},
      {"fractional size", [](Json& g) { g["values"][2]["bytes"] = 1.5; },
       "values[2].bytes: want a whole number"},
      {"reader twice",
       [](Json& g) {
         g["values"][0]["consumers"] = {0, 0};
       },
       "value 0 (x): consumers want to be ascending node ids, each once: 0 stands behind 0"},
      {"dangling reader", [](Json& g) { g["values"][4]["consumers"] = {4}; },
       "value 4 (n3): consumers: there is no node 4, the graph has 4 nodes"},
      {"dangling producer", [](Json& g) { g["values"][4]["producer"] = 4; },
       "value 4 (n3) has producer 4, but there are 4 nodes"},
      {"dangling parameter", [](Json& g) { g["nodes"][1]["parameters"] = {0}; },
       "node 1 (n1): parameters: there is no parameter 0, the graph has 0 parameters"},
      {"dangling saved value", [](Json& g) { g["nodes"][1]["saved_values"] = {9}; },
       "node 1 (n1): saved_values: there is no value 9, the graph has 5 values"},
      {"text for a number", [](Json& g) { g["nodes"][1]["forward_ms"] = "1"; },
       "nodes[1].forward_ms: want a number"},
      {"null for a number", [](Json& g) { g["nodes"][1]["forward_ms"] = nullptr; },
       "nodes[1].forward_ms: want a number"},
      {"number for a list", [](Json& g) { g["values"][1]["consumers"] = 1; },
       "values[1].consumers: want an array"},
      {"number for an object", [](Json& g) { g["nodes"][1] = 1; }, "nodes[1]: want an object"},
      {"object for a list", [](Json& g) { g["nodes"] = Json::object(); }, "nodes: want an array"},
      {"missing field", [](Json& g) { g["nodes"][1].erase("forward_ms"); },
       "nodes[1].forward_ms: missing"},
      {"no nodes", [](Json& g) { g["nodes"] = g["values"] = g["results"] = Json::array(); },
       "the graph has no nodes"},
      {"version", [](Json& g) { g["version"] = 99; }, "update autopart"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Json graph = Graph();
    row.spoil(graph);
    ExpectRefused(Partition(graph.dump(), {"--stages", "2"}), row.message);
  }
}

TEST_F(BadInput, InstancesAreRefusedWithThePlaceOfTheMistake) {
  const std::vector<Row> rows = {
      {"cycle",
       [](Json& i) {
         i["edges"].push_back({{"sourceId", 3}, {"destId", 2}, {"cost", 0.125}});
       },
       "edges: a cycle of nodes 2 -> 3 -> 2"},
      {"backward cycle",
       [](Json& i) {
         i["edges"].push_back({{"sourceId", 4}, {"destId", 6}, {"cost", 0.125}});
       },
       "edges: a cycle of nodes 6 -> 5 -> 4 -> 6"},
      {"self loop", [](Json& i) { i["edges"][0]["destId"] = 1; },
       "edges[0].destId: an edge from a node to itself"},
      {"negative time", [](Json& i) { i["nodes"][2]["fpgaLatency"] = -1; },
       "nodes[2].fpgaLatency: negative or not finite"},
      {"negative CPU time", [](Json& i) { i["nodes"][2]["cpuLatency"] = -1; },
       "nodes[2].cpuLatency: negative or not finite"},
      {"negative size", [](Json& i) { i["nodes"][2]["size"] = -1; },
       "nodes[2].size: negative or not finite"},
      {"negative cost", [](Json& i) { i["edges"][1]["cost"] = -1; },
       "edges[1].cost: negative or not finite"},
      {"negative memory", [](Json& i) { i["maxSizePerFPGA"] = -1; }, "maxSizePerFPGA: negative"},
      {"sum of times over double",
       [](Json& i) {
         for (Json& node : i["nodes"]) node["fpgaLatency"] = 1e308;
       },
       "the times add up to infinity"},
      {"sum of sizes over double",
       [](Json& i) {
         for (Json& node : i["nodes"]) node["size"] = 1e308;
       },
       "the sizes add up to infinity"},
      {"duplicate id", [](Json& i) { i["nodes"][2]["id"] = 1; }, "nodes[2].id: 1 is there twice"},
      {"dangling source", [](Json& i) { i["edges"][0]["sourceId"] = 77; },
       "edges[0].sourceId: there is no node 77"},
      {"dangling end", [](Json& i) { i["edges"][0]["destId"] = "1"; },
       "edges[0].destId: there is no node \"1\""},
      {"edge without an end", [](Json& i) { i["edges"][0].erase("destId"); },
       "edges[0].destId: missing"},
      {"two costs",
       [](Json& i) {
         i["edges"].push_back({{"sourceId", 1}, {"destId", 3}, {"cost", 7}});
       },
       "edges[5].cost: node 1 has another edge of cost 0.5"},
      {"two tiny costs",
       [](Json& i) {
         i["edges"][0]["cost"] = 1e-15;
         i["edges"].push_back({{"sourceId", 1}, {"destId", 3}, {"cost", 2e-15}});
       },
       "edges[5].cost: node 1 has another edge of cost 1e-15"},
      {"text for a number", [](Json& i) { i["nodes"][1]["fpgaLatency"] = "1"; },
       "nodes[1].fpgaLatency: want a number"},
      {"list for an object", [](Json& i) { i["edges"][1] = Json::array(); },
       "edges[1]: want an object"},
      {"object for a list", [](Json& i) { i["edges"] = Json::object(); }, "edges: want an array"},
      {"no memory", [](Json& i) { i.erase("maxSizePerFPGA"); }, "maxSizePerFPGA: missing"},
      {"no edges", [](Json& i) { i.erase("edges"); }, "edges: missing"},
      {"no nodes", [](Json& i) { i["nodes"] = i["edges"] = Json::array(); },
       "nodes: there are none"},
      {"no device", [](Json& i) { i["maxFPGAs"] = 0; }, "maxFPGAs: no device at all"},
      {"too many accelerators", [](Json& i) { i["maxFPGAs"] = 100'001; },
       "maxFPGAs: 100001 are more than the 100000 that there may be"},
      {"too many CPUs", [](Json& i) { i["maxCPUs"] = 100'001; },
       "maxCPUs: 100001 are more than the 100000 that there may be"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Json instance = Instance();
    row.spoil(instance);
    ExpectRefused(Partition(instance.dump(), {}), row.message);
  }
}

TEST_F(BadInput, NumbersThatAreNoneAreRefused) {
  const std::string graph = Graph().dump(), instance = Instance().dump();
  for (const char* number : {"1e400", "-1e400", "NaN", "nan", "Infinity", "0x10", "1e", "--1"}) {
    SCOPED_TRACE(number);
    const Ran first =
        Partition(Replaced(graph, "\"forward_ms\":1.0", absl::StrCat("\"forward_ms\":", number)),
                  {"--stages", "2"});
    ExpectRefused(first, "input.json: not JSON: ");
    const Ran second = Partition(
        Replaced(instance, "\"fpgaLatency\":2", absl::StrCat("\"fpgaLatency\":", number)), {});
    ExpectRefused(second, "input.json: not JSON: ");
  }
}

TEST_F(BadInput, FilesThatBreakOffAreRefused) {
  const std::string graph = Graph().dump(), instance = Instance().dump();
  for (const std::string& text : {graph, instance}) {
    for (const size_t length : {size_t{1}, size_t{2}, text.size() / 2, text.size() - 1}) {
      ExpectRefused(Partition(text.substr(0, length), {"--stages", "2"}), "not JSON");
    }
  }
  ExpectRefused(Partition("", {"--stages", "2"}), "input.json: the file is empty");
  ExpectRefused(Partition(" \n", {"--stages", "2"}), "input.json: the file is empty");
  ExpectRefused(Partition(std::string("\0\1\2", 3), {"--stages", "2"}), "not JSON");
  ExpectRefused(Partition("{}", {"--stages", "2"}), "format: missing");
  ExpectRefused(Partition(graph + "x", {"--stages", "2"}), "not JSON");
  ExpectRefused(Partition(std::string(1'000'000, '['), {"--stages", "2"}), "not JSON");
  ExpectRefused(PartitionFile(folder_, {"--stages", "2"}), "is a folder");
  ExpectRefused(PartitionFile(folder_ + "none", {"--stages", "2"}), "No such file");
}

TEST_F(BadInput, GzipFilesThatBreakOffOrAreDamagedAreRefused) {
  std::FILE* file = std::fopen(
      AUTOPART_SOURCE_DIR "/tests/data/dnn-partitioning/resnet50_inference.json.gz", "rb");
  ASSERT_NE(file, nullptr);
  std::string whole(1 << 20, '\0');
  whole.resize(std::fread(whole.data(), 1, whole.size(), file));
  std::fclose(file);
  for (const size_t length : {size_t{2}, size_t{11}, whole.size() / 2, whole.size() - 1}) {
    ExpectRefused(Partition(whole.substr(0, length), {}), "the gzip file breaks off");
  }
  std::string damaged = whole;
  damaged[whole.size() / 2] ^= 0x55;
  ExpectRefused(Partition(damaged, {}), "the gzip file");
}

TEST_F(BadInput, GroupsAndColourClassesThatCloseACycleAreGlued) {
  Json graph = Graph();  // n0 and n2 stay together: n1 between them, too
  graph["nodes"][0]["group"] = graph["nodes"][2]["group"] = 5;
  const Ran split = Partition(graph.dump(), {"--stages", "2", "--format", "json"});
  ASSERT_EQ(split.status, kExitGood) << split.err;
  EXPECT_EQ(Json::parse(split.out)["value"], 3);
  EXPECT_EQ(Json::parse(split.out)["optimal"], true);
  ExpectRefused(Partition(graph.dump(), {"--stages", "3"}), "ask for at most 2 stage(s)");

  Json instance = Instance();
  instance["nodes"][0]["colorClass"] = 3;
  instance["nodes"][5]["colorClass"] = 3;
  const Ran whole = Partition(instance.dump(), {"--format", "json"});
  ASSERT_EQ(whole.status, kExitGood) << whole.err;
  EXPECT_EQ(Json::parse(whole.out)["value"], 9);  // all on one accelerator
  EXPECT_EQ(Json::parse(whole.out)["optimal"], true);
}

TEST_F(BadInput, MoreStagesThanNodesAndOneStageAreAnswered) {
  ExpectRefused(Partition(Graph().dump(), {"--stages", "5"}), "ask for at most 4 stage(s)");
  // An instance may leave accelerators empty.
  const Ran many = Partition(Instance().dump(), {"--stages", "50", "--format", "json"});
  ASSERT_EQ(many.status, kExitGood) << many.err;
  EXPECT_EQ(Json::parse(many.out)["value"], 4.75);  // node 3's class by itself
  for (const std::string& text : {Graph().dump(), Instance().dump()}) {
    const Ran one = Partition(text, {"--stages", "1", "--format", "json"});
    ASSERT_EQ(one.status, kExitGood) << one.err;
    const Json json = Json::parse(one.out);
    EXPECT_EQ(json["optimal"], true);
    EXPECT_EQ(json["bound"], json["value"]);
    EXPECT_EQ(json["gap"], 0);
  }
}

// The same graph in other units has the same answer in other units.
TEST_F(BadInput, WeightsMayBeHugeOrTiny) {
  for (const bool is_instance : {false, true}) {
    const Json plain = is_instance ? Instance() : Graph();
    Args flags = {"--format", "json", "--objective", "sum"};
    if (!is_instance) flags.insert(flags.end(), {"--stages", "3"});
    const Ran reference = Partition(plain.dump(), flags);
    ASSERT_EQ(reference.status, kExitGood) << reference.err;
    const double value = Json::parse(reference.out)["value"];
    for (const double unit : {1e15, 1e-15, 1e-100, 1e100}) {
      SCOPED_TRACE(absl::StrCat(is_instance ? "instance " : "graph ", unit));
      Json scaled = plain;
      for (Json& node : scaled["nodes"]) {
        for (const char* time : {"forward_ms", "fpgaLatency", "cpuLatency"}) {
          if (node.contains(time)) node[time] = node[time].get<double>() * unit;
        }
      }
      if (is_instance) {
        for (Json& edge : scaled["edges"]) edge["cost"] = edge["cost"].get<double>() * unit;
      }
      const Ran ran = Partition(scaled.dump(), flags);
      ASSERT_EQ(ran.status, kExitGood) << ran.err;
      const Json json = Json::parse(ran.out);
      EXPECT_DOUBLE_EQ(json["value"], value * unit);
      EXPECT_EQ(json["optimal"], Json::parse(reference.out)["optimal"]);
    }
  }
}

}  // namespace
}  // namespace autopart
