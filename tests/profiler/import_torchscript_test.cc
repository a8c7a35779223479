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
    const Argument argument{ValueRef{static_cast<int>(v)}};
    all.outputs.push_back(argument);
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
                                           "detector", "repeats", "recurrent", "frozen", "gpt2",
                                           "llama", "bert", "t5", "gemma2", "bart", "vit",
                                           "mixtral", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

int CountOps(const std::vector<Node>& nodes, const std::string& op) {
  int count = 0;
  for (const Node& node : nodes) {
    count += node.op == op;
    for (const Block& block : node.blocks) count += CountOps(block.nodes, op);
  }
  return count;
}

TEST(Import, KeepsTheUsersModulePathsAndNames) {
  const Model gpt2 = Load("gpt2");
  std::set<std::string> paths;
  for (const Node& node : gpt2.graph.nodes) paths.insert(node.module_path);
  EXPECT_TRUE(paths.count("transformer.h.0.mlp.c_fc"));
  EXPECT_TRUE(paths.count("transformer.wte"));
  EXPECT_TRUE(gpt2.tensors.count("transformer.h.1.ln_1.weight"));
  const Model scripted = Load("control_flow");
  const Node* branch = nullptr;
  for (const Node& node : scripted.graph.nodes) {
    if (node.op == "prim::If") branch = &node;
  }
  ASSERT_NE(branch, nullptr);
  EXPECT_EQ(branch->blocks[0].nodes[0].module_path, "l1");
  EXPECT_TRUE(branch->effects.data_dependent);
}

TEST(Import, FindsSharedParametersByStorage) {
  const Model tied = Load("tied_head");
  int found = 0;
  for (const Parameter& p : tied.graph.parameters) {
    if (p.name != "embed.weight") continue;
    ++found;
    EXPECT_THAT(p.aliases, ::testing::ElementsAre("head.weight"));
    EXPECT_TRUE(p.trains);
  }
  EXPECT_EQ(found, 1);
  EXPECT_FALSE(tied.tensors.count("head.weight"));
  const Model alias = Load("alias");
  ASSERT_EQ(alias.graph.parameters.size(), 1u);
  EXPECT_EQ(alias.graph.parameters[0].aliases.size(), 1u);
}

TEST(Import, KeepsUnusedParametersAndBuffers) {
  const Model model = Load("normed");
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter& p : model.graph.parameters) by_name[p.name] = &p;
  ASSERT_TRUE(by_name.count("unused.weight"));
  EXPECT_EQ(by_name["unused.weight"]->value, kNoValue);
  EXPECT_TRUE(by_name["norm.running_mean"]->is_buffer);
  EXPECT_NE(by_name["norm.num_batches_tracked"]->value, kNoValue);
  EXPECT_TRUE(model.graph.training);
  EXPECT_FALSE(Load("normed_eval").graph.training);
}

TEST(Import, CountsTheWeightsOfAFrozenFile) {
  const Model model = Load("frozen");
  EXPECT_TRUE(model.graph.parameters.empty());
  int64_t numbers = 0;
  for (const ConstantTensor& c : model.graph.constants) numbers += c.meta.NumElements();
  EXPECT_EQ(numbers, 420);
}

TEST(Import, FoldsTheChecksOfScriptedFunctions) {
  const Model model = Load("dropped_scripted");
  EXPECT_EQ(CountOps(model.graph.nodes, "prim::If"), 0);
  EXPECT_EQ(CountOps(model.graph.nodes, "prim::RaiseException"), 0);
}

TEST(Import, WritesDropoutAsAKeyedMask) {
  for (const char* name : {"dropped", "dropped_scripted", "attention_dropout", "gpt2_train"}) {
    const Model model = Load(name);
    const OpGraph& graph = model.graph;
    EXPECT_EQ(CountOps(graph.nodes, "aten::dropout"), 0) << name;
    EXPECT_EQ(CountOps(graph.nodes, "aten::feature_dropout"), 0) << name;
    EXPECT_EQ(CountOps(graph.nodes, "aten::scaled_dot_product_attention"), 0) << name;
    std::set<uint64_t> streams;
    int masks = 0;
    for (const Node& node : graph.nodes) {
      if (node.op != "autopart::dropout_mask") continue;
      ++masks;
      streams.insert(node.random_stream);
      EXPECT_TRUE(node.effects.random);
    }
    EXPECT_GT(masks, 0) << name;
    EXPECT_EQ(static_cast<int>(streams.size()), masks) << name << ": every mask its own stream";
    EXPECT_FALSE(streams.count(0));
  }
  EXPECT_EQ(CountOps(Load("dropped_eval").graph.nodes, "autopart::dropout_mask"), 0);
}

