// The executor against plain PyTorch (loss, gradients, parameters within rounding) and against
// itself on one thread (to the bit), over stages, schedules, micro-batches and replicas.
#include "runtime/executor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/optimizer.h"
#include "runtime/rank_executor.h"
#include "runtime/transports/in_process.h"
#include "tests/runtime/transports/ranks.h"
#include "tests/testing/graph_builder.h"
#include "tests/testing/plan_from_stages.h"

namespace autopart {
namespace {

using testing::CopyModel;
using testing::EvenStages;
using testing::GraphBuilder;
using testing::HandPlan;
using testing::PlanFromStages;
using testing::Reference;
using testing::RunReference;

const auto V = GraphBuilder::V;
const auto C = GraphBuilder::C;

at::Tensor Random(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble);
}

// x -> linear -> relu -> linear -> tanh -> linear + skip from the first -> mse(target)
Model Mlp() {
  GraphBuilder g;
  const int x = g.Input("x", Random({4, 6}, 1));
  const int target = g.Input("target", Random({4, 6}, 2));
  const auto linear = [&](int in, const std::string& name, uint64_t seed) {
    const int weight = g.Parameter(name + ".weight", Random({6, 6}, seed));
    const int bias = g.Parameter(name + ".bias", Random({6}, seed + 1));
    return g.Call("aten::linear", {V(in), V(weight), V(bias)}, name);
  };
  const int a = linear(x, "a", 10);
  const int h = g.Call("aten::relu", {V(a)}, "relu");
  const int b = linear(h, "b", 20);
  const int t = g.Call("aten::tanh", {V(b)}, "tanh");
  const int c = linear(t, "c", 30);
  const int sum = g.Call("aten::add.Tensor", {V(c), V(a)}, "");
  g.Output(sum);
  g.Loss(g.Call("aten::mse_loss", {V(sum), V(target)}, "loss"));
  return g.model();
}

std::vector<std::vector<at::IValue>> MlpInputs(const std::vector<int64_t>& sizes) {
  std::vector<std::vector<at::IValue>> inputs;
  for (size_t j = 0; j < sizes.size(); ++j) {
    inputs.push_back({Random({sizes[j], 6}, 100 + j), Random({sizes[j], 6}, 200 + j)});
  }
  return inputs;
}

std::vector<double> Shares(const std::vector<int64_t>& sizes) {
  double total = 0;
  for (const int64_t size : sizes) total += static_cast<double>(size);
  std::vector<double> shares;
  for (const int64_t size : sizes) shares.push_back(static_cast<double>(size) / total);
  return shares;
}

void ExpectClose(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined()) return;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double scale = std::max(1.0, b.numel() == 0 ? 0.0 : b.abs().max().item<double>());
  const double difference = b.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
  EXPECT_LE(difference, 1e-12 * scale) << what;
}

void ExpectSameBits(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined()) return;
  EXPECT_TRUE(at::equal(a, b)) << what;
}

std::vector<at::IValue> Values(std::vector<at::Tensor> tensors) {
  return {tensors.begin(), tensors.end()};
}

ExecutorOptions In(ExecutorOptions::Mode mode) {
  ExecutorOptions options;
  options.mode = mode;
  options.deadline = std::chrono::seconds(60);
  options.seed = 7;
  return options;
}

