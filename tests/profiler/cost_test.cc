// The cost graph of small models, and its central promise: bytes kept for backward are exact.
#include "profiler/cost.h"

#include <cstdlib>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include "profiler/allocation_observer.h"
#include "profiler/run_node.h"
#include "tests/profiler/hand_graph.h"
#include "tests/testing/torch_models.h"

namespace autopart {
namespace {

using ::autopart::testing::Const;
using ::autopart::testing::HandGraph;
using ::autopart::testing::LoadExample;
using ::autopart::testing::ModelPath;
using ::autopart::testing::Ref;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

CostGraph Cost(const OpGraph& graph, ObserveOn observe_on = ObserveOn::kAutomatic) {
  CostOptions options;
  options.estimate_for = *FindDevice("cpu");
  options.observe_on = observe_on;
  absl::StatusOr<CostGraph> cost = BuildCostGraph(graph, options);
  if (!cost.ok()) throw std::runtime_error(std::string(cost.status().message()));
  return *std::move(cost);
}

Model Load(const std::string& name) {
  absl::StatusOr<Model> model = LoadModelFile(ModelPath(name));
  if (!model.ok()) throw std::runtime_error(std::string(model.status().message()));
  return *std::move(model);
}

// Storage that a value lives in.
int Root(const CostGraph& cost, int value) {
  while (cost.values[value].view_of != kNoView) value = cost.values[value].view_of;
  return value;
}

// What the whole model on one stage keeps for backward.
int64_t SavedBytes(const CostGraph& cost) {
  std::set<int> storages;
  int64_t bytes = 0;
  for (const CostNode& node : cost.nodes) {
    bytes += node.saved_bytes;
    for (int value : node.saved_values) storages.insert(Root(cost, value));
  }
  for (int storage : storages) bytes += cost.values[storage].storage_bytes;
  return bytes;
}

void CollectEdges(const c10::IValue& value, torch::autograd::edge_list& edges) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.requires_grad()) {
      edges.push_back(torch::autograd::impl::gradient_edge(tensor));
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) CollectEdges(item, edges);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) CollectEdges(item, edges);
  }
}

// Runs the model as one stage does: values go after their last use, and of the results only the
// gradient edges stay. Returns the bytes that are then alive beside inputs and parameters, and, by
// node, how many were alive after it.
int64_t RunAsOneStage(const Model& model, const std::vector<at::Tensor>& inputs) {
  const OpGraph& graph = model.graph;
  std::vector<c10::IValue> slots(graph.values.size());
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    slots[graph.inputs[i].value] =
        graph.inputs[i].scalar ? *graph.inputs[i].scalar : c10::IValue(inputs[i]);
  }
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.value == kNoValue) continue;
    at::Tensor tensor = model.tensors.at(parameter.name).detach().clone();
    if (parameter.trains) tensor.set_requires_grad(true);
    slots[parameter.value] = tensor;
  }
  for (const ConstantTensor& constant : graph.constants) {
    if (constant.value != kNoValue) slots[constant.value] = constant.tensor;
  }
  std::vector<int> last_use(graph.values.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (int read : ReadValues(graph.nodes[n])) last_use[read] = static_cast<int>(n);
    for (int output : graph.nodes[n].outputs) {
      if (output != kNoValue) last_use[output] = std::max(last_use[output], static_cast<int>(n));
    }
  }
  for (const Argument& output : graph.outputs) {
    ForEachValue(output, [&](int v) { last_use[v] = static_cast<int>(graph.nodes.size()); });
  }
  const auto compiled = CompileNodes(graph.nodes);
  TORCH_CHECK(compiled.ok(), std::string(compiled.status().message()));
  // Values of control-flow blocks go with their node.
  std::vector<int> block_values;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].in_block) block_values.push_back(static_cast<int>(v));
  }

  AllocationObserver observer;
  torch::autograd::edge_list edges;
  for (size_t n = 0; n < compiled->size(); ++n) {
    RunNode((*compiled)[n], slots, {});
    for (size_t v = 0; v < slots.size(); ++v) {
      const bool computed = graph.values[v].producer != kNoNode;
      if (computed && last_use[v] == static_cast<int>(n)) slots[v] = {};
    }
    if (!graph.nodes[n].blocks.empty()) {
      for (int v : block_values) slots[v] = {};
    }
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (graph.loss_output.has_value() && *graph.loss_output != static_cast<int>(i)) continue;
    CollectEdges(Evaluate(graph.outputs[i], slots, {}), edges);
  }
  for (size_t v = 0; v < slots.size(); ++v) {
    if (graph.values[v].producer != kNoNode) slots[v] = {};
  }
  return observer.live_bytes();
}

