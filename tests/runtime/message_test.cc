// Values of every kind go over the wire and come back equal, bits, strides and types.
#include "runtime/message.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/transports/in_process.h"

namespace autopart {
namespace {

std::vector<at::IValue> RoundTrip(const std::vector<at::IValue>& values,
                                  std::vector<bool>* requires_grad = nullptr) {
  auto group = MakeInProcessGroup(2);
  OutgoingMessage out;
  out.Begin(values.size());
  for (const at::IValue& value : values) out.Add(value);
  out.End();
  const auto sending = group[0]->StartSend(1, out.Pieces());
  IncomingMessage in;
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  in.Receive(*group[1], 0, deadline);
  sending->Wait(deadline);
  if (requires_grad != nullptr) *requires_grad = in.requires_grad();
  return in.TakeValues();
}

TEST(Message, CarriesTensorsOfAnyDtypeAndShape) {
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kByte, at::kChar, at::kBool, at::kComplexDouble, at::kFloat8_e4m3fn}) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{}, {0}, {7}, {3, 0, 2}, {2, 3, 4}}) {
      const at::Tensor tensor = at::randn(sizes).mul(10).to(dtype);
      const at::Tensor back = RoundTrip({tensor})[0].toTensor();
      EXPECT_EQ(back.scalar_type(), dtype);
      EXPECT_EQ(back.sizes(), tensor.sizes());
      const at::ScalarType wide = dtype == at::kComplexDouble ? dtype : at::kDouble;
      EXPECT_TRUE(at::equal(back.to(wide), tensor.to(wide)));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(back.const_data_ptr()) % 64, 0);
    }
  }
}

TEST(Message, KeepsStridesOfDenseTensorsAndMakesOthersDense) {
  const at::Tensor base = at::randn({4, 6, 2});
  for (const at::Tensor& tensor :
       {base.permute({2, 0, 1}), base.transpose(0, 1), base.select(0, 2), base.select(2, 1),
        base.narrow(1, 1, 3), base.slice(0, 0, 4, 2), at::randn({1, 6}).expand({5, 6}),
        at::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)}) {
    const at::Tensor back = RoundTrip({tensor})[0].toTensor();
    EXPECT_TRUE(at::equal(back, tensor));
    if (tensor.is_non_overlapping_and_dense()) {
      EXPECT_EQ(back.strides(), tensor.strides());
    } else {
      EXPECT_TRUE(back.is_contiguous());
    }
    EXPECT_EQ(back.storage().nbytes(), back.nbytes());
  }
  const at::Tensor complex = at::randn({3, 3}, at::kComplexFloat).conj();
  EXPECT_TRUE(at::equal(RoundTrip({complex})[0].toTensor(), complex));
}

TEST(Message, SaysWhichTensorsRequireAGradient) {
  const at::Tensor leaf = at::randn({2, 2}).requires_grad_(true);
  std::vector<bool> requires_grad;
  const auto tuple = c10::ivalue::Tuple::create({at::randn({1}), leaf.mul(2), leaf.t()});
  const auto back = RoundTrip({tuple, at::randn({3})}, &requires_grad);
  EXPECT_THAT(requires_grad, ::testing::ElementsAre(false, true, true, false));
  EXPECT_FALSE(back[0].toTupleRef().elements()[1].toTensor().requires_grad());
}

TEST(Message, CarriesEveryOtherKindOfValueWithItsType) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("a", at::ones({2}));
  dict.insert("b", at::zeros({3}));
  c10::List<std::optional<at::Tensor>> maybe;
  maybe.push_back(std::nullopt);
  maybe.push_back(at::ones({1}));
  const std::vector<at::IValue> values = {
      at::IValue(),
      int64_t{-5},
      2.5,
      true,
      "a text of some length",
      std::string(3000, 'x'),  // more than the header holds
      std::vector<int64_t>{1, 2, 3},
      std::vector<double>{0.5},
      c10::List<bool>({true, false}),
      c10::List<std::string>({"p", "q"}),
      c10::List<at::Tensor>({at::ones({2, 2})}),
      maybe,
      dict,
      at::Device("cpu"),
      c10::complex<double>(1, -1),
      c10::ivalue::Tuple::create({int64_t{1}, c10::ivalue::Tuple::create({at::ones({2}), 0.5})}),
  };
  const std::vector<at::IValue> back = RoundTrip(values);
  ASSERT_EQ(back.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(back[i].tagKind(), values[i].tagKind()) << i;
    EXPECT_EQ(back[i].type()->repr_str(), values[i].type()->repr_str()) << i;
  }
  EXPECT_EQ(back[1].toInt(), -5);
  EXPECT_EQ(back[5].toStringRef(), std::string(3000, 'x'));
  EXPECT_EQ(back[6].toIntVector(), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(at::equal(back[12].toGenericDict().at("b").toTensor(), at::zeros({3})));
  EXPECT_TRUE(back[11].toListRef()[0].isNone());
}

TEST(Message, CanBeUsedAgainAndHoldsNothingWhenCleared) {
  OutgoingMessage out;
  at::Tensor tensor = at::randn({100});
  for (int i = 0; i < 2; ++i) {
    out.Begin(1);
    out.Add(tensor);
    out.End();
    EXPECT_EQ(out.Pieces().size(), 2);
    EXPECT_GT(tensor.storage().use_count(), 1);
    out.Clear();
    EXPECT_EQ(tensor.storage().use_count(), 1);
  }
}

}  // namespace
}  // namespace autopart