// Three steps on threads, on one thread and by plain PyTorch, with an optimizer between them; each
// step starts from the reference's parameters.
void ExpectLikeOneDevice(const Model& model, const Plan& plan,
                         const std::vector<std::vector<at::IValue>>& inputs,
                         const std::vector<double>& weights, bool adam) {
  Executor threads(plan, CopyModel(model), In(ExecutorOptions::Mode::kThreads));
  Executor one(plan, CopyModel(model), In(ExecutorOptions::Mode::kOneThread));
  Model truth = CopyModel(model);
  const auto make = [&](const std::map<std::string, at::Tensor>& parameters) {
    return adam ? std::unique_ptr<Optimizer>(new Adam(parameters, {.lr = 1e-2}))
                : std::unique_ptr<Optimizer>(new Sgd(parameters, {.lr = 1e-2, .momentum = 0.9}));
  };
  auto threads_optimizer = make(threads.Parameters());
  auto one_optimizer = make(one.Parameters());
  auto truth_optimizer = make(truth.tensors);
  for (uint64_t step = 0; step < 3; ++step) {
    for (Executor* executor : {&threads, &one}) {
      at::NoGradGuard no_grad;
      for (auto& [name, tensor] : executor->Parameters()) tensor.copy_(truth.tensors.at(name));
    }
    const Reference reference = RunReference(truth, inputs, weights, 7, step);
    const StepResult on_threads = threads.StepMicroBatches(inputs);
    const StepResult on_one = one.StepMicroBatches(inputs);
    ExpectClose(on_threads.loss, reference.loss, "loss");
    ExpectSameBits(on_threads.loss, on_one.loss, "loss");
    for (auto& [name, tensor] : truth.tensors) {
      const at::Tensor& expected = reference.tensors.at(name);
      const at::Tensor got = threads.Parameters().at(name);
      ExpectClose(got.grad(), expected.grad(), "gradient of " + name);
      ExpectSameBits(got.grad(), one.Parameters().at(name).grad(), "gradient of " + name);
      if (!expected.requires_grad()) {  // buffers
        ExpectSameBits(got, one.Parameters().at(name), name);
        at::NoGradGuard no_grad;
        tensor.copy_(expected);
      }
      tensor.mutable_grad() = expected.grad();
    }
    // Every rank that holds a parameter has the same gradient.
    for (const PlanStage& stage : plan.stages) {
      for (const int rank : stage.ranks) {
        for (const auto& [name, tensor] : threads.RankParameters(rank)) {
          ExpectSameBits(tensor.grad(), threads.Parameters().at(name).grad(), name);
        }
      }
    }
    threads_optimizer->Step();
    one_optimizer->Step();
    truth_optimizer->Step();
    for (const auto& [name, tensor] : truth.tensors) {
      if (!tensor.requires_grad()) continue;
      ExpectClose(threads.Parameters().at(name), tensor, name);
      ExpectSameBits(threads.Parameters().at(name), one.Parameters().at(name), name);
    }
    threads_optimizer->ZeroGrad();
    one_optimizer->ZeroGrad();
    truth_optimizer->ZeroGrad();
    threads.ZeroGrad();
    one.ZeroGrad();
  }
}

TEST(Executor, EqualsOneDeviceForEveryCutScheduleAndMicroBatchCount) {
  const Model model = Mlp();
  for (const int stages : {1, 2, 3, 4}) {
    for (const int m : {1, 2, 3, 7}) {
      for (const char* schedule : {"gpipe", "1f1b"}) {
        SCOPED_TRACE(std::to_string(stages) + " stages, " + std::to_string(m) + " micro-batches, " +
                     schedule);
        const std::vector<int64_t> sizes(m, 4);
        ExpectLikeOneDevice(
            model, PlanFromStages(model.graph, {EvenStages(model.graph, stages), {}, schedule, m}),
            MlpInputs(sizes), Shares(sizes), m % 2 == 0);
      }
    }
  }
}

TEST(Executor, EqualsOneDeviceWithReplicasOddMicroBatchesAndUnequalReplicas) {
  const Model model = Mlp();
  const std::vector<std::vector<int>> replicas = {{2}, {2, 2}, {1, 2}, {3, 1}, {2, 1, 3}};
  for (const std::vector<int>& counts : replicas) {
    for (const int m : {1, 2, 3, 7}) {
      SCOPED_TRACE(::testing::PrintToString(counts) + " replicas, " + std::to_string(m) +
                   " micro-batches");
      std::vector<int64_t> sizes(m, 4);
      sizes.back() = 3;  // a smaller last one
      const int stages = static_cast<int>(counts.size());
      ExpectLikeOneDevice(
          model, PlanFromStages(model.graph, {EvenStages(model.graph, stages), counts, "1f1b", m}),
          MlpInputs(sizes), Shares(sizes), false);
    }
  }
}

