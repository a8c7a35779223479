#include "profiler/alias.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/torch_models.h"

namespace autopart {
namespace {

using ::autopart::testing::ModelPath;

OpGraph Load(const std::string& name) {
  absl::StatusOr<Model> model = LoadModelFile(ModelPath(name));
  if (!model.ok()) throw std::runtime_error(std::string(model.status().message()));
  return model->graph;
}

// Operators of each group, in order.
std::vector<std::vector<std::string>> Groups(const OpGraph& graph) {
  const std::vector<int> group = WriteGroups(graph);
  std::vector<std::vector<std::string>> out;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i] < 0) continue;
    if (group[i] >= static_cast<int>(out.size())) out.resize(group[i] + 1);
    out[group[i]].push_back(graph.nodes[i].op);
  }
  return out;
}

int Count(const std::vector<std::string>& ops, const std::string& op) {
  return static_cast<int>(std::count(ops.begin(), ops.end(), op));
}

TEST(WriteGroups, ModelsWithoutWritesHaveNone) {
  for (const char* name : {"skip_mlp", "tied_head", "structures", "gpt2", "llama", "bert"}) {
    EXPECT_TRUE(Groups(Load(name)).empty()) << name;
  }
}

TEST(WriteGroups, AnIndexedWriteStaysWithItsLaterReaders) {
  const OpGraph graph = Load("in_place");
  const std::vector<std::vector<std::string>> groups = Groups(graph);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(Count(groups[0], "aten::index_put_"), 1);
  EXPECT_EQ(Count(groups[0], "aten::linear"), 1);  // reads c after the write
  EXPECT_EQ(Count(groups[0], "aten::sum"), 1);
  EXPECT_EQ(Count(groups[1], "aten::relu_"), 1);
  EXPECT_EQ(Count(groups[1], "aten::add_"), 1);
}

TEST(WriteGroups, StatisticsStayWithTheirBatchNorm) {
  const OpGraph graph = Load("normed");
  const std::vector<std::vector<std::string>> groups = Groups(graph);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(groups[0], ::testing::UnorderedElementsAre("aten::add_", "aten::batch_norm"));
  for (const Node& node : graph.nodes) {
    EXPECT_EQ(node.effects.writes_buffer, node.op == "aten::add_" || node.op == "aten::batch_norm")
        << node.op;
  }
  EXPECT_TRUE(Groups(Load("normed_eval")).empty());
}

TEST(WriteGroups, AnAppendedListStaysWithAllItsUsers) {
  const OpGraph graph = Load("appends");
  const std::vector<std::vector<std::string>> groups = Groups(graph);
  ASSERT_EQ(groups.size(), 1u);
  for (const char* op : {"prim::ListConstruct", "prim::If", "prim::Loop", "aten::cat"}) {
    EXPECT_EQ(Count(groups[0], op), 1) << op;
  }
}

TEST(Copyable, ChainsOfSizesAreAndTensorsAreNot) {
  const OpGraph graph = Load("structures");
  int chains = 0;
  for (const Node& node : graph.nodes) {
    if (node.op == "prim::NumToTensor" || node.op == "aten::Int" || node.op == "aten::arange") {
      EXPECT_TRUE(node.copyable) << node.op;
      EXPECT_FALSE(node.effects.data_dependent) << node.op;
      ++chains;
    }
    if (node.op == "aten::size" || node.op == "aten::linear") {
      EXPECT_FALSE(node.copyable);
    }
  }
  EXPECT_GE(chains, 3);
  for (const Node& node : Load("in_place").nodes) {
    if (node.op == "aten::zeros") {
      EXPECT_FALSE(node.copyable) << "it is written to";
    }
  }
}

}  // namespace
}  // namespace autopart
