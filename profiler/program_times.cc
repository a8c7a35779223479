// A pass is a step of a few micro-batches, as gradients of parameters are made by the first and
// added to by the others. Gradient functions belong to the node that made them: those that its
// results reach and that were not there before. A pre-hook on each tells the time; the engine runs
// on the calling thread, one function after the other, and adds to a parameter's gradient right
// after the function that made it, so the time until the next hook is the node's.
#include "profiler/program_times.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <absl/strings/str_cat.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "profiler/run_node.h"

namespace autopart {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMicroBatches = 4;  // of a pass: the first finds little of the model in the caches

double Milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

struct Mark {
  int node = 0;
  Clock::time_point at;
};

class MarkingHook final : public torch::autograd::FunctionPreHook {
 public:
  // Borrows `marks`, which outlives the gradient graph.
  MarkingHook(int node, std::vector<Mark>& marks) : node_(node), marks_(marks) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    marks_.push_back({node_, Clock::now()});
    return gradients;
  }

 private:
  const int node_;
  std::vector<Mark>& marks_;
};

struct Pass {
  std::vector<double> forward_ms, backward_ms;  // of all micro-batches; by node
  double total_ms = 0;
};

// What all threads share.
struct Program {
  const Model& model;
  const std::vector<at::IValue>& inputs;
  std::vector<CompiledNode> nodes;
  std::vector<std::vector<int>> freed_after;  // values whose last reader is the node
  std::vector<int> roots;                     // the loss, or all results without one
};

Program MakeProgram(const Model& model, const std::vector<at::IValue>& inputs,
                    std::vector<CompiledNode> compiled) {
  const OpGraph& graph = model.graph;
  Program program{model, inputs, std::move(compiled), {}, {}};
  std::vector<int> last(graph.values.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const int output : graph.nodes[n].outputs) {
      if (output != kNoValue) last[output] = static_cast<int>(n);
    }
    for (const int read : ReadValues(graph.nodes[n])) last[read] = static_cast<int>(n);
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const bool is_root = !graph.loss_output || *graph.loss_output == static_cast<int>(i);
    ForEachValue(graph.outputs[i], [&](int value) {
      last[value] = -1;
      if (is_root) program.roots.push_back(value);
    });
  }
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.value != kNoValue) last[parameter.value] = -1;
  }
  for (const ConstantTensor& constant : graph.constants) {
    if (constant.value != kNoValue) last[constant.value] = -1;
  }
  program.freed_after.resize(graph.nodes.size());
  for (size_t v = 0; v < last.size(); ++v) {
    if (last[v] >= 0) program.freed_after[last[v]].push_back(static_cast<int>(v));
  }
  return program;
}

// One thread's copy of the model, and its passes.
class Runner {
 public:
  Runner(const Program& program, bool training) : program_(program), training_(training) {
    const OpGraph& graph = program.model.graph;
    at::AutoGradMode no_grad(false);
    base_.resize(graph.values.size());
    for (const Parameter& parameter : graph.parameters) {
      if (parameter.value == kNoValue) continue;
      const at::Tensor& own = program.model.tensors.at(parameter.name);
      at::Tensor copy = own.detach().clone();
      if (training && own.requires_grad()) {
        copy.requires_grad_(true);
        trained_.push_back(copy);
      }
      base_[parameter.value] = copy;
    }
    for (const ConstantTensor& constant : graph.constants) {
      if (constant.value != kNoValue) base_[constant.value] = constant.tensor.clone();
    }
    context_.training = graph.training;
  }

  Pass Run() {
    PassOverParameters();
    Pass pass;
    const Clock::time_point start = Clock::now();
    const size_t num_nodes = program_.model.graph.nodes.size();
    pass.forward_ms.resize(num_nodes);
    pass.backward_ms.resize(num_nodes);
    for (int j = 0; j < kMicroBatches; ++j) RunMicroBatch(pass);
    pass.total_ms = Milliseconds(start, Clock::now());
    return pass;
  }

  // The node that runs, for messages.
  int node() const { return node_; }

 private:
  // Between steps an optimizer goes over parameters, gradients and its state, and leaves little of
  // the model in the caches. Changes no parameter.
  void PassOverParameters() {
    at::AutoGradMode no_grad(false);
    state_.resize(trained_.size());
    for (size_t i = 0; i < trained_.size(); ++i) {
      at::Tensor& gradient = trained_[i].mutable_grad();
      if (!gradient.defined()) continue;
      if (!state_[i].defined()) state_[i] = at::zeros_like(trained_[i]);
      state_[i].mul_(0.9).add_(gradient);
      trained_[i].add_(state_[i], /*alpha=*/0);
      gradient = at::Tensor();
    }
  }