// embedding -> linear -> logits by the embedding's own weight, on another stage
Model Tied() {
  GraphBuilder g;
  const int ids = g.Input("ids", at::arange(12).view({3, 4}) % 5);
  const int target = g.Input("target", at::arange(12).view({3, 4}) % 5);
  const int table = g.Parameter("wte.weight", Random({5, 6}, 3));
  const int w = g.Parameter("fc.weight", Random({6, 6}, 4));
  const int e = g.Call("aten::embedding", {V(table), V(ids)}, "wte");
  const int h = g.Call("aten::linear", {V(e), V(w), C({})}, "fc");
  const int logits = g.Call("aten::linear", {V(h), V(table), C({})}, "head");
  const int flat = g.Call("aten::flatten.using_ints", {V(logits), C(int64_t{0}), C(int64_t{1})});
  const int labels = g.Call("aten::view", {V(target), C(std::vector<int64_t>{-1})});
  g.Loss(g.Call("aten::cross_entropy_loss", {V(flat), V(labels)}, "loss"));
  return g.model();
}

TEST(Executor, SumsTheGradientsOfAParameterUsedOnTwoStages) {
  const Model model = Tied();
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 3; ++j) {
    const at::Tensor ids = (at::arange(12) * (j + 2)).view({3, 4}) % 5;
    inputs.push_back(Values({ids, ids.roll(1, 1)}));
  }
  const std::vector<double> weights(3, 1.0 / 3);
  for (const std::vector<int>& replicas : {std::vector<int>{1, 1}, {2, 2}, {1, 2}}) {
    const Plan plan = PlanFromStages(model.graph, {{0, 0, 1, 1, 1, 1}, replicas, "1f1b", 3});
    ASSERT_EQ(plan.stages[1].copied_parameters.size(), 1);
    ExpectLikeOneDevice(model, plan, inputs, weights, true);
  }
  ExpectLikeOneDevice(model, PlanFromStages(model.graph, {{0, 1, 2, 3, 3, 3}, {}, "gpipe", 3}),
                      inputs, weights, false);
}

// A value of every kind crosses 0|1: bool mask, int64 ids, int, float, bool, list of ints, tuple;
// further a transposed and a broadcast tensor, an empty one, and one without effect on the loss.
Model EveryKind() {
  GraphBuilder g;
  const int x = g.Input("x", Random({4, 6}, 1));
  const int w = g.Parameter("w", Random({6, 6}, 2));
  const int b = g.Parameter("b", Random({1, 6}, 3));
  const int h = g.Call("aten::matmul", {V(x), V(w)}, "first");                      // stage 0
  const int mask = g.Call("aten::gt.Scalar", {V(h), C(at::Scalar(0.0))}, "first");  // bool
  const int ids = g.Call("aten::argsort", {V(h), C(int64_t{1})}, "first");          // int64
  const int size = g.Call("aten::size.int", {V(h), C(int64_t{0})}, "first");        // int
  const int sizes = g.Call("aten::size", {V(h)}, "first");                          // list
  const int number = g.Call("aten::Float.Scalar", {V(size)}, "first");              // float
  const int flag = g.Call("aten::gt.int", {V(size), C(int64_t{3})}, "first");       // bool
  const int t = g.Call("aten::t", {V(h)}, "first");
  const int wide = g.Call("aten::expand", {V(b), C(std::vector<int64_t>{4, 6})}, "first");
  const int part = g.Call("aten::narrow", {V(h), C(int64_t{1}), C(int64_t{1}), C(int64_t{2})});
  const int none = g.Call("aten::narrow", {V(h), C(int64_t{0}), C(int64_t{0}), C(int64_t{0})});
  const int unused = g.Call("aten::mul.Scalar", {V(h), C(at::Scalar(2.0))}, "first");
  const int pair = g.Call("prim::TupleConstruct",
                          {{ArgumentList{{V(h), V(size), V(mask)}, true, nullptr}}}, "first");
  // stage 1
  const int first = g.Call("prim::TupleIndex", {V(pair), C(int64_t{0})}, "second");
  const int masked = g.Call("aten::masked_fill.Scalar", {V(first), V(mask), C(at::Scalar(0.5))});
  const int gathered = g.Call("aten::gather", {V(masked), C(int64_t{1}), V(ids)}, "second");
  const int shaped = g.Call("aten::view", {V(gathered), V(sizes)}, "second");
  const int scaled = g.Call("aten::mul.Scalar", {V(shaped), V(number)}, "second");
  const int back = g.Call("aten::t", {V(t)}, "second");
  const int sum = g.Call("aten::add.Tensor", {V(scaled), V(back)}, "second");
  const int sum2 = g.Call("aten::add.Tensor", {V(sum), V(wide)}, "second");
  const int padded = g.Call("aten::cat", {GraphBuilder::Items({V(sum2), V(none)})}, "second");
  const int dead = g.Call("aten::detach", {V(unused)}, "second");
  const int loss = g.Call("aten::mean", {V(padded)}, "second");
  const int p = g.Call("aten::sum", {V(part)}, "second");
  const int total = g.Call("aten::add.Tensor", {V(loss), V(p)}, "second");
  g.Loss(total);
  g.Output(dead);
  g.Output(flag);
  g.Output(sizes);
  return g.model();
}

