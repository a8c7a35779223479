// What single operators keep for backward, read off torch's derivative formulas by hand.
#include "profiler/saved.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/allocation_observer.h"
#include "tests/profiler/hand_graph.h"

namespace autopart {
namespace {

using testing::Const;
using ::testing::ElementsAre;
using testing::HandGraph;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Ref;

SavedForBackward Look(const HandGraph& hand, ObserveOn where) {
  const KnownValues known{std::vector<c10::IValue>(hand.graph.values.size()), {}};
  const absl::StatusOr<OperatorSignature> signature =
      Signatures(hand.graph, known).Of(hand.graph.nodes.back(), /*grad=*/true);
  EXPECT_TRUE(signature.ok()) << signature.status();
  absl::StatusOr<SavedForBackward> saved = ObserveSaved(*signature, where);
  EXPECT_TRUE(saved.ok()) << saved.status();
  return *saved;
}

// Activation in the middle of a model: requires grad and is no leaf.
int Activation(HandGraph& hand, const std::vector<int64_t>& sizes) {
  return hand.NewValue("x", sizes, true);
}

class SavedOn : public ::testing::TestWithParam<ObserveOn> {};
INSTANTIATE_TEST_SUITE_P(Devices, SavedOn, ::testing::Values(ObserveOn::kCpu, ObserveOn::kShrunk),
                         [](const auto& info) {
                           return info.param == ObserveOn::kCpu ? "Cpu" : "Shrunk";
                         });

TEST_P(SavedOn, LinearKeepsItsInputButNotItsWeight) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16}), w = hand.Param("w", {32, 16}), b = hand.Param("b", {32});
  hand.Op("aten::linear", "", {Ref(x), Ref(w), Ref(b)});
  const SavedForBackward saved = Look(hand, GetParam());
  EXPECT_THAT(saved.operands, ElementsAre(0));
  EXPECT_THAT(saved.results, IsEmpty());
  EXPECT_EQ(saved.private_bytes, 0);
}

TEST_P(SavedOn, TanhKeepsItsResultOnly) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16});
  hand.Op("aten::tanh", "", {Ref(x)});
  const SavedForBackward saved = Look(hand, GetParam());
  EXPECT_THAT(saved.operands, IsEmpty());
  EXPECT_THAT(saved.results, ElementsAre(0));
  EXPECT_EQ(saved.memory[0].storage_bytes, 8 * 16 * 4);
}

TEST_P(SavedOn, AddKeepsNothing) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16}), y = Activation(hand, {8, 16});
  hand.Op("aten::add", "Tensor", {Ref(x), Ref(y), Const(1)});
  const SavedForBackward saved = Look(hand, GetParam());
  EXPECT_THAT(saved.operands, IsEmpty());
  EXPECT_THAT(saved.results, IsEmpty());
  EXPECT_EQ(saved.private_bytes, 0);
}

TEST_P(SavedOn, MulKeepsTheOtherFactorOfEachThatNeedsAGradient) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16}), mask = hand.Input("mask", {8, 16});
  hand.Op("aten::mul", "Tensor", {Ref(x), Ref(mask)});
  EXPECT_THAT(Look(hand, GetParam()).operands, ElementsAre(1));
  hand.Op("aten::mul", "Tensor", {Ref(x), Ref(x)});
  EXPECT_THAT(Look(hand, GetParam()).operands, ElementsAre(0));
}

TEST_P(SavedOn, InPlaceReluKeepsTheMemoryOfItsOperand) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16});
  hand.Op("aten::relu_", "", {Ref(x)});
  const SavedForBackward saved = Look(hand, GetParam());
  EXPECT_THAT(saved.operands, ElementsAre(0));
  EXPECT_THAT(saved.results, IsEmpty());
  EXPECT_EQ(saved.memory[0].shares_operand, 0);
}

TEST_P(SavedOn, AViewKeepsNothingAndSharesMemory) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16});
  hand.Op("aten::transpose", "int", {Ref(x), Const(0), Const(1)});
  const SavedForBackward saved = Look(hand, GetParam());
  EXPECT_THAT(saved.operands, IsEmpty());
  EXPECT_EQ(saved.memory[0].shares_operand, 0);
  EXPECT_EQ(saved.private_bytes, 0);
}