  void RunMicroBatch(Pass& pass) {
    const OpGraph& graph = program_.model.graph;
    at::AutoGradMode grad_mode(training_);
    std::vector<c10::IValue> slots = base_;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      slots[graph.inputs[i].value] = program_.inputs[i];
    }
    marks_.clear();
    known_.clear();
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      node_ = static_cast<int>(n);
      const Clock::time_point start = Clock::now();
      RunNode(program_.nodes[n], slots, context_);
      for (const int value : program_.freed_after[n]) {
        if (graph.values[value].producer != node_) slots[value] = c10::IValue();
      }
      pass.forward_ms[n] += Milliseconds(start, Clock::now());
      if (training_) {
        for (const int output : graph.nodes[n].outputs) {
          if (output != kNoValue) HookNew(slots[output]);
        }
      }
      for (const int value : program_.freed_after[n]) slots[value] = c10::IValue();
    }
    if (training_) Backward(slots, pass);
  }

  void HookNew(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined() && tensor.grad_fn()) HookNew(tensor.grad_fn().get());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) HookNew(item);
    } else if (value.isTuple()) {
      for (const c10::IValue& item : value.toTupleRef().elements()) HookNew(item);
    }
  }

  void HookNew(torch::autograd::Node* function) {
    if (function == nullptr || !known_.insert(function).second) return;
    // Parameters' own functions stay from pass to pass.
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(function) != nullptr) return;
    function->add_pre_hook(std::make_unique<MarkingHook>(node_, marks_));
    for (const torch::autograd::Edge& edge : function->next_edges()) HookNew(edge.function.get());
  }

  void Backward(std::vector<c10::IValue>& slots, Pass& pass) {
    torch::autograd::edge_list roots;
    torch::autograd::variable_list gradients;
    for (const int value : program_.roots) {
      if (!slots[value].isTensor() || !slots[value].toTensor().requires_grad()) continue;
      const at::Tensor root = slots[value].toTensor();
      roots.push_back(torch::autograd::impl::gradient_edge(root));
      gradients.push_back(at::ones_like(root.detach()));
    }
    slots.clear();
    if (roots.empty()) return;
    const Clock::time_point start = Clock::now();
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true, {});
    const Clock::time_point end = Clock::now();
    if (marks_.empty()) return;
    marks_.front().at = start;  // what the engine needs to get going
    for (size_t i = 0; i < marks_.size(); ++i) {
      const Clock::time_point next = i + 1 < marks_.size() ? marks_[i + 1].at : end;
      pass.backward_ms[marks_[i].node] += Milliseconds(marks_[i].at, next);
    }
  }

  const Program& program_;
  const bool training_;
  RunContext context_;
  std::vector<c10::IValue> base_;  // parameters and constants
  std::vector<at::Tensor> trained_, state_;
  std::vector<Mark> marks_;
  std::unordered_set<torch::autograd::Node*> known_;
  int node_ = 0;
};

ProgramTimes MeanOfQuickest(std::vector<Pass> passes) {
  std::sort(passes.begin(), passes.end(),
            [](const Pass& a, const Pass& b) { return a.total_ms < b.total_ms; });
  const size_t counted = std::max<size_t>(1, passes.size() / 4);
  ProgramTimes times;
  times.passes = static_cast<int>(passes.size());
  times.forward_ms.resize(passes[0].forward_ms.size());
  times.backward_ms.resize(passes[0].backward_ms.size());
  for (size_t p = 0; p < counted; ++p) {
    for (size_t n = 0; n < times.forward_ms.size(); ++n) {
      times.forward_ms[n] += passes[p].forward_ms[n] / counted / kMicroBatches;
      times.backward_ms[n] += passes[p].backward_ms[n] / counted / kMicroBatches;
    }
  }
  return times;
}

absl::Status CheckValues(const Model& model) {
  for (const Parameter& parameter : model.graph.parameters) {
    if (parameter.value == kNoValue) continue;
    const auto own = model.tensors.find(parameter.name);
    if (own != model.tensors.end() && own->second.defined() && !own->second.is_meta()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "'", parameter.name, "' has no values: operators can only be measured one by one"));
  }
  for (const ConstantTensor& constant : model.graph.constants) {
    if (constant.value == kNoValue || constant.tensor.defined()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("constant '", constant.name, "' has no values"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProgramTimes> MeasureProgram(const Model& model,
                                            const std::vector<at::IValue>& inputs,
                                            const ProgramPassOptions& options) {
  if (absl::Status status = CheckValues(model); !status.ok()) return status;
  absl::StatusOr<std::vector<CompiledNode>> compiled = CompileNodes(model.graph.nodes);
  if (!compiled.ok()) return compiled.status();
  const Program program = MakeProgram(model, inputs, *std::move(compiled));

  constexpr int kLeastPasses = 5, kWarmUp = 2;
  const Clock::time_point start = Clock::now();
  // All threads stop after the same pass: the last that comes to the barrier decides.
  bool stop = false;
  int begun = 0;
  std::barrier together(options.at_once, [&]() noexcept {
    stop =
        begun >= kWarmUp + options.passes ||
        (begun >= kWarmUp + kLeastPasses && Milliseconds(start, Clock::now()) > options.budget_ms);
    ++begun;
  });
  std::mutex mutex;
  std::vector<Pass> passes;
  std::string error;
  const auto work = [&](int thread) {
    if (options.on_thread) options.on_thread(thread);
    at::set_num_threads(1);
    int node = 0;
    try {
      Runner runner(program, options.training);
      std::vector<Pass> own;
      for (int p = 0;; ++p) {
        together.arrive_and_wait();
        if (stop) break;
        Pass pass;
        try {
          pass = runner.Run();
        } catch (...) {
          node = runner.node();
          throw;
        }
        if (p >= kWarmUp) own.push_back(std::move(pass));
      }
      std::scoped_lock lock(mutex);
      std::move(own.begin(), own.end(), std::back_inserter(passes));
    } catch (const std::exception& failure) {
      together.arrive_and_drop();
      const auto* torch_error = dynamic_cast<const c10::Error*>(&failure);
      const Node& at = model.graph.nodes.empty() ? Node() : model.graph.nodes[node];
      std::scoped_lock lock(mutex);
      error = absl::StrCat(
          "cannot run ", at.op, " in module '", at.module_path,
          "': ", torch_error != nullptr ? torch_error->what_without_backtrace() : failure.what());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < options.at_once; ++t) threads.emplace_back(work, t);
  }
  if (!error.empty()) return absl::InternalError(error);
  if (passes.empty()) return absl::InternalError("no pass was measured");
  return MeanOfQuickest(std::move(passes));
}

}  // namespace autopart