TEST(Executor, CarriesAValueOfEveryKindAcrossACut) {
  const Model model = EveryKind();
  std::vector<int> stage_of_node(model.graph.nodes.size(), 1);
  std::fill(stage_of_node.begin(), stage_of_node.begin() + 13, 0);
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 3; ++j) inputs.push_back(Values({Random({4, 6}, 50 + j)}));
  const std::vector<double> weights(3, 1.0 / 3);
  ExpectLikeOneDevice(model, PlanFromStages(model.graph, {stage_of_node, {}, "1f1b", 3}), inputs,
                      weights, false);
  // A late stage that gets values from two earlier ones.
  for (int& stage : stage_of_node) stage = stage == 0 ? 0 : 2;
  stage_of_node[13] = stage_of_node[14] = 1;
  ExpectLikeOneDevice(model, PlanFromStages(model.graph, {stage_of_node, {}, "gpipe", 3}), inputs,
                      weights, false);
}

TEST(Executor, CarriesAValueOfEveryKindOverSharedMemory) {
  const Model model = EveryKind();
  std::vector<int> stage_of_node(model.graph.nodes.size(), 1);
  std::fill(stage_of_node.begin(), stage_of_node.begin() + 13, 0);
  const Plan plan = PlanFromStages(model.graph, {stage_of_node, {}, "1f1b", 3});
  RankStepInput input;
  for (int j = 0; j < 3; ++j) input.inputs.push_back(Values({Random({4, 6}, 50 + j)}));
  input.weights.assign(3, 1.0 / 3);
  Executor one(plan, CopyModel(model), In(ExecutorOptions::Mode::kOneThread));
  const StepResult wanted = one.StepMicroBatches(input.inputs);
  RunRanks(Transport::kSharedMemoryThreads, 2, [&](Communicator& communicator) {
    const Model copy = CopyModel(model);
    const int rank = communicator.rank();
    RankExecutorOptions options;
    options.deadline = std::chrono::seconds(60);
    options.seed = 7;
    RankExecutor executor(copy.graph, plan, rank, copy.tensors, communicator, options);
    const RankStepOutput output = executor.Step(input);
    for (int j = 0; rank == 1 && j < 3; ++j) {
      const int loss = *model.graph.loss_output;
      ExpectSameBits(output.outputs[j][loss].toTensor(), wanted.outputs[j][loss].toTensor(),
                     "loss");
    }
    for (const auto& [name, tensor] : one.RankParameters(rank)) {
      ExpectSameBits(copy.tensors.at(name).grad(), tensor.grad(), name);
    }
  });
}

TEST(Executor, RunsInPlaceOperatorsOnReceivedValues) {
  GraphBuilder g;
  const int x = g.Input("x", Random({4, 6}, 1));
  const int w = g.Parameter("w", Random({6, 6}, 2));
  const int h = g.Call("aten::matmul", {V(x), V(w)}, "first");
  const int y = g.Call("aten::mul_.Scalar", {V(h), C(at::Scalar(3.0))}, "second");
  const int z = g.Call("aten::relu_", {V(y)}, "second");
  g.Loss(g.Call("aten::sum", {V(z)}, "second"));
  g.model().graph.loss_is_sum = true;
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 2; ++j) inputs.push_back(Values({Random({4, 6}, 50 + j)}));
  ExpectLikeOneDevice(g.model(), PlanFromStages(g.model().graph, {{0, 1, 1, 1}, {}, "1f1b", 2}),
                      inputs, {1, 1}, false);
}

