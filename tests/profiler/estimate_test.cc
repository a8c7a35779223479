#include "profiler/estimate.h"

#include <gtest/gtest.h>

#include "tests/profiler/hand_graph.h"

namespace autopart {
namespace {

using testing::Const;
using testing::HandGraph;
using testing::Ref;

// One flop and one byte a nanosecond, launches free: times can be read off as counts.
DeviceSpec UnitDevice() {
  DeviceSpec device;
  device.fp32_flops_per_ms = device.half_flops_per_ms = device.memory_bytes_per_ms = 1e6;
  device.matrix_efficiency = device.memory_efficiency = 1;
  return device;
}

OperatorSignature SignatureOfLast(const HandGraph& hand) {
  const KnownValues known{std::vector<c10::IValue>(hand.graph.values.size()), {}};
  return *Signatures(hand.graph, known).Of(hand.graph.nodes.back(), true);
}

OperatorTimes Estimate(const HandGraph& hand) {
  const OperatorSignature signature = SignatureOfLast(hand);
  return EstimateTimes(signature, *ObserveSaved(signature), UnitDevice());
}

TEST(Estimate, ALinearLayerIsThreeProductsOfOneSize) {
  HandGraph hand;
  const int x = hand.NewValue("x", {64, 128}, true), w = hand.Param("w", {256, 128}),
            b = hand.Param("b", {256});
  hand.Op("aten::linear", "", {Ref(x), Ref(w), Ref(b)});
  const double product = 2.0 * 64 * 128 * 256;
  EXPECT_EQ(EstimateWork(SignatureOfLast(hand)).flops, product);
  const OperatorTimes times = Estimate(hand);
  EXPECT_DOUBLE_EQ(times.forward_ms, product / 1e6);
  EXPECT_DOUBLE_EQ(times.backward_input_ms, product / 1e6);
  EXPECT_DOUBLE_EQ(times.backward_weight_ms, product / 1e6);
}

TEST(Estimate, BatchedProductsAndConvolutionsAreCounted) {
  HandGraph hand;
  const int a = hand.NewValue("a", {3, 5, 7}, true), b = hand.NewValue("b", {3, 7, 11}, true);
  hand.Op("aten::bmm", "", {Ref(a), Ref(b)});
  EXPECT_EQ(EstimateWork(SignatureOfLast(hand)).flops, 2.0 * 3 * 5 * 7 * 11);
  const int x = hand.NewValue("x", {2, 4, 8, 8}, true), w = hand.Param("w", {6, 2, 3, 3});
  const std::vector<int64_t> one{1, 1};
  hand.Op("aten::conv2d", "",
          {Ref(x), Ref(w), Const({}), Const(one), Const(one), Const(one), Const(2)});
  EXPECT_EQ(EstimateWork(SignatureOfLast(hand)).flops, 2.0 * (2 * 6 * 8 * 8) * (2 * 3 * 3));
}

TEST(Estimate, ElementwiseOperatorsMoveTheirOperandsAndResults) {
  HandGraph hand;
  const int x = hand.NewValue("x", {64, 128}, true), y = hand.NewValue("y", {64, 128}, true);
  hand.Op("aten::add", "Tensor", {Ref(x), Ref(y), Const(1)});
  const OperatorTimes times = Estimate(hand);
  const double tensor = 64 * 128 * 4;
  EXPECT_DOUBLE_EQ(times.forward_ms, 3 * tensor / 1e6);
  EXPECT_DOUBLE_EQ(times.backward_input_ms, 3 * tensor / 1e6);
  EXPECT_EQ(times.backward_weight_ms, 0);
}

TEST(Estimate, ViewsAreFree) {
  HandGraph hand;
  const int x = hand.NewValue("x", {64, 128}, true);
  hand.Op("aten::transpose", "int", {Ref(x), Const(0), Const(1)});
  EXPECT_EQ(Estimate(hand).forward_ms, 0);
}

TEST(Estimate, ALookupReadsWhatItGivesNotItsWholeTable) {
  HandGraph hand;
  const int ids = hand.Input("ids", {8}, at::kLong), w = hand.Param("w", {1000, 16});
  hand.Op("aten::embedding", "", {Ref(w), Ref(ids), Const(-1), Const(false), Const(false)});
  EXPECT_EQ(EstimateWork(SignatureOfLast(hand)).bytes, 2 * 8 * 16 * 4 + 8 * 8);
}

}  // namespace
}  // namespace autopart
