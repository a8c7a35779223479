#include "profiler/batches.h"

#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "tests/testing/graph_builder.h"

namespace autopart {
namespace {

using testing::GraphBuilder;
using ::testing::HasSubstr;

// An embedding of ids below 10 and a float input, four samples a micro-batch.
OpGraph Graph() {
  GraphBuilder g;
  const int ids = g.Input("ids", at::zeros({4, 3}, at::kLong));
  const int x = g.Input("x", at::zeros({4, 3}));
  g.model().graph.inputs[0].index_bound = 10;
  g.Output(g.Call("aten::add.Tensor", {GraphBuilder::V(x), GraphBuilder::V(ids)}));
  return g.model().graph;
}

std::string Save(const std::string& name, const at::IValue& value) {
  const std::string path = ::testing::TempDir() + "/" + name;
  const std::vector<char> bytes = torch::jit::pickle_save(value);
  std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
  return path;
}

at::IValue List(const std::vector<at::Tensor>& tensors) { return c10::List<at::Tensor>(tensors); }

std::string ErrorOf(const std::string& path) {
  try {
    LoadBatches(path, Graph(), 2);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Batches, RandomOnesFollowTheInputSpecificationAndTheSeed) {
  const Batches batches = RandomBatches(Graph(), 3, 7);
  ASSERT_EQ(batches.steps.size(), 1);
  ASSERT_EQ(batches.Of(12).size(), 3);
  for (const auto& micro_batch : batches.Of(0)) {
    const at::Tensor ids = micro_batch.at(0).toTensor();
    EXPECT_EQ(ids.scalar_type(), at::kLong);
    EXPECT_EQ(ids.sizes().vec(), (std::vector<int64_t>{4, 3}));
    EXPECT_GE(ids.min().item<int64_t>(), 0);
    EXPECT_LT(ids.max().item<int64_t>(), 10);
    EXPECT_EQ(micro_batch.at(1).toTensor().scalar_type(), at::kFloat);
  }
  const auto x = [](const Batches& b, int j) { return b.Of(0)[j][1].toTensor(); };
  EXPECT_FALSE(at::equal(x(batches, 0), x(batches, 1)));
  EXPECT_TRUE(at::equal(x(batches, 1), x(RandomBatches(Graph(), 3, 7), 1)));
  EXPECT_FALSE(at::equal(x(batches, 1), x(RandomBatches(Graph(), 3, 8), 1)));
}

TEST(Batches, OfAFileComeOneAfterTheOtherAndBeginAgain) {
  const at::Tensor ids = at::arange(60, at::kLong).remainder(10).view({20, 3});
  const at::Tensor x = at::arange(60, at::kFloat).view({20, 3});
  const Batches batches = LoadBatches(Save("two_steps.pt", List({ids, x})), Graph(), 2);
  ASSERT_EQ(batches.steps.size(), 2);  // of 8 samples each, 4 are left over
  EXPECT_TRUE(at::equal(batches.Of(0)[1][1].toTensor(), x.slice(0, 4, 8)));
  EXPECT_TRUE(at::equal(batches.Of(3)[0][0].toTensor(), ids.slice(0, 8, 12)));
}

TEST(Batches, OfAFileThatDoesNotFitTheModelAreRefused) {
  const at::Tensor ids = at::zeros({8, 3}, at::kLong);
  const at::Tensor x = at::zeros({8, 3});
  EXPECT_EQ(ErrorOf(Save("good.pt", List({ids, x}))), "");
  EXPECT_THAT(ErrorOf("/nowhere.pt"), HasSubstr("cannot read"));
  EXPECT_THAT(ErrorOf(Save("number.pt", 3)), HasSubstr("want a list of tensors"));
  EXPECT_THAT(ErrorOf(Save("one.pt", List({ids}))), HasSubstr("takes 2 inputs, the file holds 1"));
  EXPECT_THAT(ErrorOf(Save("shape.pt", List({ids, at::zeros({8, 4})}))), HasSubstr("('x')"));
  EXPECT_THAT(ErrorOf(Save("dtype.pt", List({ids, x.to(at::kDouble)}))), HasSubstr("Double"));
  EXPECT_THAT(ErrorOf(Save("bound.pt", List({ids + 10, x}))), HasSubstr("outside 0 to 9"));
  EXPECT_THAT(ErrorOf(Save("few.pt", List({ids, x.narrow(0, 0, 7)}))),
              HasSubstr("has 7 samples, a step takes 8"));
  const std::string broken = ::testing::TempDir() + "/broken.pt";
  std::ofstream(broken) << "not a file of torch.save";
  EXPECT_THAT(ErrorOf(broken), HasSubstr("want a file of torch.save"));
}

}  // namespace
}  // namespace autopart
