// The partition verb and the frame around all verbs, without a process.
#include "runtime/cli/partition_command.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "partitioner/byte_size.h"
#include "partitioner/partition.h"
#include "partitioner/read_file.h"
#include "tests/testing/graphs.h"

namespace autopart {
namespace {

using ::autopart::testing::Chain;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Ran {
  int status;
  std::string out, err;
};

Ran Partition(const Args& args) {
  std::ostringstream out, err;
  const int status = PartitionCommand(args, {out, err});
  return {status, out.str(), err.str()};
}

Ran Autopart(const Args& args) {
  static constexpr Verb kVerbs[] = {{"plan", "a plan", nullptr},
                                    {"partition", "stages", PartitionCommand}};
  std::ostringstream out, err;
  const int status = RunVerbs(kVerbs, args, {out, err});
  return {status, out.str(), err.str()};
}

std::string Data(const std::string& name) {
  return absl::StrCat(AUTOPART_SOURCE_DIR, "/tests/data/dnn-partitioning/", name);
}

class PartitionCommandTest : public ::testing::Test {
 protected:
  PartitionCommandTest() : folder_(::testing::TempDir() + "autopart_partition_command_test/") {
    std::filesystem::create_directories(folder_);
  }
  ~PartitionCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_TRUE(WriteFile(folder_ + name, content).ok());
    return folder_ + name;
  }

