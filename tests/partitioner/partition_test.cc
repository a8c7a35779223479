#include "partitioner/partition.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;

Partition Example() {
  Partition partition;
  partition.num_stages = 3;
  partition.stage_of_node = {0, 0, 1, 2, 2};
  partition.value = 0.1 + 0.2;
  partition.bound = 0.25;
  partition.bound_kind = "average";
  return partition;
}

TEST(Partition, RoundTripsThroughJson) {
  const absl::StatusOr<Partition> loaded = PartitionFromJson(ToJson(Example()));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, Example());
  EXPECT_DOUBLE_EQ(loaded->gap(), Example().value / 0.25 - 1);
}

TEST(Partition, RefusesBrokenJson) {
  const std::string good = ToJson(Example());
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::pair<std::string, const char*>> rows = {
      {"null", "want an object"},
      {replaced("\"version\":1", "\"version\":9"), "up to version 1"},
      {replaced("\"num_stages\":3", "\"num_stages\":0"), "num_stages: want at least 1"},
      {replaced("\"num_stages\":3", "\"num_stages\":2"), "node 3 is on stage 2 of 2"},
      {replaced("[0,", "[-1,"), "node 0 is on stage -1"},
      {replaced("\"optimal\":false", "\"optimal\":\"no\""), "optimal: want true or false"},
  };
  for (const auto& [text, message] : rows) {
    const absl::StatusOr<Partition> partition = PartitionFromJson(text);
    EXPECT_EQ(partition.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(partition.status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace autopart