TEST_P(SavedOn, CrossEntropyKeepsProbabilitiesOfItsOwn) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16}), y = hand.Input("y", {8}, at::kLong);
  hand.Op("aten::cross_entropy_loss", "",
          {Ref(x), Ref(y), Const({}), Const(1), Const(-100), Const(0.0)});
  const SavedForBackward saved = Look(hand, GetParam());
  EXPECT_THAT(saved.operands, ElementsAre(1));
  EXPECT_THAT(saved.results, IsEmpty());
  EXPECT_EQ(saved.private_bytes, 8 * 16 * 4 + 4);  // log-probabilities and the total weight
}

TEST(Saved, LayerNormKeepsMeanAndInverseDeviation) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16}), w = hand.Param("w", {16}), b = hand.Param("b", {16});
  hand.Op("aten::layer_norm", "",
          {Ref(x), Const(std::vector<int64_t>{16}), Ref(w), Ref(b), Const(1e-5), Const(true)});
  const SavedForBackward saved = Look(hand, ObserveOn::kAutomatic);
  EXPECT_THAT(saved.operands, ElementsAre(0));
  EXPECT_EQ(saved.private_bytes, 2 * 8 * 4);
}

// ---- what a run on few elements tells of the full size ----

void ExpectTheSameOnFewElements(const HandGraph& hand) {
  const SavedForBackward few = Look(hand, ObserveOn::kShrunk);
  const SavedForBackward all = Look(hand, ObserveOn::kCpu);
  EXPECT_EQ(few.operands, all.operands);
  EXPECT_EQ(few.results, all.results);
  EXPECT_EQ(few.private_bytes, all.private_bytes);
  EXPECT_EQ(few.temporary_bytes, all.temporary_bytes);
  ASSERT_EQ(few.memory.size(), all.memory.size());
  for (size_t i = 0; i < all.memory.size(); ++i) {
    EXPECT_EQ(few.memory[i].storage_bytes, all.memory[i].storage_bytes);
    EXPECT_EQ(few.memory[i].shares_operand, all.memory[i].shares_operand);
  }
}

TEST(SavedOfLarge, LayerNorm) {
  HandGraph hand;
  const int x = Activation(hand, {4, 300, 512}), w = hand.Param("w", {512});
  hand.Op("aten::layer_norm", "",
          {Ref(x), Const(std::vector<int64_t>{512}), Ref(w), Const({}), Const(1e-5), Const(true)});
  ExpectTheSameOnFewElements(hand);
}

TEST(SavedOfLarge, SafeSoftmaxWithItsTemporaries) {
  HandGraph hand;
  const int x = Activation(hand, {2, 12, 200, 300});
  hand.Op("aten::_safe_softmax", "", {Ref(x), Const(-1), Const({})});
  ExpectTheSameOnFewElements(hand);
}

TEST(SavedOfLarge, LinearOfThreeDimensions) {
  HandGraph hand;
  const int x = Activation(hand, {4, 100, 256}), w = hand.Param("w", {1024, 256});
  hand.Op("aten::linear", "", {Ref(x), Ref(w), Const({})});
  ExpectTheSameOnFewElements(hand);
}

TEST(SavedOfLarge, MatmulOfEqualSizes) {
  HandGraph hand;
  const int x = Activation(hand, {4, 128, 128}), y = Activation(hand, {4, 128, 128});
  hand.Op("aten::matmul", "", {Ref(x), Ref(y)});
  ExpectTheSameOnFewElements(hand);
}

TEST(SavedOfLarge, Embedding) {
  HandGraph hand;
  const int w = hand.Param("w", {5000, 64}), ids = hand.Input("ids", {4, 100}, at::kLong);
  hand.Op("aten::embedding", "", {Ref(w), Ref(ids), Const(-1), Const(false), Const(false)});
  ExpectTheSameOnFewElements(hand);
}

TEST(SavedOfLarge, CrossEntropy) {
  HandGraph hand;
  const int x = Activation(hand, {200, 3000}), y = hand.Input("y", {200}, at::kLong);
  hand.Op("aten::cross_entropy_loss", "",
          {Ref(x), Ref(y), Const({}), Const(1), Const(-100), Const(0.0)});
  ExpectTheSameOnFewElements(hand);
}