TEST(Executor, SendsAValueAsItWasBeforeALaterWrite) {
  GraphBuilder g;
  const int x = g.Input("x", Random({4, 6}, 1));
  const int w = g.Parameter("w", Random({6, 6}, 2));
  const int h = g.Call("aten::matmul", {V(x), V(w)}, "first");
  const int before = g.Call("aten::sigmoid", {V(h)}, "second");  // on stage 1, before the write
  const int after = g.Call("aten::mul_.Scalar", {V(h), C(at::Scalar(3.0))}, "first");
  const int sum = g.Call("aten::add.Tensor", {V(before), V(after)}, "second");
  g.Loss(g.Call("aten::sum", {V(sum)}, "second"));
  g.model().graph.loss_is_sum = true;
  for (const int value : {h, after}) g.model().graph.values[value].alias_class = 0;
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 2; ++j) inputs.push_back(Values({Random({4, 6}, 50 + j)}));
  ExpectLikeOneDevice(g.model(), PlanFromStages(g.model().graph, {{0, 1, 0, 1, 1}, {}, "1f1b", 2}),
                      inputs, {1, 1}, false);
}

// x -> batch_norm (and its counter) -> dropout as mask and product -> linear -> sum
Model NormAndDropout() {
  GraphBuilder g;
  const int x = g.Input("x", Random({8, 6}, 1));
  const int w = g.Parameter("fc.weight", Random({6, 6}, 2));
  const int scale = g.Parameter("bn.weight", at::ones({6}, at::kDouble));
  const int shift = g.Parameter("bn.bias", at::zeros({6}, at::kDouble));
  const int mean = g.Buffer("bn.running_mean", at::zeros({6}, at::kDouble));
  const int var = g.Buffer("bn.running_var", at::ones({6}, at::kDouble));
  const int count = g.Buffer("bn.num_batches_tracked", at::zeros({}, at::kLong));
  const int h = g.Call("aten::linear", {V(x), V(w), C({})}, "fc");
  g.Call("aten::add_.Scalar", {V(count), C(at::Scalar(1))}, "bn");
  g.last().effects = {.writes_input = true, .writes_buffer = true};
  const int n =
      g.Call("aten::batch_norm",
             {V(h), V(scale), V(shift), V(mean), V(var), C(true), C(0.1), C(1e-5), C(false)}, "bn");
  g.last().effects.writes_buffer = true;
  const int mask = g.Call("autopart::dropout_mask", {V(n), C(0.5)}, "drop");
  g.last().effects.random = true;
  const int d = g.Call("aten::mul.Tensor", {V(n), V(mask)}, "drop");
  const int e = g.Call("aten::linear", {V(d), V(w), C({})}, "fc");
  const int mask2 = g.Call("autopart::dropout_mask", {V(e), C(0.5)}, "drop2");
  g.last().effects.random = true;
  const int f = g.Call("aten::mul.Tensor", {V(e), V(mask2)}, "drop2");
  g.Output(f);
  const int sq = g.Call("aten::square", {V(f)}, "loss");
  g.Loss(g.Call("aten::mean", {V(sq)}, "loss"));
  return g.model();
}

TEST(Executor, KeepsBatchNormStatisticsAndDropoutMasksOfOneDevice) {
  const Model model = NormAndDropout();
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 3; ++j) inputs.push_back(Values({Random({8, 6}, 60 + j)}));
  const std::vector<double> weights(3, 1.0 / 3);
  const Reference reference = RunReference(model, inputs, weights, 7, 0);
  const int num_nodes = static_cast<int>(model.graph.nodes.size());
  for (const int cut : {num_nodes, 1, 3, 4, 5, 6}) {
    std::vector<int> stage_of_node(num_nodes, 1);
    std::fill(stage_of_node.begin(), stage_of_node.begin() + cut, 0);
    const Plan plan = PlanFromStages(model.graph, {stage_of_node, {}, "1f1b", 3});
    ExpectLikeOneDevice(model, plan, inputs, weights, false);
    Executor executor(plan, CopyModel(model), In(ExecutorOptions::Mode::kThreads));
    const StepResult result = executor.StepMicroBatches(inputs);
    for (size_t j = 0; j < inputs.size(); ++j) {
      ExpectSameBits(result.outputs[j][0].toTensor(), reference.outputs[j][0].toTensor(), "masks");
    }
    for (const auto& [name, tensor] : executor.Parameters()) {
      if (name.find("bn.running") == 0 || name.find("bn.num") == 0) {
        ExpectSameBits(tensor, reference.tensors.at(name), name);
      }
    }
  }
}

