// Shrunk signatures: which sizes become small, and how bytes grow back.
#include "profiler/internal/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/profiler/hand_graph.h"

namespace autopart {
namespace {

using autopart::testing::Const;
using autopart::testing::HandGraph;
using autopart::testing::Ref;
using internal::ShrunkSignature;
using internal::WaysToShrink;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

OperatorSignature SignatureOf(const HandGraph& hand) {
  const KnownValues known{std::vector<c10::IValue>(hand.graph.values.size()), {}};
  return *Signatures(hand.graph, known).Of(hand.graph.nodes.back(), /*grad=*/true);
}

HandGraph Tanh(const std::vector<int64_t>& sizes) {
  HandGraph hand;
  hand.Op("aten::tanh", "", {Ref(hand.NewValue("x", sizes, true))});
  return hand;
}

TEST(Shrink, LargeSizesBecomeSmallAndKeepTheirPowersOfTwo) {
  const std::vector<ShrunkSignature> ways = WaysToShrink(SignatureOf(Tanh({4, 2048, 8192})));
  ASSERT_FALSE(ways.empty());
  EXPECT_THAT(ways[0].signature.operands[0].sizes, ElementsAre(4, 8 * 5, 8 * 7));
  EXPECT_THAT(ways[0].signature.operands[0].strides, ElementsAre(40 * 56, 56, 1));
}

TEST(Shrink, BytesGrowBackByTheSizesThatTheyAreAProductOf) {
  const ShrunkSignature way = WaysToShrink(SignatureOf(Tanh({4, 2048, 8192})))[0];
  EXPECT_EQ(way.FullBytes(4 * 40 * 4), 4 * 2048 * 4);                       // a row statistic
  EXPECT_EQ(way.FullBytes(4 * 40 * 56 * 4), int64_t{4} * 2048 * 8192 * 4);  // the whole
  EXPECT_EQ(way.FullBytes(40 * 40), int64_t{2048} * 2048);                  // a mask of flags
  EXPECT_EQ(way.FullBytes(4), 4);                                           // one number
  EXPECT_EQ(way.FullBytes(0), 0);
}

TEST(Shrink, EqualSizesStayEqualWhereverTheyStand) {
  HandGraph hand;
  const int x = hand.NewValue("x", {128, 512}, true), w = hand.Param("w", {512});
  hand.Op("aten::layer_norm", "",
          {Ref(x), Const(std::vector<int64_t>{512}), Ref(w), Const({}), Const(1e-5), Const(true)});
  const OperatorSignature small = WaysToShrink(SignatureOf(hand))[0].signature;
  const int64_t width = small.operands[0].sizes[1];
  EXPECT_LT(width, 512);
  EXPECT_THAT(small.operands[1].sizes, ElementsAre(width));
  EXPECT_THAT(std::get<c10::IValue>(small.node.args[1].is).toIntVector(), ElementsAre(width));
}

TEST(Shrink, ASizeThatStaysNeverHasThePrimeOfOneThatShrinks) {
  const ShrunkSignature way = WaysToShrink(SignatureOf(Tanh({15, 1000})))[0];
  EXPECT_EQ(way.sizes[0].prime, 7);  // 15 = 3 x 5
  EXPECT_EQ(way.FullBytes(15 * 56 * 4), 15 * 1000 * 4);
  EXPECT_EQ(way.FullBytes(15 * 4), 15 * 4);
}

TEST(Shrink, MemoryOrderAndExpandedAxesStay) {
  OperatorSignature signature = SignatureOf(Tanh({64, 128, 256}));
  signature.operands[0].strides = {1, 0, 64};
  const OperatorSignature small = WaysToShrink(signature)[0].signature;
  const std::vector<int64_t>& sizes = small.operands[0].sizes;
  EXPECT_THAT(small.operands[0].strides, ElementsAre(1, 0, sizes[0]));
}

TEST(Shrink, TheBatchAloneIsTheSecondWay) {
  const std::vector<ShrunkSignature> ways = WaysToShrink(SignatureOf(Tanh({256, 3, 224, 224})));
  ASSERT_EQ(ways.size(), 2);
  EXPECT_THAT(ways[1].signature.operands[0].sizes, ElementsAre(5, 3, 224, 224));
}

TEST(Shrink, SmallOperatorsAreLeft) {
  EXPECT_THAT(WaysToShrink(SignatureOf(Tanh({2, 3}))), IsEmpty());
}

}  // namespace
}  // namespace autopart