TEST(SavedOfLarge, BatchNormAndGroupNorm) {
  HandGraph batch;
  const int x = Activation(batch, {64, 32, 20, 20}), w = batch.Param("w", {32});
  batch.Op("aten::batch_norm", "",
           {Ref(x), Ref(w), Const({}), Const({}), Const({}), Const(true), Const(0.1), Const(1e-5),
            Const(true)});
  ExpectTheSameOnFewElements(batch);
  HandGraph group;
  const int y = Activation(group, {64, 32, 20, 20});
  group.Op("aten::group_norm", "",
           {Ref(y), Const(8), Const({}), Const({}), Const(1e-5), Const(true)});
  ExpectTheSameOnFewElements(group);
}

TEST(SavedOfLarge, AViewOfSizesThatHangTogetherTakesNoMemory) {
  HandGraph hand;
  const int x = Activation(hand, {4, 64, 4096});
  hand.Op("aten::view", "", {Ref(x), Const(std::vector<int64_t>{4, 64, 32, -1})});
  const SavedForBackward saved = Look(hand, ObserveOn::kAutomatic);
  EXPECT_EQ(saved.memory[0].shares_operand, 0);
  EXPECT_EQ(saved.private_bytes, 0);
}

TEST(SavedOfLarge, OperatorsOfManyTimesThisMachinesMemoryAreObserved) {
  HandGraph hand;
  const int x = Activation(hand, {2, 2, 2, 2});
  hand.Op("aten::_safe_softmax", "", {Ref(x), Const(-1), Const({})});
  const KnownValues known{std::vector<c10::IValue>(hand.graph.values.size()), {}};
  OperatorSignature signature = *Signatures(hand.graph, known).Of(hand.graph.nodes[0], true);
  for (OperandSpec* spec : {&signature.operands[0], &signature.results[0]}) {
    spec->sizes = {512, 96, 8192, 8192};
    spec->strides = {96 * 8192 * 8192LL, 8192 * 8192, 8192, 1};
  }
  const absl::StatusOr<SavedForBackward> saved = ObserveSaved(signature);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_THAT(saved->results, ElementsAre(0));
  EXPECT_EQ(saved->memory[0].storage_bytes, int64_t{512} * 96 * 8192 * 8192 * 4);
}

TEST(Saved, NothingIsKeptWhereNothingNeedsAGradient) {
  HandGraph hand;
  const int x = hand.Input("x", {8, 16});
  hand.Op("aten::tanh", "", {Ref(x)});
  const SavedForBackward saved = Look(hand, ObserveOn::kCpu);
  EXPECT_THAT(saved.operands, IsEmpty());
  EXPECT_THAT(saved.results, IsEmpty());
  EXPECT_EQ(saved.private_bytes, 0);
}

TEST(Saved, AnOperatorThatCannotRunIsNamed) {
  HandGraph hand;
  const int x = Activation(hand, {8, 16});
  const int y = hand.Op("aten::tanh", "", {Ref(x)});
  hand.graph.nodes.back().op = "aten::mm";
  hand.graph.nodes.back().args = {Ref(x), Ref(x)};
  static_cast<void>(y);
  const KnownValues known{std::vector<c10::IValue>(2), {}};
  const auto signature = Signatures(hand.graph, known).Of(hand.graph.nodes[0], true);
  ASSERT_TRUE(signature.ok());
  const auto saved = ObserveSaved(*signature);
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr("aten::mm in module 'hand'"));
}

TEST(AllocationObserver, CountsExactBytesAndForgetsFreedOnes) {
  AllocationObserver observer;
  at::Tensor kept = at::empty({3}, at::kFloat);
  { at::Tensor gone = at::empty({100}, at::kDouble); }
  EXPECT_EQ(observer.live_bytes(), 12);
  EXPECT_EQ(observer.peak_bytes(), 812);
  at::Tensor meta = at::empty({5}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
  EXPECT_EQ(observer.live_bytes(), 32);
  meta = at::Tensor();
  kept = at::Tensor();
  EXPECT_EQ(observer.live_bytes(), 0);
}

}  // namespace
}  // namespace autopart