TEST(Executor, GivesAllReplicasTheStatisticsOfReplicaZero) {
  const Model model = NormAndDropout();
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 3; ++j) inputs.push_back(Values({Random({8, 6}, 60 + j)}));
  const std::vector<double> weights(3, 1.0 / 3);
  const Reference replica0 = RunReference(model, {inputs[0]}, {1.0}, 7, 0);
  const std::vector<int> stage_of_node(model.graph.nodes.size(), 0);
  for (const auto mode : {ExecutorOptions::Mode::kThreads, ExecutorOptions::Mode::kOneThread}) {
    // Replica 0 does micro-batches 0 and 2, so compare the counter, and ranks with each other.
    Executor executor(PlanFromStages(model.graph, {stage_of_node, {2}, "1f1b", 3}),
                      CopyModel(model), In(mode));
    executor.StepMicroBatches(inputs);
    EXPECT_EQ(executor.Parameters().at("bn.num_batches_tracked").item<int64_t>(), 2);
    for (const auto& [name, tensor] : executor.RankParameters(1)) {
      ExpectSameBits(tensor, executor.RankParameters(0).at(name), name);
    }
  }
}

TEST(Executor, EvaluatesWithoutDropoutOrStatistics) {
  const Model model = NormAndDropout();
  const at::Tensor x = Random({16, 6}, 5);
  const at::Tensor w = model.tensors.at("fc.weight").detach();
  const at::Tensor h = at::linear(x, w);
  const at::Tensor n = at::batch_norm(h, at::ones({6}, at::kDouble), at::zeros({6}, at::kDouble),
                                      at::zeros({6}, at::kDouble), at::ones({6}, at::kDouble),
                                      false, 0.1, 1e-5, false);
  const at::Tensor expected = at::linear(n, w);
  for (const char* schedule : {"forward", "1f1b"}) {
    for (const auto mode : {ExecutorOptions::Mode::kThreads, ExecutorOptions::Mode::kOneThread}) {
      std::vector<int> stage_of_node(model.graph.nodes.size(), 1);
      std::fill(stage_of_node.begin(), stage_of_node.begin() + 4, 0);
      Executor executor(PlanFromStages(model.graph, {stage_of_node, {}, schedule, 4}),
                        CopyModel(model), In(mode));
      const std::vector<at::Tensor> outputs = executor.Forward({x});
      ASSERT_EQ(outputs.size(), 2);
      EXPECT_FALSE(outputs[0].requires_grad());
      ExpectClose(outputs[0], expected, "output");
      EXPECT_EQ(outputs[1].sizes(), at::IntArrayRef({4}));
      EXPECT_EQ(executor.Parameters().at("bn.num_batches_tracked").item<int64_t>(), 0);
    }
  }
}

TEST(Executor, AddsToGradientsThatAreThereAlready) {
  const Model model = Mlp();
  const std::vector<int64_t> sizes = {4, 4};
  const auto inputs = MlpInputs(sizes);
  const Reference reference = RunReference(model, inputs, Shares(sizes), 0, 0);
  Executor executor(PlanFromStages(model.graph, {EvenStages(model.graph, 2), {2, 1}, "1f1b", 2}),
                    CopyModel(model), In(ExecutorOptions::Mode::kThreads));
  executor.StepMicroBatches(inputs);
  executor.StepMicroBatches(inputs);
  for (const auto& [name, tensor] : executor.Parameters()) {
    ExpectClose(tensor.grad(), reference.tensors.at(name).grad() * 2, name);
  }
}

