#include "profiler/measure.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/profiler/hand_graph.h"

namespace autopart {
namespace {

using testing::Const;
using testing::HandGraph;
using testing::Ref;

OperatorSignature SignatureOfLast(const HandGraph& hand) {
  const KnownValues known{std::vector<c10::IValue>(hand.graph.values.size()), {}};
  return *Signatures(hand.graph, known).Of(hand.graph.nodes.back(), true);
}

std::string TemporaryFile(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/autopart_measure_test/" + name;
  std::filesystem::remove(path);
  return path;
}

TEST(Measure, ALinearLayerHasAllThreeTimes) {
  HandGraph hand;
  const int x = hand.NewValue("x", {64, 128}, true), w = hand.Param("w", {128, 128});
  hand.Op("aten::linear", "", {Ref(x), Ref(w), Const({})});
  const auto measured = MeasureOperator(SignatureOfLast(hand), 5);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_GT(measured->times.forward_ms, 0);
  EXPECT_GT(measured->times.backward_input_ms, 0);
  EXPECT_GE(measured->times.backward_weight_ms, 0);
}

TEST(Measure, WhereOnlyTheWeightNeedsAGradientThereIsNoInputGradient) {
  HandGraph hand;
  const int ids = hand.Input("ids", {4, 8}, at::kLong), w = hand.Param("w", {100, 16});
  hand.Op("aten::embedding", "", {Ref(w), Ref(ids), Const(-1), Const(false), Const(false)});
  const auto measured = MeasureOperator(SignatureOfLast(hand), 5);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->times.backward_input_ms, 0);
  EXPECT_GT(measured->times.backward_weight_ms, 0);
}

TEST(Measure, AnOperatorInPlaceIsMeasuredToo) {
  HandGraph hand;
  const int x = hand.NewValue("x", {64, 128}, true);
  hand.Op("aten::relu_", "", {Ref(x)});
  hand.graph.nodes.back().effects.writes_input = true;
  const auto measured = MeasureOperator(SignatureOfLast(hand), 5);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_GT(measured->times.forward_ms, 0);
  EXPECT_GT(measured->times.backward_input_ms, 0);
}

TEST(MeasurementCache, KeepsWhatWasSaved) {
  const std::string path = TemporaryFile("cache.json");
  MeasurementCache cache = MeasurementCache::OpenFile(path);
  cache.Add("aten::mm(...)", {{1.5, 2.5, 3.5}, 7, 9});
  ASSERT_TRUE(cache.Save().ok());
  const auto found = MeasurementCache::OpenFile(path).Find("aten::mm(...)");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->times.backward_weight_ms, 3.5);
  EXPECT_EQ(found->backward_temporary_bytes, 9);
}

TEST(MeasurementCache, MergesWithWhatAnotherProcessWrote) {
  const std::string path = TemporaryFile("merged.json");
  MeasurementCache first = MeasurementCache::OpenFile(path);
  MeasurementCache second = MeasurementCache::OpenFile(path);
  first.Add("first", {});
  second.Add("second", {});
  ASSERT_TRUE(first.Save().ok());
  ASSERT_TRUE(second.Save().ok());
  const MeasurementCache both = MeasurementCache::OpenFile(path);
  EXPECT_TRUE(both.Find("first").has_value());
  EXPECT_TRUE(both.Find("second").has_value());
}

TEST(MeasurementCache, IgnoresABrokenFileAndWritesItAnew) {
  const std::string path = TemporaryFile("broken.json");
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  for (const char* content : {"", "{\"format\": 1, \"opera", "[]", "{\"format\": 99}",
                              "{\"format\": 1, \"operators\": {\"a\": {\"forward_ms\": -1}}}"}) {
    std::ofstream(path) << content;
    MeasurementCache cache = MeasurementCache::OpenFile(path);
    EXPECT_FALSE(cache.Find("a").has_value());
    cache.Add("a", {{1, 1, 1}, 0, 0});
    ASSERT_TRUE(cache.Save().ok());
    EXPECT_TRUE(MeasurementCache::OpenFile(path).Find("a").has_value());
  }
}

}  // namespace
}  // namespace autopart
