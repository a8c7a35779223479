// Ranks live on threads of their own (an in-process group) or all on the caller's thread, in the
// order of the simulator. Nothing else differs between the two, so the one is the oracle of the
// other: their results are equal to the bit.
#include "runtime/executor.h"

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "pipeline/simulate.h"
#include "runtime/rank_executor.h"
#include "runtime/stage_program.h"
#include "runtime/transports/in_process.h"

namespace autopart {
namespace {

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::invalid_argument(std::string(value.status().message()));
  return *std::move(value);
}

// A thread that runs one job at a time.
class Worker {
 public:
  Worker() : thread_([this] { Loop(); }) {}
  ~Worker() {
    {
      std::scoped_lock lock(mutex_);
      stops_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void Start(std::function<void()> job) {
    {
      std::scoped_lock lock(mutex_);
      job_ = std::move(job);
      busy_ = true;
    }
    wake_.notify_all();
  }
  // Waits for the job's end; what it threw is returned.
  std::exception_ptr Join() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !busy_; });
    return std::exchange(error_, nullptr);
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stops_ || busy_; });
      if (stops_) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        job_();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      busy_ = false;
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::function<void()> job_;
  bool busy_ = false, stops_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: starts when the rest is there
};

// One action after another over all ranks, none before what it waits for.
std::vector<std::pair<int, int>> OneThreadOrder(const Plan& plan) {
  SimulationInput input;
  input.placement = plan.Placement();
  input.edges = plan.edges;
  input.stage_costs.assign(plan.stages.size(), {1.0, 1.0, 1.0, 0, 0});
  input.stage_memory.resize(plan.stages.size());
  input.receives_ahead = 0;
  const Simulation simulation = ValueOrThrow(Simulate(ValueOrThrow(BuildSchedule(plan)), input));
  std::vector<std::pair<int, int>> order;
  for (const Event& event : simulation.events) order.emplace_back(event.rank, event.action_index);
  return order;
}

}  // namespace

Model LoadModel(const std::string& path) { return ValueOrThrow(LoadModelFile(path)); }

Plan LoadPlan(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  absl::StatusOr<Plan> plan = PlanFromJson(text.str());
  if (!plan.ok()) {
    throw std::invalid_argument(path + ": " + std::string(plan.status().message()));
  }
  return *std::move(plan);
}

