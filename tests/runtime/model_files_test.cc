// Model files as users save them (tests/testing/make_models.py), cut into stages: against plain
// PyTorch, and threads against one thread. Models without a loss get the mean square of their first
// differentiable output.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/executor.h"
#include "tests/testing/graph_builder.h"
#include "tests/testing/plan_from_stages.h"
#include "tests/testing/torch_models.h"

namespace autopart {
namespace {

using testing::CopyModel;
using testing::EvenStages;
using testing::LoadExample;
using testing::ModelPath;
using testing::PlanFromStages;
using testing::Reference;
using testing::RunReference;

// Appends a call and returns its value, a number that requires a gradient.
int Append(OpGraph& graph, const std::string& op, std::vector<Argument> args, TensorMeta meta) {
  Node node;
  node.op = op;
  node.args = std::move(args);
  node.module_path = "loss";
  node.outputs = {static_cast<int>(graph.values.size())};
  Value value;
  value.producer = static_cast<int>(graph.nodes.size());
  value.tensor = std::move(meta);
  value.requires_grad = true;
  graph.values.push_back(value);
  graph.nodes.push_back(node);
  return node.outputs[0];
}

bool AddLoss(OpGraph& graph) {
  if (graph.loss_output.has_value()) return true;
  for (const Argument& output : graph.outputs) {
    const auto* ref = std::get_if<ValueRef>(&output.is);
    if (ref == nullptr) continue;
    const Value& value = graph.values[ref->value];
    if (!value.requires_grad || !value.tensor.has_value()) continue;
    const TensorMeta meta = *value.tensor;
    const int square = Append(graph, "aten::square", {{ValueRef{ref->value}}}, meta);
    const int mean = Append(graph, "aten::mean", {{ValueRef{square}}, {c10::IValue()}},
                            TensorMeta{meta.dtype, {}, {}});
    graph.loss_output = static_cast<int>(graph.outputs.size());
    graph.outputs.push_back({ValueRef{mean}});
    return true;
  }
  return false;
}

std::vector<std::vector<at::IValue>> Inputs(const Model& model, const std::string& name, int m) {
  const testing::Example example = LoadExample(name);
  std::vector<std::vector<at::IValue>> inputs(m);
  for (int j = 0; j < m; ++j) {
    for (size_t i = 0; i < model.graph.inputs.size(); ++i) {
      const at::Tensor& tensor = example.inputs.at(i);
      const ValueKind kind = model.graph.values[model.graph.inputs[i].value].kind;
      if (kind == ValueKind::kInt) {
        inputs[j].push_back(tensor.item<int64_t>());
      } else if (tensor.is_floating_point()) {
        inputs[j].push_back(tensor * (1 + 0.1 * j));
      } else {
        inputs[j].push_back(tensor.dim() == 0 ? tensor : tensor.roll(j, 0));
      }
    }
  }
  return inputs;
}

void ExpectClose(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined() || a.numel() == 0) return;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double scale = std::max(1.0, b.abs().max().item<double>());
  EXPECT_LE((a - b).abs().max().item<double>(), 1e-5 * scale) << what;
}

class ModelFile : public ::testing::TestWithParam<const char*> {};

TEST_P(ModelFile, TrainsInStagesLikeOneDevice) {
  Model model = LoadModel(ModelPath(GetParam()));
  ASSERT_TRUE(AddLoss(model.graph));
  for (const auto& [stages, m, schedule] : std::vector<std::tuple<int, int, const char*>>{
           {1, 1, "gpipe"}, {2, 3, "1f1b"}, {3, 2, "gpipe"}, {4, 7, "1f1b"}}) {
    SCOPED_TRACE(std::to_string(stages) + " stages");
    const auto inputs = Inputs(model, GetParam(), m);
    const std::vector<double> weights(m, model.graph.loss_is_sum ? 1.0 : 1.0 / m);
    const Reference reference = RunReference(model, inputs, weights, 3, 0);
    const Plan plan =
        PlanFromStages(model.graph, {EvenStages(model.graph, stages), {}, schedule, m});
    ExecutorOptions options;
    options.seed = 3;
    options.deadline = std::chrono::seconds(60);
    Executor threads(plan, CopyModel(model), options);
    options.mode = ExecutorOptions::Mode::kOneThread;
    Executor one(plan, CopyModel(model), options);
    const StepResult result = threads.StepMicroBatches(inputs);
    const StepResult on_one = one.StepMicroBatches(inputs);
    ExpectClose(result.loss, reference.loss, "loss");
    EXPECT_TRUE(at::equal(result.loss, on_one.loss));
    const auto parameters = threads.Parameters();
    for (const auto& [name, tensor] : one.Parameters()) {
      const at::Tensor& expected = reference.tensors.at(name);
      ExpectClose(parameters.at(name).grad(), expected.grad(), "gradient of " + name);
      if (tensor.grad().defined()) {
        EXPECT_TRUE(at::equal(tensor.grad(), parameters.at(name).grad())) << name;
      }
      EXPECT_TRUE(at::equal(tensor, parameters.at(name))) << name;
      if (!tensor.is_floating_point()) {
        EXPECT_TRUE(at::equal(tensor, expected)) << name;
      } else {
        ExpectClose(tensor, expected, name);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelFile,
                         ::testing::Values("skip_mlp", "tied_head", "normed", "normed_scripted",
                                           "dropped", "dropped_scripted", "attention",
                                           "attention_causal", "attention_dropout", "control_flow",
                                           "appends", "structures", "structures_scripted", "alias",
                                           "recurrent", "gpt2_train", "bert_train", "gpt2", "llama",
                                           "bert", "t5", "bart", "gemma2", "vit", "mixtral",
                                           "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace autopart