TEST(Executor, LogsEveryActionInsideItsStepAndInTheOrderOfTheList) {
  const Model model = Mlp();
  const std::vector<int64_t> sizes = {4, 4};
  const auto inputs = MlpInputs(sizes);
  for (const auto mode : {ExecutorOptions::Mode::kThreads, ExecutorOptions::Mode::kOneThread}) {
    ExecutorOptions options = In(mode);
    options.logs = {std::make_shared<ActionLog>(), std::make_shared<ActionLog>()};
    const Plan plan = PlanFromStages(model.graph, {EvenStages(model.graph, 2), {}, "1f1b", 2});
    Executor executor(plan, CopyModel(model), options);
    executor.StepMicroBatches(inputs);
    executor.StepMicroBatches(inputs);
    const Schedule schedule = *BuildSchedule(plan);
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(options.logs[rank]->steps().size(), 2);
      for (const ActionLog::Step& step : options.logs[rank]->steps()) {
        ASSERT_EQ(step.actions.size(), schedule.ranks[rank].size());
        auto at = step.whole.begin;
        for (const TimeSpan& action : step.actions) {
          EXPECT_LE(at, action.begin);
          EXPECT_LE(action.begin, action.end);
          at = action.end;
        }
        EXPECT_LE(at, step.whole.end);
      }
    }
  }
}

TEST(Executor, RefusesActionLogsThatAreNotOneARank) {
  const Model model = Mlp();
  ExecutorOptions options = In(ExecutorOptions::Mode::kThreads);
  options.logs = {std::make_shared<ActionLog>()};
  EXPECT_THROW(Executor(PlanFromStages(model.graph, {EvenStages(model.graph, 2), {}, "1f1b", 2}),
                        CopyModel(model), options),
               std::invalid_argument);
}

TEST(Executor, SplitsABatchAndRefusesOneThatDoesNotDivide) {
  const Model model = Mlp();
  Executor executor(PlanFromStages(model.graph, {EvenStages(model.graph, 2), {}, "1f1b", 4}),
                    CopyModel(model), In(ExecutorOptions::Mode::kThreads));
  const at::Tensor x = Random({8, 6}, 1), y = Random({8, 6}, 2);
  const StepResult result = executor.Step(Values({x, y}));
  const Reference whole = RunReference(model, {Values({x, y})}, {1.0}, 0, 0);
  ExpectClose(result.loss, whole.loss, "loss");
  try {
    executor.Step(Values({x.narrow(0, 0, 7), y.narrow(0, 0, 7)}));
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("has 7 samples, which 4 micro-batches"));
  }
}

TEST(Executor, NamesRankStageActionOperatorAndModuleOfTheFirstFailure) {
  GraphBuilder g;
  const int x = g.Input("x", Random({2, 6}, 1));
  const int w = g.Parameter("w", Random({6, 6}, 2));
  const int h = g.Call("aten::linear", {V(x), V(w), C({})}, "first");
  const int y = g.Call("aten::view", {V(h), C(std::vector<int64_t>{2, 6})}, "second.block");
  g.Loss(g.Call("aten::sum", {V(y)}, "second"));
  const Model model = g.model();
  const Plan plan = PlanFromStages(model.graph, {{0, 1, 1}, {}, "1f1b", 4});
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 4; ++j) inputs.push_back(Values({Random({j == 2 ? 3 : 2, 6}, j)}));
  for (const auto mode : {ExecutorOptions::Mode::kThreads, ExecutorOptions::Mode::kOneThread}) {
    Executor executor(plan, CopyModel(model), In(mode));
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        executor.StepMicroBatches(inputs);
        FAIL();
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(),
                    ::testing::HasSubstr("rank 1, stage 1, action 1F2: operator aten::view in "
                                         "module 'second.block': "));
      }
    }
    inputs[2] = inputs[1];
    Executor again(plan, CopyModel(model), In(mode));
    again.StepMicroBatches(inputs);
    inputs[2] = Values({Random({3, 6}, 2)});
  }
}

TEST(Executor, RefusesAGradientThatThePlanDoesNotHave) {
  const Model model = Mlp();
  Plan plan = PlanFromStages(model.graph, {EvenStages(model.graph, 2), {}, "1f1b", 2});
  plan.edges[0].has_gradient = false;
  Executor executor(plan, CopyModel(model), In(ExecutorOptions::Mode::kThreads));
  try {
    executor.StepMicroBatches(MlpInputs({4, 4}));
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("requires a gradient, but the plan has no"));
  }
}