class CostOfModel : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, CostOfModel,
                         ::testing::Values("skip_mlp", "tied_head", "normed", "normed_eval",
                                           "normed_scripted", "dropped_eval", "dropped",
                                           "dropped_scripted", "attention", "attention_causal",
                                           "attention_dropout", "control_flow", "appends",
                                           "structures", "structures_scripted", "in_place", "alias",
                                           "detector", "repeats", "recurrent", "frozen", "gpt2",
                                           "llama", "bert", "t5", "gemma2", "bart", "vit",
                                           "mixtral", "qwen3", "gpt2_train", "bert_train"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CostOfModel, KeepsForBackwardExactlyWhatARunKeeps) {
  const Model model = Load(GetParam());
  const CostGraph cost = Cost(model.graph);
  if (std::string(GetParam()) == "gpt2_train") {
    EXPECT_GT(SavedBytes(cost), 100000);
  }
  EXPECT_EQ(SavedBytes(cost), RunAsOneStage(model, LoadExample(GetParam()).inputs));
}

TEST_P(CostOfModel, IsTheSameOnFewElementsAndOnAll) {
  const Model model = Load(GetParam());
  const CostGraph on_few = Cost(model.graph, ObserveOn::kShrunk);
  const CostGraph on_cpu = Cost(model.graph, ObserveOn::kCpu);
  for (size_t n = 0; n < on_cpu.nodes.size(); ++n) {
    const CostNode& node = on_cpu.nodes[n];
    EXPECT_EQ(on_few.nodes[n].saved_values, node.saved_values) << n << " " << node.name;
    EXPECT_EQ(on_few.nodes[n].saved_bytes, node.saved_bytes) << n << " " << node.name;
  }
  for (size_t v = 0; v < on_cpu.values.size(); ++v) {
    EXPECT_EQ(on_few.values[v], on_cpu.values[v]) << v << " " << on_cpu.values[v].name;
  }
}

TEST_P(CostOfModel, CountsEveryParameterOnce) {
  const Model model = Load(GetParam());
  const CostGraph cost = Cost(model.graph);
  int64_t elements = 0, expected = 0;
  for (const CostParameter& parameter : cost.parameters) elements += parameter.elements;
  for (const Parameter& parameter : model.graph.parameters) {
    if (!parameter.is_buffer) expected += parameter.meta.NumElements();
  }
  EXPECT_EQ(elements, expected);
  EXPECT_EQ(cost.nodes.size(), model.graph.nodes.size());
  EXPECT_EQ(cost.model_hash, ModelHash(model.graph));
}

//   x --linear--> h --relu--> r --view--> v --linear--> y = result
//          w1                                  w2
struct TwoLayers : HandGraph {
  int x = Input("x", {8, 16});
  int w1 = Param("w1", {32, 16}), w2 = Param("w2", {4, 32});
  int h = Op("aten::linear", "", {Ref(x), Ref(w1), Const({})});
  int r = Op("aten::relu", "", {Ref(h)});
  int v = Op("aten::view", "", {Ref(r), Const(std::vector<int64_t>{2, 4, 32})});
  int y = Op("aten::linear", "", {Ref(v), Ref(w2), Const({})});
  TwoLayers() { graph.outputs = {Ref(y)}; }
};

