#include "profiler/import_torchscript.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/alias.h"
#include "profiler/model.h"
#include "profiler/run_node.h"
#include "tests/testing/torch_models.h"

namespace autopart {
namespace {

using ::autopart::testing::Example;
using ::autopart::testing::LoadExample;
using ::autopart::testing::ModelPath;
using ::autopart::testing::RunGraph;

Model Load(const std::string& name) {
  absl::StatusOr<Model> model = LoadModelFile(ModelPath(name));
  if (!model.ok()) {
    throw std::runtime_error(name + ": " + std::string(model.status().message()));
  }
  return *std::move(model);
}

void ExpectSame(const std::vector<c10::IValue>& results, const std::vector<at::Tensor>& expected,
                const std::string& name) {
  ASSERT_EQ(results.size(), expected.size()) << name;
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_TRUE(results[i].isTensor()) << name << " output " << i;
    const at::Tensor& got = results[i].toTensor();
    EXPECT_EQ(got.scalar_type(), expected[i].scalar_type()) << name << " output " << i;
    EXPECT_TRUE(at::equal(got, expected[i]))
        << name << " output " << i << " differs by "
        << (got.to(at::kDouble) - expected[i].to(at::kDouble)).abs().max().item<double>();
  }
}

class ImportedModel : public ::testing::TestWithParam<const char*> {};

TEST_P(ImportedModel, GivesTheOutputsOfItsOwnForward) {
  const Model model = Load(GetParam());
  const Example example = LoadExample(GetParam());
  const at::NoGradGuard no_grad;
  ExpectSame(RunGraph(model.graph, model.tensors, example.inputs), example.outputs, GetParam());
}

TEST_P(ImportedModel, HasTheShapesThatARunHas) {
  const Model model = Load(GetParam());
  const Example example = LoadExample(GetParam());
  const OpGraph& graph = model.graph;
  std::vector<c10::IValue> slots(graph.values.size());
  OpGraph all = graph;
  all.outputs.clear();
  std::vector<int> ids;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].in_block) continue;
    all.outputs.push_back({ValueRef{static_cast<int>(v)}});
    ids.push_back(static_cast<int>(v));
  }
  const std::vector<c10::IValue> results = RunGraph(all, model.tensors, example.inputs);
  std::map<const void*, int> first;
  // What depends on data was propagated as for zeros.
  std::set<int> from_data;
  for (const Node& node : graph.nodes) {
    bool tainted = node.effects.data_dependent;
    for (const int value : ReadValues(node)) tainted |= from_data.count(value) > 0;
    if (!tainted) continue;
    from_data.insert(node.outputs.begin(), node.outputs.end());
    for (const int value : WrittenValues(node)) from_data.insert(value);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const Value& value = graph.values[ids[i]];
    const std::string where = std::string(GetParam()) + " %" + std::to_string(ids[i]) +
                              (value.producer >= 0 ? " " + graph.nodes[value.producer].op : "");
    if (!results[i].isTensor()) {
      EXPECT_NE(value.kind, ValueKind::kTensor) << where;
      continue;
    }
    const at::Tensor& tensor = results[i].toTensor();
    const auto [it, is_new] = first.try_emplace(tensor.storage().unsafeGetStorageImpl(), ids[i]);
    ASSERT_TRUE(value.tensor.has_value()) << where;
    if (from_data.count(ids[i])) continue;
    EXPECT_EQ(tensor.scalar_type(), value.tensor->dtype) << where;
    EXPECT_EQ(tensor.sizes().vec(), value.tensor->Sizes()) << where;
    EXPECT_EQ(tensor.strides().vec(), value.tensor->strides) << where;
    EXPECT_EQ(tensor.requires_grad(), value.requires_grad) << where;
    EXPECT_EQ(value.view_of, is_new ? kNoValue : it->second) << where;
  }
}

TEST_P(ImportedModel, SurvivesJson) {
  const Model model = Load(GetParam());
  const std::string json = ToJson(model.graph);
  const absl::StatusOr<OpGraph> again = OpGraphFromJson(json);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ModelHash(*again), ModelHash(model.graph));
  EXPECT_EQ(ToJson(*again), json);
  const Example example = LoadExample(GetParam());
  const at::NoGradGuard no_grad;
  ExpectSame(RunGraph(*again, model.tensors, example.inputs), example.outputs, GetParam());
}

TEST_P(ImportedModel, HasTheSameHashWhenLoadedAgain) {
  EXPECT_EQ(ModelHash(Load(GetParam()).graph), ModelHash(Load(GetParam()).graph));
}

INSTANTIATE_TEST_SUITE_P(All, ImportedModel,
                         ::testing::Values("skip_mlp", "tied_head", "normed", "normed_eval",
                                           "normed_scripted", "dropped_eval", "attention",
                                           "attention_causal", "control_flow", "appends",
                                           "structures", "structures_scripted", "in_place", "alias",
                                           "detector", "recurrent", "frozen", "gpt2", "llama",
                                           "bert", "t5", "gemma2", "bart", "vit", "mixtral",
                                           "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace autopart