TEST(Import, MasksFollowTheKeyAndVanishInEval) {
  const Model model = Load("dropped");
  const Example example = LoadExample("dropped");
  const at::NoGradGuard no_grad;
  const auto run = [&](const RunContext& context) {
    return RunGraph(model.graph, model.tensors, example.inputs, context)[0].toTensor();
  };
  const RunContext a{.random_key = RandomKey(1, 2, 3)};
  const RunContext b{.random_key = RandomKey(1, 2, 4)};
  EXPECT_TRUE(at::equal(run(a), run(a)));
  EXPECT_FALSE(at::equal(run(a), run(b)));
  // The same weights captured in eval mode agree with the train capture run in eval mode.
  const Model eval = Load("dropped_eval");
  const at::Tensor quiet = run({.training = false});
  EXPECT_TRUE(
      at::equal(quiet, RunGraph(eval.graph, model.tensors, example.inputs, {})[0].toTensor()));
}

TEST(Import, AttentionWithDropoutIsEagersMathPath) {
  const Model model = Load("attention_dropout");
  const Example example = LoadExample("attention_dropout");
  const at::NoGradGuard no_grad;
  const at::Tensor x = example.inputs[0];
  const auto linear = [&](const at::Tensor& in, const std::string& name) {
    return at::linear(in, model.tensors.at(name + ".weight"), model.tensors.at(name + ".bias"));
  };
  const auto qkv = linear(x, "qkv").split(16, 2);
  const auto heads = [](const at::Tensor& t) { return t.view({2, 5, 4, 4}).transpose(1, 2); };
  const auto [y, weights] = at::_scaled_dot_product_attention_math(
      heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), {}, 0.0, /*is_causal=*/true);
  const at::Tensor expected = linear(y.transpose(1, 2).reshape({2, 5, 16}), "out");
  const at::Tensor got =
      RunGraph(model.graph, model.tensors, example.inputs, {.training = false})[0].toTensor();
  EXPECT_TRUE(at::equal(got, expected)) << (got - expected).abs().max();
}

TEST(Import, EvalModeLeavesStatisticsAlone) {
  const Model model = Load("normed");
  const Example example = LoadExample("normed");
  const at::NoGradGuard no_grad;
  const auto state = [&] {
    return std::pair(model.tensors.at("norm.running_mean").clone(),
                     model.tensors.at("norm.num_batches_tracked").clone());
  };
  const auto before = state();
  RunGraph(model.graph, model.tensors, example.inputs, {.training = false});
  EXPECT_TRUE(at::equal(state().first, before.first));
  EXPECT_TRUE(at::equal(state().second, before.second));
  RunGraph(model.graph, model.tensors, example.inputs, {});
  EXPECT_FALSE(at::equal(state().first, before.first));
  EXPECT_EQ(state().second.item<int64_t>(), before.second.item<int64_t>() + 1);
}

TEST(ModelHash, IsOfTheStructureOnly) {
  const OpGraph graph = Load("tied_head").graph;
  const std::string hash = ModelHash(graph);
  EXPECT_EQ(hash.size(), 32u);
  OpGraph other = graph;
  for (Value& value : other.values) value.name += "x";
  for (Node& node : other.nodes) node.module_path = "elsewhere";
  EXPECT_EQ(ModelHash(other), hash);
  other.parameters[0].name = "renamed";
  EXPECT_NE(ModelHash(other), hash);
  other = graph;
  other.parameters[0].aliases.clear();
  EXPECT_NE(ModelHash(other), hash) << "sharing is structure";
  other = graph;
  other.nodes[0].op = "aten::other";
  EXPECT_NE(ModelHash(other), hash);
  EXPECT_NE(ModelHash(Load("skip_mlp").graph), hash);
}

TEST(Validate, NamesTheFirstFault) {
  const OpGraph good = Load("skip_mlp").graph;
  ASSERT_TRUE(Validate(good).ok());
  const auto fault = [&](auto&& change) {
    OpGraph graph = good;
    change(graph);
    return std::string(Validate(graph).message());
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(fault([](OpGraph& g) {
                std::get<ValueRef>(g.nodes[0].args[0].is).value = g.nodes[1].outputs[0];
              }),
              HasSubstr("before it is defined"));
  EXPECT_THAT(fault([](OpGraph& g) { g.nodes[1].outputs[0] = 99; }), HasSubstr("value 99 of"));
  EXPECT_THAT(fault([](OpGraph& g) { g.nodes[1].outputs = g.nodes[0].outputs; }),
              HasSubstr("defined already"));
  EXPECT_THAT(fault([](OpGraph& g) { g.loss_output = 5; }), HasSubstr("the loss is output 5 of 1"));
}

TEST(OpGraphJson, RefusesWhatItCannotRead) {
  using ::testing::HasSubstr;
  const auto message = [](std::string_view text) {
    return std::string(OpGraphFromJson(text).status().message());
  };
  EXPECT_THAT(message("{}"), HasSubstr("no autopart operator graph"));
  EXPECT_THAT(message("{"), HasSubstr("operator graph"));
  EXPECT_THAT(message(R"({"format": "autopart-op-graph", "version": 9})"),
              HasSubstr("use a newer autopart"));
}

}  // namespace
}  // namespace autopart
