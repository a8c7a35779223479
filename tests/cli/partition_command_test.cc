// The partition verb and the frame around all verbs, without a process.
#include "runtime/cli/partition_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "partitioner/partition.h"
#include "partitioner/read_file.h"
#include "partitioner/byte_size.h"
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
      "bound   [0-9.]+ \\(average\\)\n"
      "gap     [0-9.]+ %\n"
      "optimal not proven\n"
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
      {{graph}, 2, "--stages K"},
      {{graph, "--stages", "0"}, 2, "--stages"},
      {{graph, "--stages", "two"}, 2, "--stages"},
      {{graph, "--stages", "4"}, 2, "ask for at most 3 stage"},
      {{graph, "--stages", "2", "--memory", "much"}, 2, "'much' is not a size"},
      {{graph, "--stages", "2", "--objective", "max"}, 2, "--objective"},
      {{graph, "--stages", "2", "--itertions", "4"}, 2, "did you mean --iterations?"},
      {{graph, "--stages", "2", "-o", "/no/such/folder/x"}, 1, "cannot write /no/such/folder/x"},
      {{Data("bert24_inference.json"), "--bandwidth", "1GB"}, 2, "brings its own transfer times"},
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

}  // namespace
}  // namespace autopart