TEST(Cost, ValuesHaveBytesGradientsAndStorage) {
  const TwoLayers model;
  const CostGraph cost = Cost(model.graph);
  EXPECT_EQ(cost.values[model.x].bytes, 8 * 16 * 4);
  EXPECT_EQ(cost.values[model.x].storage_bytes, 0);  // the caller's
  EXPECT_EQ(cost.values[model.x].gradient_bytes, 0);
  EXPECT_EQ(cost.values[model.h].bytes, 8 * 32 * 4);
  EXPECT_EQ(cost.values[model.h].gradient_bytes, 8 * 32 * 4);
  EXPECT_EQ(cost.values[model.h].storage_bytes, 8 * 32 * 4);
  EXPECT_EQ(cost.values[model.v].storage_bytes, 0);
  EXPECT_EQ(cost.values[model.v].view_of, model.r);
  EXPECT_THAT(cost.values[model.r].consumers, ElementsAre(2));
  EXPECT_THAT(cost.values[model.w1].consumers, IsEmpty());
  EXPECT_THAT(cost.results, ElementsAre(model.y));
}

TEST(Cost, NodesListTheirParametersAndWhatTheySave) {
  const TwoLayers model;
  const CostGraph cost = Cost(model.graph);
  EXPECT_THAT(cost.nodes[0].parameters, ElementsAre(0));
  EXPECT_THAT(cost.nodes[0].saved_values, ElementsAre(model.x));
  EXPECT_THAT(cost.nodes[1].saved_values, ElementsAre(model.r));
  EXPECT_THAT(cost.nodes[2].saved_values, IsEmpty());
  EXPECT_THAT(cost.nodes[3].parameters, ElementsAre(1));
  EXPECT_GT(cost.nodes[3].backward_weight_ms, 0);
  EXPECT_EQ(SavedBytes(cost), 8 * 32 * 4);  // r, once; x is the caller's
}

TEST(Cost, WhatTheLossDoesNotNeedKeepsNothing) {
  TwoLayers model;
  const int side = model.Op("aten::tanh", "", {Ref(model.h)});
  model.graph.outputs = {Ref(model.y), Ref(side)};
  model.graph.loss_output = 0;
  const CostGraph cost = Cost(model.graph);
  EXPECT_EQ(cost.loss, model.y);
  EXPECT_THAT(cost.nodes[4].saved_values, IsEmpty());
  EXPECT_EQ(cost.nodes[4].backward_input_ms, 0);
}

TEST(Cost, ForwardOnlyKeepsNothingAndHasNoBackward) {
  const TwoLayers model;
  CostOptions options;
  options.estimate_for = *FindDevice("h100");
  options.training = false;
  const absl::StatusOr<CostGraph> cost = BuildCostGraph(model.graph, options);
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_EQ(cost->device, "h100");
  EXPECT_EQ(SavedBytes(*cost), 0);
  for (const CostNode& node : cost->nodes) EXPECT_EQ(node.backward_input_ms, 0);
  EXPECT_EQ(cost->values[model.h].gradient_bytes, 0);
}

TEST(Cost, MeasuresOnThisCpuWhenNoDeviceIsNamed) {
  setenv("XDG_CACHE_HOME", (::testing::TempDir() + "/autopart_cost_test").c_str(), 1);
  const TwoLayers model;
  const absl::StatusOr<CostGraph> cost = BuildCostGraph(model.graph, {});
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_TRUE(cost->nodes[0].measured);
  EXPECT_GT(cost->nodes[0].forward_ms, 0);
  // The second time the same figures come from the cache.
  EXPECT_EQ(*BuildCostGraph(model.graph, {}), *cost);
}

TEST(Cost, AGraphWithoutShapesIsRefused) {
  TwoLayers model;
  model.graph.values[model.h].tensor.reset();
  const absl::StatusOr<CostGraph> cost = BuildCostGraph(model.graph, {});
  EXPECT_EQ(cost.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace autopart