  const std::string folder_;
};

TEST_F(PartitionCommandTest, ShowsTheStagesOfAPublicGraphWithValueBoundAndGap) {
  const Ran ran = Partition({Data("bert24_inference.json"), "-o", folder_ + "out.json"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const std::string golden =
      "stage   nodes      compute         load        memory\n"
      "0           8 .*\n"
      "(.*\n){6}"
      "value   17\\.78990625\n"
      "bound   17\\.78990625 \\(exhaustive\\)\n"
      "gap     0\\.00 %\n"
      "optimal yes\n"
      "time    [0-9.]+ s\n";
  EXPECT_TRUE(std::regex_match(ran.out, std::regex(golden))) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("<- heaviest"));

  const auto written = nlohmann::json::parse(*ReadFile(folder_ + "out.json"));
  EXPECT_EQ(written["fpgas"].size(), 6);
  EXPECT_EQ(written["cpus"].size(), 1);
  EXPECT_DOUBLE_EQ(written["maxLoad"], 17.78990625);
}

TEST_F(PartitionCommandTest, ReadsGzipAndPrintsJson) {
  const Ran ran = Partition({Data("resnet50_inference.json.gz"), "--format", "json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_NEAR(json["value"], 33.77466602, 1e-6);
  EXPECT_LE(json["bound"], json["value"]);
  EXPECT_EQ(json["stages"].size(), 7);
  EXPECT_GT(json["seconds"], 0);
}

TEST_F(PartitionCommandTest, SplitsACostGraphIntoAPartitionFile) {
  const std::string graph = Write("graph.json", ToJson(Chain(12, 1, 1000)));
  const Ran ran = Partition({graph, "--stages", "4", "--bandwidth", "1GB", "--memory", "1 MiB",
                             "--objective", "sum", "-o", folder_ + "partition.json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  absl::StatusOr<autopart::Partition> partition =
      PartitionFromJson(*ReadFile(folder_ + "partition.json"));
  ASSERT_TRUE(partition.ok()) << partition.status();
  EXPECT_EQ(partition->num_stages, 4);
  EXPECT_DOUBLE_EQ(partition->value, 3.002);  // three nodes, one value in, one out
}

TEST_F(PartitionCommandTest, JsonHasValueBoundGapProofAndTime) {
  const std::string graph = Write("graph.json", ToJson(Chain(12, 1, 1000)));
  const Ran ran = Partition({graph, "--stages", "4", "--format", "json", "--seed", "3",
                             "--iterations", "5", "--threads", "1", "--time-limit", "60"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto json = nlohmann::ordered_json::parse(ran.out);
  std::vector<std::string> keys;
  for (const auto& [key, unused] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ::testing::ElementsAre("value", "bound", "bound_kind", "gap", "optimal",
                                           "time_limit_hit", "seconds", "stages"));
  EXPECT_EQ(json["value"], 3);
  EXPECT_EQ(json["gap"], 0);
  EXPECT_EQ(json["optimal"], true);
  EXPECT_EQ(json["time_limit_hit"], false);
  EXPECT_EQ(json["stages"][0]["memory_bytes"], 0);
}

TEST_F(PartitionCommandTest, SplitsOverUnequalDevicesAndShowsTheirTypes) {
  const std::string graph = Write("graph.json", ToJson(Chain(9)));
  const Ran ran = Partition(
      {graph, "--stages", "2", "--device-type", "speed=2,memory=1KiB", "--device-type", "count=1"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const std::string golden =
      "stage   nodes replicas type      compute         load        memory\n"
      "0 +[36] +1 +[01] +3 +3 +0 bytes  <- heaviest\n"
      "1 +[36] +1 +[01] +3 +3 +0 bytes  <- heaviest\n"
      "value   3\n"
      "bound   3 \\(average\\)\n"
      "gap     0\\.00 %\n"
      "optimal yes\n"
      "time    [0-9.]+ s\n";
  EXPECT_TRUE(std::regex_match(ran.out, std::regex(golden))) << ran.out;
}

TEST_F(PartitionCommandTest, ReplicatesStagesOverDevices) {
  CostGraph heavy = Chain(2);
  heavy.nodes[1].forward_ms = 3;
  const std::string graph = Write("graph.json", ToJson(heavy));
  const Ran ran = Partition({graph, "--stages", "2", "--devices", "4", "--format", "json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["value"], 1);
  EXPECT_EQ(json["stages"][1]["replicas"], 3);
}

// 0 -> 1 -> 2 -> 3 in three stages, 1000 bytes a value: at 1 MB/s a value takes a millisecond.
TEST_F(PartitionCommandTest, PaysEachBoundaryByItsOwnLink) {
  const std::string graph = Write("graph.json", ToJson(Chain(4, 1, 1000)));
  const Args args = {graph, "--stages", "3", "--objective", "sum", "--format", "json"};
  Args fast = args, slow = args;
  fast.insert(fast.end(), {"--bandwidth", "1MB"});
  slow.insert(slow.end(), {"--bandwidth", "1MB,500kB"});
  const Ran first = Partition(fast), second = Partition(slow);
  ASSERT_EQ(first.status, 0) << first.err;
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(nlohmann::json::parse(first.out)["value"], 3);
  EXPECT_EQ(nlohmann::json::parse(second.out)["value"], 4);  // 1 + 1 before + 2 behind
}

TEST_F(PartitionCommandTest, CountsTheMicroBatchesThatAScheduleHasInFlight) {
  CostGraph chain = Chain(2);
  for (CostNode& node : chain.nodes) node.saved_bytes = 100;
  const std::string graph = Write("graph.json", ToJson(chain));
  const auto bytes = [&](Args flags) {
    flags.insert(flags.begin(), {graph, "--stages", "2", "--format", "json"});
    const Ran ran = Partition(flags);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return nlohmann::json::parse(ran.out)["stages"][0]["memory_bytes"].get<double>();
  };
  EXPECT_EQ(bytes({}), 100);
  EXPECT_EQ(bytes({"--schedule", "1f1b"}), 200);
  EXPECT_EQ(bytes({"--schedule", "1f1b", "--micro-batches", "1"}), 100);
  EXPECT_EQ(bytes({"--schedule", "gpipe", "--micro-batches", "7"}), 700);
  EXPECT_EQ(bytes({"--schedule", "forward"}), 0);
}

TEST_F(PartitionCommandTest, TellsMistakesInOneMessage) {
  CostGraph heavy = Chain(3);
  for (CostNode& node : heavy.nodes) node.saved_bytes = 1000;
  const std::string graph = Write("graph.json", ToJson(Chain(3)));
  const std::string large = Write("large.json", ToJson(heavy));
  const std::string broken = Write("broken.json", "{\"format\": ");
  const std::string other = Write("other.json", "{\"format\": \"autopart.plan\", \"version\": 1}");
  std::string cut = *ReadFile(Data("bert24_inference.json"));
  const std::string halved = Write("halved.json", cut.substr(0, cut.size() / 2));
  struct Row {
    Args args;
    int status;
    std::string message;
  };
  const std::vector<Row> rows = {
      {{}, 2, "graph is required"},
      {{"/no/such/file", "--stages", "2"}, 2, "cannot read /no/such/file: No such file"},
      {{folder_, "--stages", "2"}, 2, "is a folder"},
      {{broken, "--stages", "2"}, 2, "not JSON"},
      {{halved}, 2, "not JSON"},
      {{other, "--stages", "2"}, 2, "want 'autopart.cost_graph'"},
      {{graph}, 2, "--stages K, or of devices, --devices N"},
      {{graph, "--devices", "2", "--device-type", "count=2"},
       2,
       "--device-type counts say how many"},
      {{graph, "--device-type", "count=two"}, 2, "--device-type: count is 'two'"},
      {{graph, "--device-type", "count=0"}, 2, "--device-type: count is '0'"},
      {{graph, "--device-type", "speed=-1"}, 2, "--device-type: speed is '-1'"},
      {{graph, "--device-type", "speed=nan"}, 2, "--device-type: speed is 'nan'"},
      {{graph, "--device-type", "memory=lots"}, 2, "--device-type: memory: 'lots' is not a size"},
      {{graph, "--device-type", "cuont=1"}, 2, "--device-type: there is no 'cuont'"},
      {{graph, "--device-type", "4"}, 2, "write for example count=4,speed=0.5,memory=40GiB"},
      {{graph, "--device-type", "count=1,count=2"}, 2, "count is there twice"},
      {{graph, "--stages", "3", "--device-type", "count=2"}, 2, "3 stages want a device each"},
      {{graph, "--stages", "2", "--bandwidth", "1GB,2GB"}, 2, "one for each of the 1 boundaries"},
      {{graph, "--stages", "2", "--bandwidth", "fast"}, 2, "--bandwidth: 'fast' is not a size"},
      {{graph, "--stages", "2", "--bandwidth", "0"}, 2, "--bandwidth is 0"},
      {{graph, "--stages", "2", "--schedule", "gpipe"}, 2, "say how many, --micro-batches M"},
      {{graph, "--stages", "2", "--schedule", "zero"}, 2, "--schedule"},
      {{graph, "--stages", "2", "--time-limit", "-1"}, 2, "time_limit_s is -1"},
      {{graph, "--stages", "2", "--threads", "0"}, 2, "--threads"},
      {{graph, "--stages", "2", "--recompute", "some"}, 2, "--recompute"},
      {{graph, "--stages", "0"}, 2, "--stages"},
      {{graph, "--stages", "two"}, 2, "--stages"},
      {{graph, "--stages", "4"}, 2, "ask for at most 3 stage"},
      {{graph, "--stages", "2", "--memory", "much"}, 2, "'much' is not a size"},
      {{graph, "--stages", "2", "--objective", "max"}, 2, "--objective"},
      {{graph, "--stages", "2", "--itertions", "4"}, 2, "did you mean --iterations?"},
      {{graph, "--stages", "2", "-o", "/no/such/folder/x"}, 1, "cannot write /no/such/folder/x"},
      {{Data("bert24_inference.json"), "--bandwidth", "1GB"}, 2, "brings its own transfer times"},
      {{Data("bert24_inference.json"), "--devices", "4"}, 2, "--devices: an instance has one"},
      {{Data("bert24_inference.json"), "--recompute", "auto"}, 2, "--recompute: an instance"},
      {{Data("bert24_inference.json"), "--schedule", "1f1b"}, 2, "--schedule: an instance"},
      {{Data("bert24_inference.json"), "--micro-batches", "2"}, 2, "--micro-batches: an instance"},
      {{Data("bert24_inference.json"), "--device-type", "speed=2"}, 2, "brings its own devices"},
      {{large, "--stages", "2", "--memory", "1500"}, 3, "500 bytes are missing"},
  };
  for (const Row& row : rows) {
    const Ran ran = Partition(row.args);
    EXPECT_EQ(ran.status, row.status) << row.message << "\n" << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(row.message));
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
}

TEST_F(PartitionCommandTest, RefusesATruncatedGzipFile) {
  std::FILE* file = std::fopen(Data("resnet50_inference.json.gz").c_str(), "rb");
  ASSERT_NE(file, nullptr);
  std::string bytes(2000, '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
  std::fclose(file);
  const Ran ran = Partition({Write("cut.json.gz", bytes)});
  EXPECT_EQ(ran.status, 2);
  EXPECT_THAT(ran.err, HasSubstr("the gzip file breaks off"));
}

TEST(Autopart, HelpBeginsWithAnExampleAndFitsAScreen) {
  for (const Args& args : {Args{"--help"}, Args{"partition", "--help"}}) {
    const Ran ran = Autopart(args);
    EXPECT_EQ(ran.status, 0);
    EXPECT_THAT(ran.out, StartsWith("Example: autopart "));
    EXPECT_LE(std::count(ran.out.begin(), ran.out.end(), '\n'), 30) << ran.out;
  }
}

TEST(Autopart, NamesTheNearestVerb) {
  const Ran ran = Autopart({"partiton"});
  EXPECT_EQ(ran.status, 2);
  EXPECT_THAT(ran.err, HasSubstr("did you mean 'partition'?"));
  EXPECT_EQ(Autopart({"xyzzy"}).err.find("did you mean"), std::string::npos);
  EXPECT_EQ(Autopart({}).status, 2);
}

TEST(Autopart, SaysItsVersion) {
  const Ran ran = Autopart({"--version"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_TRUE(std::regex_match(ran.out, std::regex("autopart [0-9]+\\.[0-9]+\\.[0-9]+\n")));
}

TEST(Autopart, SaysWhatToBuildForVerbsThatNeedTorch) {
  const Ran ran = Autopart({"plan", "model.pt"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("-DAUTOPART_WITH_TORCH=ON"));
}

TEST(ByteSize, ReadsWhatPeopleWrite) {
  const std::vector<std::pair<const char*, int64_t>> rows = {
      {"1000", 1000},
      {"80GiB", int64_t{80} << 30},
      {"80 GiB", int64_t{80} << 30},
      {"25GB", 25000000000},
      {"1.5k", 1500},
      {"512MiB", 512 << 20},
      {"2T", 2000000000000},
      {"3b", 3},
      {"0", 0},
  };
  for (const auto& [text, bytes] : rows) {
    absl::StatusOr<int64_t> parsed = ParseByteSize(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
  for (const char* text : {"", "GiB", "12X", "1..2", "-5", "5GiBB", "1e3", "99999999TB", "nan"}) {
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
  }
}

TEST(ByteSize, WritesBinaryUnits) {
  EXPECT_EQ(FormatByteSize(0), "0 bytes");
  EXPECT_EQ(FormatByteSize(1023), "1023 bytes");
  EXPECT_EQ(FormatByteSize(1536), "1.50 KiB");
  EXPECT_EQ(FormatByteSize(int64_t{80} << 30), "80.00 GiB");
}

// Two layers, each with and without recompute, read and written as the Piper repository does.
constexpr char kPiper[] = R"({"maxDevices": 1, "maxMemoryPerDevice": 100, "mbsInBatch": 1,
  "bandwidth": 1, "edges": [{"sourceId": 7, "destId": 9, "communicationCost": 2}], "nodes": [
  {"id": 7, "TMPCs": {"1": [
    {"id": "vanilla", "timePerSample": 3, "parameterSize": 0, "memoryUsageA": 20,
     "memoryUsageB": 10, "syncTimeFw": {}, "syncTimeBw": {"9": 0}},
    {"id": "activation recomp", "timePerSample": 4, "parameterSize": 0, "memoryUsageA": 2,
     "memoryUsageB": 28, "syncTimeFw": {}, "syncTimeBw": {"9": 0}}]}},
  {"id": 9, "TMPCs": {"1": [
    {"id": "vanilla", "timePerSample": 3, "parameterSize": 0, "memoryUsageA": 20,
     "memoryUsageB": 10, "syncTimeFw": {"7": 0}, "syncTimeBw": {}}]}}]})";

TEST_F(PartitionCommandTest, OnCtrlCGivesTheBestAnswerSoFar) {
  const std::string graph = Write("hard.json", ToJson(testing::RandomGraph(3, {.num_nodes = 300})));
  sigset_t interrupt, previous;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &previous);
  kill(getpid(), SIGINT);  // waits until the search begins
  const Ran ran =
      Partition({graph, "--stages", "8", "--time-limit", "1000", "-o", folder_ + "out"});
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  EXPECT_EQ(ran.status, kExitGood) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr(", interrupted"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "out"));
}

// 0.00 % beside "not proven" would look like a mistake.
TEST_F(PartitionCommandTest, AGapThatIsNotProvenIsNeverPrintedAsNone) {
  // Eighty times to share out between two stages: nearly even is easy, and the best is out of
  // reach.
  testing::GraphBuilder builder;
  for (int n = 1; n <= 80; ++n) builder.Node("n", std::sqrt(n), {}, 0);
  const std::string graph = Write("g.json", ToJson(builder.Build()));
  const Ran ran = Partition({graph, "--stages", "2", "--time-limit", "0.2"});
  ASSERT_EQ(ran.status, kExitGood) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("gap     < 0.01 %\noptimal not proven\n"));
}

TEST_F(PartitionCommandTest, WithDevicesABandwidthWantsMicroBatches) {
  const Ran ran =
      Partition({Write("g.json", ToJson(Chain(4))), "--devices", "4", "--bandwidth", "25GB"});
  EXPECT_EQ(ran.status, kExitUsage);
  EXPECT_THAT(ran.err, HasSubstr("--micro-batches M"));
}

TEST_F(PartitionCommandTest, PlansPipersForm) {
  const std::string graph = Write("piper.json", kPiper), plan = folder_ + "plan.json";
  // With two micro-batches in flight the first of two devices has to recompute.
  const Ran ran = Partition({graph, "--devices", "2", "--memory", "40", "--micro-batches", "2",
                             "--bandwidth", "10", "-o", plan, "--format", "json"});
  ASSERT_EQ(ran.status, kExitGood) << ran.err;
  const auto printed = nlohmann::json::parse(ran.out);
  EXPECT_TRUE(printed["optimal"].get<bool>());
  const auto written = nlohmann::json::parse(*ReadFile(plan));
  EXPECT_EQ(written["maxDevices"], 2);
  EXPECT_DOUBLE_EQ(written["tps"].get<double>(), printed["value"].get<double>());
  EXPECT_EQ(written["stages"].size(), 2u);
  EXPECT_EQ(written["stages"][0]["nodes"], nlohmann::json::parse("[7]"));
  EXPECT_EQ(written["stages"][0]["TMPCids"][0][1], "activation recomp");
  EXPECT_DOUBLE_EQ(written["tps"].get<double>(), 4 + 2 * 2 / 10.0);

  EXPECT_EQ(Partition({graph, "--memory", "29"}).status, kExitNothingFits);
  for (const Args& unused :
       {Args{"--stages", "2"}, Args{"--time-limit", "9"}, Args{"--iterations", "9"},
        Args{"--seed", "0"}, Args{"--threads", "1"}}) {
    const Ran refused = Partition({graph, unused[0], unused[1]});
    EXPECT_EQ(refused.status, kExitUsage) << unused[0];
    EXPECT_THAT(refused.err, HasSubstr(unused[0] + ": a Piper instance "));
  }
}

}  // namespace
}  // namespace autopart