struct Executor::Impl {
  Impl(Plan given_plan, Model given_model, const ExecutorOptions& given_options)
      : plan(WithoutConstants(std::move(given_plan), given_model.graph)),
        model(std::move(given_model)),
        options(given_options) {
    CheckFit();
    const int num_ranks = plan.Placement().num_ranks;
    ShareParameters(num_ranks);
    communicators = MakeInProcessGroup(num_ranks);
    RankExecutorOptions rank_options;
    rank_options.deadline = options.deadline;
    rank_options.seed = options.seed;
    rank_options.check_finite = options.check_finite;
    rank_options.one_thread = options.mode == ExecutorOptions::Mode::kOneThread;
    rank_options.host_stages = options.host_stages;
    rank_options.memory = options.memory;
    if (!options.logs.empty() && static_cast<int>(options.logs.size()) != num_ranks) {
      throw std::invalid_argument(std::to_string(options.logs.size()) + " action logs for " +
                                  std::to_string(num_ranks) + " ranks");
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (!options.logs.empty()) rank_options.log = options.logs[rank];
      rank_options.after_action = nullptr;
      if (options.after_action) {
        rank_options.after_action = [this, rank](int index, const Action& action) {
          options.after_action(rank, index, action);
        };
      }
      ranks.push_back(std::make_unique<RankExecutor>(model.graph, plan, rank, parameters[rank],
                                                     *communicators[rank], rank_options));
    }
    if (options.mode == ExecutorOptions::Mode::kThreads) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        workers.push_back(std::make_unique<Worker>());
      }
    }
  }

  void CheckFit() const {
    const std::string hash = ModelHash(model.graph);
    if (!plan.model.hash.empty() && plan.model.hash != hash) {
      throw std::invalid_argument("the plan was made for another model: its hash is " +
                                  plan.model.hash + ", this model's is " + hash +
                                  ". Run `autopart plan` on this model");
    }
    int64_t nodes = 0;
    for (const PlanStage& stage : plan.stages) nodes += static_cast<int64_t>(stage.nodes.size());
    if (nodes != static_cast<int64_t>(model.graph.nodes.size())) {
      throw std::invalid_argument(
          "the plan places " + std::to_string(nodes) + " operators, the model has " +
          std::to_string(model.graph.nodes.size()) + ". Run `autopart plan` on this model");
    }
  }

  // The first replica of a parameter's owner uses the model's own tensor; every other rank that
  // holds it gets a copy.
  void ShareParameters(int num_ranks) {
    c10::AutoGradMode no_grad(false);
    parameters.resize(num_ranks);
    for (const PlanStage& stage : plan.stages) {
      for (const int p : stage.owned_parameters) {
        parameters[stage.ranks[0]][model.graph.parameters[p].name] = Own(p);
      }
    }
    for (const PlanStage& stage : plan.stages) {
      for (const auto& held : {stage.owned_parameters, stage.copied_parameters}) {
        for (const int p : held) {
          for (const int rank : stage.ranks) AddCopy(p, rank);
        }
      }
    }
  }

  at::Tensor Own(int p) const {
    const std::string& name = model.graph.parameters[p].name;
    const auto it = model.tensors.find(name);
    if (it == model.tensors.end() || it->second.is_meta()) {
      throw std::invalid_argument("parameter '" + name +
                                  "' has no values: the model file holds "
                                  "only its shape");
    }
    return it->second;
  }

  void AddCopy(int p, int rank) {
    const Parameter& parameter = model.graph.parameters[p];
    at::Tensor& place = parameters[rank][parameter.name];
    if (place.defined()) return;
    const at::Tensor own = Own(p);
    place = own.detach().clone();
    if (own.requires_grad()) place.requires_grad_(true);
    copies.push_back({own, place, own._version()});
  }

  // An optimizer may have changed the model's own tensors since the last step.
  void RefreshCopies() {
    c10::AutoGradMode no_grad(false);
    for (Copy& copy : copies) {
      const int64_t version = copy.own._version();
      if (version == copy.version) continue;
      copy.copy.copy_(copy.own);
      copy.version = version;
    }
  }

  std::vector<RankStepOutput> RunRanks(const RankStepInput& input) {
    if (closed) throw std::runtime_error("this executor failed before: " + *closed);
    RefreshCopies();
    try {
      std::vector<RankStepOutput> outputs = options.mode == ExecutorOptions::Mode::kThreads
                                                ? RunOnThreads(input)
                                                : RunOnOneThread(input);
      // Buffers that the step changed on the model's own tensors are the same on the copies.
      for (Copy& copy : copies) copy.version = copy.own._version();
      return outputs;
    } catch (const std::exception& error) {
      closed = error.what();
      throw;
    }
  }

  std::vector<RankStepOutput> RunOnThreads(const RankStepInput& input) {
    std::vector<RankStepOutput> outputs(ranks.size());
    for (size_t r = 0; r < ranks.size(); ++r) {
      workers[r]->Start([this, r, &input, &outputs] { outputs[r] = ranks[r]->Step(input); });
    }
    std::vector<std::exception_ptr> errors;
    for (const auto& worker : workers) errors.push_back(worker->Join());
    // The first cause; the other ranks only say that they were stopped by it.
    const std::optional<AbortRecord> record = communicators[0]->aborted();
    if (record.has_value() && record->rank >= 0 && record->rank < static_cast<int>(errors.size()) &&
        errors[record->rank] != nullptr) {
      std::rethrow_exception(errors[record->rank]);
    }
    for (const std::exception_ptr& error : errors) {
      if (error != nullptr) std::rethrow_exception(error);
    }
    return outputs;
  }

  std::vector<RankStepOutput> RunOnOneThread(const RankStepInput& input) {
    const bool forward_only = !input.backward && plan.schedule != "forward";
    auto& order = forward_only ? forward_order : planned_order;
    if (order.empty()) {
      Plan ordered = plan;
      if (forward_only) {
        ordered.schedule = "forward";
        for (StageEdge& edge : ordered.edges) edge.has_gradient = false;
      }
      order = OneThreadOrder(ordered);
    }
    std::vector<RankExecutor*> all;
    for (const auto& rank : ranks) all.push_back(rank.get());
    for (RankExecutor* rank : all) rank->Begin(input);
    for (const auto& [rank, action] : order) {
      all[rank]->RunAction(action);
    }
    FinishStepOnOneThread(all);
    std::vector<RankStepOutput> outputs;
    for (RankExecutor* rank : all) outputs.push_back(rank->End());
    return outputs;
  }

  // Number of samples of each input along its batch axis, split evenly into micro-batches.
  std::vector<std::vector<at::IValue>> Split(const std::vector<at::IValue>& inputs) const {
    CheckCount(inputs.size());
    const int64_t m = plan.micro_batches;
    std::vector<std::vector<at::IValue>> split(m, std::vector<at::IValue>(inputs.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const GraphInput& described = model.graph.inputs[i];
      const bool whole = described.batch_axis < 0 || !inputs[i].isTensor() ||
                         inputs[i].toTensor().dim() <= described.batch_axis;
      if (!whole && inputs[i].toTensor().size(described.batch_axis) % m != 0) {
        throw std::invalid_argument(
            "input '" + described.name + "' has " +
            std::to_string(inputs[i].toTensor().size(described.batch_axis)) + " samples, which " +
            std::to_string(m) +
            " micro-batches do not divide: change the batch size or the plan's micro-batches "
            "(StepMicroBatches takes uneven ones)");
      }
      for (int64_t j = 0; j < m; ++j) {
        if (whole) {
          split[j][i] = inputs[i];
        } else {
          const at::Tensor& tensor = inputs[i].toTensor();
          const int64_t size = tensor.size(described.batch_axis) / m;
          split[j][i] = tensor.detach().narrow(described.batch_axis, j * size, size);
        }
      }
    }
    return split;
  }

  void CheckCount(size_t count) const {
    if (count == model.graph.inputs.size()) return;
    std::string names;
    for (const GraphInput& input : model.graph.inputs) {
      names += (names.empty() ? "" : ", ") + input.name;
    }
    throw std::invalid_argument("the model takes " + std::to_string(model.graph.inputs.size()) +
                                " inputs (" + names + "), " + std::to_string(count) +
                                " were given");
  }

  // w_j: the micro-batch's share of the samples; 1 where the loss is a sum.
  std::vector<double> Weights(const std::vector<std::vector<at::IValue>>& inputs) const {
    std::vector<double> weights(inputs.size(), 1.0);
    if (model.graph.loss_is_sum) return weights;
    for (size_t j = 0; j < inputs.size(); ++j) {
      for (size_t i = 0; i < inputs[j].size(); ++i) {
        const int axis = model.graph.inputs[i].batch_axis;
        if (axis < 0 || !inputs[j][i].isTensor() || inputs[j][i].toTensor().dim() <= axis) continue;
        weights[j] = static_cast<double>(inputs[j][i].toTensor().size(axis));
        break;
      }
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= total;
    return weights;
  }

  StepResult Merge(std::vector<RankStepOutput> outputs, const std::vector<double>& weights) const {
    StepResult result;
    result.outputs.assign(plan.micro_batches, std::vector<at::IValue>(model.graph.outputs.size()));
    for (RankStepOutput& rank : outputs) {
      for (size_t j = 0; j < rank.outputs.size(); ++j) {
        for (size_t o = 0; o < rank.outputs[j].size(); ++o) {
          if (!rank.outputs[j][o].isNone()) {
            result.outputs[j][o] = std::move(rank.outputs[j][o]);
          }
        }
      }
      result.step_ms = std::max(result.step_ms, rank.step_ms);
      result.peak_bytes.push_back(rank.peak_bytes);
    }
    if (!model.graph.loss_output.has_value()) return result;
    c10::AutoGradMode no_grad(false);
    for (size_t j = 0; j < result.outputs.size(); ++j) {
      const at::IValue& loss = result.outputs[j][*model.graph.loss_output];
      if (!loss.isTensor()) continue;
      const at::Tensor part = loss.toTensor().mul(weights.empty() ? 1.0 : weights[j]);
      result.loss = result.loss.defined() ? result.loss.add(part) : part;
    }
    return result;
  }

  struct Copy {
    at::Tensor own, copy;
    int64_t version = 0;  // of own, when they were equal
  };

  const Plan plan;
  const Model model;
  const ExecutorOptions options;
  std::vector<std::map<std::string, at::Tensor>> parameters;  // by rank
  std::vector<Copy> copies;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<RankExecutor>> ranks;
  std::vector<std::pair<int, int>> planned_order, forward_order;  // (rank, action)
  std::vector<std::unique_ptr<Worker>> workers;
  std::optional<std::string> closed;
  uint64_t step_count = 0;
};

Executor::Executor(Plan plan, Model model, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(std::move(plan), std::move(model), options)) {}

Executor::~Executor() = default;

StepResult Executor::Step(const std::vector<at::IValue>& inputs) {
  return StepMicroBatches(impl_->Split(inputs));
}

StepResult Executor::StepMicroBatches(const std::vector<std::vector<at::IValue>>& inputs) {
  Impl& impl = *impl_;
  if (!impl.model.graph.loss_output.has_value() && impl.options.host_stages.empty()) {
    throw std::invalid_argument(
        "the model has no loss, so there is nothing to train: save it with "
        "autopart.save(module, example_inputs, path, loss=...)");
  }
  if (impl.plan.schedule == "forward") {
    throw std::invalid_argument("the plan is forward only: plan for training, or call Forward");
  }
  if (static_cast<int>(inputs.size()) != impl.plan.micro_batches) {
    throw std::invalid_argument("the plan has " + std::to_string(impl.plan.micro_batches) +
                                " micro-batches, " + std::to_string(inputs.size()) + " were given");
  }
  for (const auto& micro_batch : inputs) impl.CheckCount(micro_batch.size());
  RankStepInput step;
  step.step = impl.step_count;
  step.inputs = inputs;
  step.weights = impl.Weights(inputs);
  StepResult result = impl.Merge(impl.RunRanks(step), step.weights);
  ++impl.step_count;
  return result;
}

std::vector<at::Tensor> Executor::Forward(const std::vector<at::IValue>& inputs) {
  Impl& impl = *impl_;
  RankStepInput step;
  step.training = false;
  step.backward = false;
  step.inputs = impl.Split(inputs);
  const StepResult result = impl.Merge(impl.RunRanks(step), {});
  std::vector<at::Tensor> joined;
  for (size_t o = 0; o < impl.model.graph.outputs.size(); ++o) {
    std::vector<at::Tensor> parts;
    for (const auto& micro_batch : result.outputs) {
      const at::IValue& part = micro_batch[o];
      if (part.isTensor()) {
        parts.push_back(part.toTensor());
      } else if (part.isScalar()) {
        parts.push_back(at::scalar_tensor(part.toScalar()));
      } else {
        throw std::invalid_argument("output " + std::to_string(o) + " of the model is no tensor");
      }
    }
    joined.push_back(parts[0].dim() == 0 ? at::stack(parts) : at::cat(parts));
  }
  return joined;
}

std::map<std::string, at::Tensor> Executor::Parameters() const {
  std::map<std::string, at::Tensor> all;
  for (const PlanStage& stage : impl_->plan.stages) {
    for (const int p : stage.owned_parameters) {
      const std::string& name = impl_->model.graph.parameters[p].name;
      all[name] = impl_->parameters[stage.ranks[0]].at(name);
    }
  }
  return all;
}

std::map<std::string, at::Tensor> Executor::RankParameters(int rank) const {
  return impl_->parameters.at(rank);
}

void Executor::ZeroGrad() {
  for (const auto& rank : impl_->parameters) {
    for (const auto& [name, tensor] : rank) tensor.mutable_grad() = at::Tensor();
  }
}

const Plan& Executor::plan() const { return impl_->plan; }
uint64_t Executor::step_count() const { return impl_->step_count; }
void Executor::set_step_count(uint64_t count) { impl_->step_count = count; }

}  // namespace autopart