TEST(Executor, RefusesAScheduleThatSplitsTheBackwardAndSaysWhatToDo) {
  const Model model = Mlp();
  const Plan plan = PlanFromStages(model.graph, {EvenStages(model.graph, 2), {}, "zb-h1", 2});
  try {
    Executor executor(plan, CopyModel(model), In(ExecutorOptions::Mode::kThreads));
    executor.StepMicroBatches(MlpInputs({4, 4}));
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("plan again with --schedule 1f1b"));
  }
}

TEST(RankExecutor, NamesTheActionAndThePeerAtTheDeadline) {
  const Model model = Mlp();
  const Plan plan = PlanFromStages(model.graph, {EvenStages(model.graph, 2), {}, "1f1b", 2});
  auto group = MakeInProcessGroup(2);
  RankExecutorOptions options;
  options.deadline = std::chrono::milliseconds(100);
  RankExecutor executor(model.graph, plan, 1, model.tensors, *group[1], options);
  RankStepInput input;
  input.weights = {0.5, 0.5};
  EXPECT_EQ(executor.Describe(), "rank 1: between steps");
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      executor.Step(input);
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("rank 1, stage 1, action 1RECV_F0<0, waiting "
                                                      "for stage 0 on rank 0: "));
    }
  }
  EXPECT_TRUE(group[0]->aborted().has_value());
}

TEST(Executor, RunsAHostStageBetweenThem) {
  // The first stage is the caller's: it makes the model's inputs; the last one, too, is the
  // caller's: it takes the model's output, computes the loss in plain code and calls backward.
  GraphBuilder g;
  const int x = g.Input("x", Random({4, 6}, 1));
  const int w = g.Parameter("w", Random({6, 6}, 2));
  const int h = g.Call("aten::linear", {V(x), V(w), C({})}, "first");
  const int y = g.Call("aten::tanh", {V(h)}, "second");
  g.Output(y);
  const Model model = g.model();
  Plan plan;
  plan.schedule = "1f1b";
  plan.micro_batches = 3;
  plan.cluster = *UniformCluster("cpu", 3);
  plan.stages.resize(4);
  for (int s = 0; s < 4; ++s) plan.stages[s].index = s;
  plan.stages[0].ranks = {0};
  plan.stages[1].ranks = {1};
  plan.stages[2].ranks = {2};
  plan.stages[3].ranks = {0};  // the caller's two stages share a rank
  plan.stages[1].nodes = {0};
  plan.stages[1].owned_parameters = {0};
  plan.stages[2].nodes = {1};
  plan.edges = {{0, 1, {x}, false}, {1, 2, {h}, true}, {2, 3, {y}, true}};
  std::vector<at::Tensor> losses(3);
  HostStage source, sink;
  source.forward = [](int j, std::vector<at::IValue>) {
    return Values({Random({4, 6}, 80 + static_cast<uint64_t>(j))});
  };
  sink.forward = [&](int j, std::vector<at::IValue> inputs) {
    const at::Tensor loss = inputs.at(0).toTensor().pow(2).sum();
    loss.backward();
    losses[j] = loss.detach();
    return std::vector<at::IValue>();
  };
  const at::Tensor leaf = model.tensors.at("w").detach().clone().requires_grad_(true);
  at::Tensor expected = at::zeros({}, at::kDouble);
  for (int j = 0; j < 3; ++j) {
    const at::Tensor loss = at::linear(Random({4, 6}, 80 + j), leaf).tanh().pow(2).sum();
    loss.backward();
    expected = expected + loss.detach();
  }
  for (const auto mode : {ExecutorOptions::Mode::kThreads, ExecutorOptions::Mode::kOneThread}) {
    ExecutorOptions options = In(mode);
    options.host_stages = {{0, source}, {3, sink}};
    Executor executor(plan, CopyModel(model), options);
    executor.StepMicroBatches(std::vector<std::vector<at::IValue>>(3, {at::IValue()}));
    ExpectClose(losses[0] + losses[1] + losses[2], expected, "loss");
    ExpectClose(executor.Parameters().at("w").grad(), leaf.grad(), "gradient");
  }
}

}  // namespace
}  // namespace autopart
