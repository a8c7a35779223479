#include "runtime/rank_executor.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include <ATen/Parallel.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>

#include "runtime/internal/error_text.h"
#include "runtime/internal/loopback.h"
#include "runtime/reducer.h"
#include "runtime/stage.h"

namespace autopart {
namespace {

// An action with everything looked up.
struct Resolved {
  Stage* stage = nullptr;
  int edge = -1;  // of the stage, incoming or outgoing as the kind says
  int peer_rank = -1;
  bool last_of_kind = false;  // kReduce, kStep: the rank's last one does the work
};

struct ActionList {
  std::vector<Action> actions;
  std::vector<Resolved> resolved;
};

std::string RankName(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

struct RankExecutor::Impl {
  Impl(const OpGraph& graph, const Plan& plan, int rank, std::map<std::string, at::Tensor> params,
       Communicator& communicator, const RankExecutorOptions& options)
      : graph(graph),
        plan(WithoutConstants(plan, graph)),
        placement(this->plan.Placement()),
        rank(rank),
        parameters(std::move(params)),
        communicator(communicator),
        options(options) {
    if (communicator.rank() != rank || communicator.size() < placement.num_ranks) {
      throw std::invalid_argument("the plan needs " + std::to_string(placement.num_ranks) +
                                  " ranks and this is " + RankName(rank) +
                                  ", but the communicator is " + RankName(communicator.rank()) +
                                  " of " + std::to_string(communicator.size()));
    }
    stages.resize(this->plan.stages.size());
    for (const PlanStage& stage : this->plan.stages) {
      if (std::find(stage.ranks.begin(), stage.ranks.end(), rank) == stage.ranks.end()) continue;
      const auto host = this->options.host_stages.find(stage.index);
      stages[stage.index] = std::make_unique<Stage>(
          this->graph, this->plan, stage.index, parameters,
          host == this->options.host_stages.end() ? nullptr : &host->second);
    }
    FindTrained();
    for (const ReduceGroup& group : FindReduceGroups(this->graph, this->plan)) {
      if (std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end()) continue;
      reduce_groups.push_back({group, Tensors(group.parameters)});
    }
    planned = MakeActionList(this->plan.schedule);
    current = &planned;
  }

  std::vector<at::Tensor> Tensors(const std::vector<int>& indices) const {
    std::vector<at::Tensor> tensors;
    for (const int p : indices) tensors.push_back(parameters.at(graph.parameters[p].name));
    return tensors;
  }

  // Trained parameters of all stages of the rank, each once.
  void FindTrained() {
    for (const auto& stage : stages) {
      if (stage == nullptr) continue;
      for (const at::Tensor& parameter : stage->trained()) {
        const bool known = std::any_of(trained.begin(), trained.end(),
                                       [&](const at::Tensor& t) { return t.is_same(parameter); });
        if (!known) trained.push_back(parameter);
      }
    }
  }

  ActionList MakeActionList(const std::string& schedule_name) {
    Plan with_schedule = plan;
    with_schedule.schedule = schedule_name;
    if (schedule_name == "forward") {
      for (StageEdge& edge : with_schedule.edges) edge.has_gradient = false;
    }
    const absl::StatusOr<Schedule> schedule = BuildSchedule(with_schedule);
    if (!schedule.ok()) throw std::invalid_argument(std::string(schedule.status().message()));
    ActionList list;
    list.actions = schedule->ranks.at(rank);
    int last_reduce = -1;
    int last_step = -1;
    for (const Action& action : list.actions) {
      list.resolved.push_back(Resolve(action));
      if (action.kind == ActionKind::kReduce) {
        last_reduce = static_cast<int>(list.resolved.size()) - 1;
      }
      if (action.kind == ActionKind::kStep) {
        last_step = static_cast<int>(list.resolved.size()) - 1;
      }
    }
    if (last_reduce >= 0) list.resolved[last_reduce].last_of_kind = true;
    if (last_step >= 0) list.resolved[last_step].last_of_kind = true;
    return list;
  }

  Resolved Resolve(const Action& action) {
    Resolved resolved;
    resolved.stage = stages.at(action.stage).get();
    if (resolved.stage == nullptr) {
      throw std::invalid_argument("action " + ToString(action) + " stands in the list of " +
                                  RankName(rank) + ", which does not hold that stage");
    }
    switch (action.kind) {
      case ActionKind::kSendActivation:
      case ActionKind::kWaitActivation:
      case ActionKind::kRecvGradient:
        resolved.edge = resolved.stage->FindOutgoing(action.peer_stage);
        break;
      case ActionKind::kRecvActivation:
      case ActionKind::kSendGradient:
      case ActionKind::kWaitGradient:
        resolved.edge = resolved.stage->FindIncoming(action.peer_stage);
        break;
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        throw std::invalid_argument("action " + ToString(action) +
                                    ": schedules that split the backward cannot be run yet; plan "
                                    "again with --schedule 1f1b");
      default:
        return resolved;
    }
    if (resolved.edge < 0) {
      throw std::invalid_argument("action " + ToString(action) +
                                  " uses an edge that the plan does "
                                  "not have");
    }
    resolved.peer_rank = placement.RankOf(action.peer_stage, action.micro_batch);
    return resolved;
  }

  Clock::time_point Deadline() const { return Clock::now() + options.deadline; }

  std::unique_ptr<Operation> StartSend(int peer, std::vector<ConstBytes> pieces) {
    if (peer == rank) {
      loopback.Send(std::move(pieces));
      return nullptr;
    }
    return communicator.StartSend(peer, std::move(pieces));
  }

  void Receive(IncomingMessage& message, int peer) {
    const auto receive = [&](std::vector<Bytes> pieces) {
      if (pieces.empty()) return;
      if (peer == rank) return loopback.Receive(pieces);
      communicator.StartReceive(peer, std::move(pieces))->Wait(Deadline());
    };
    receive({message.HeaderPiece()});
    receive(message.OverflowPieces());
    receive(message.TensorPieces());
  }

  void Wait(std::unique_ptr<Operation>& operation, OutgoingMessage& message) {
    if (operation != nullptr) operation->Wait(Deadline());
    operation.reset();
    message.Clear();
  }

  void Execute(const Action& action, const Resolved& r) {
    const int j = action.micro_batch;
    Stage& stage = *r.stage;
    switch (action.kind) {
      case ActionKind::kForward:
        stage.Forward(j);
        if (options.check_finite) CheckLoss(j);
        break;
      case ActionKind::kBackward:
        stage.Backward(j);
        break;
      case ActionKind::kSendActivation:
        stage.sending_activation(j, r.edge) =
            StartSend(r.peer_rank, stage.activation_to_send(j, r.edge).Pieces());
        break;
      case ActionKind::kRecvActivation:
        Receive(stage.activation(j, r.edge), r.peer_rank);
        break;
      case ActionKind::kWaitActivation:
        Wait(stage.sending_activation(j, r.edge), stage.activation_to_send(j, r.edge));
        break;
      case ActionKind::kSendGradient:
        stage.sending_gradient(j, r.edge) =
            StartSend(r.peer_rank, stage.gradient_to_send(j, r.edge).Pieces());
        break;
      case ActionKind::kRecvGradient:
        Receive(stage.gradient(j, r.edge), r.peer_rank);
        break;
      case ActionKind::kWaitGradient:
        Wait(stage.sending_gradient(j, r.edge), stage.gradient_to_send(j, r.edge));
        break;
      case ActionKind::kReduce:
        if (r.last_of_kind && !options.one_thread) Reduce();
        break;
      case ActionKind::kStep:
        if (options.one_thread) break;
        BroadcastBuffers(stage);
        if (r.last_of_kind && options.update) options.update();
        break;
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        break;
    }
  }

  void Reduce() {
    for (const auto& [group, tensors] : reduce_groups) {
      ReduceGradients(group, tensors, communicator, Deadline());
    }
    FinishGradients();
  }

  // Adds what was there before the step.
  void FinishGradients() {
    c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < trained.size(); ++i) {
      at::Tensor& gradient = trained[i].mutable_grad();
      if (options.check_finite && gradient.defined() && !gradient.isfinite().all().item<bool>()) {
        throw std::runtime_error("the gradient of a parameter of shape " +
                                 c10::str(gradient.sizes()) + " is not finite");
      }
      if (!set_aside[i].defined()) continue;
      if (gradient.defined()) set_aside[i].add_(gradient);
      gradient = std::move(set_aside[i]);
    }
  }

  // Replica 0's statistics, as DistributedDataParallel does.
  void BroadcastBuffers(Stage& stage) {
    const std::vector<int>& ranks = plan.stages[stage.index()].ranks;
    if (ranks.size() < 2 || !input->training) return;
    std::vector<int> group = ranks;
    std::sort(group.begin(), group.end());
    for (const int p : stage.written_buffers()) {
      const at::Tensor& buffer = parameters.at(graph.parameters[p].name);
      at::Tensor dense = buffer.detach().contiguous();
      communicator.Broadcast(group, ranks[0],
                             {static_cast<std::byte*>(dense.mutable_data_ptr()), dense.nbytes()},
                             Deadline());
      if (!dense.is_alias_of(buffer)) buffer.detach().copy_(dense);
    }
  }

  void CheckLoss(int micro_batch) const {
    if (!graph.loss_output.has_value()) return;
    const at::IValue& loss = outputs[micro_batch][*graph.loss_output];
    if (loss.isTensor() && !loss.toTensor().isfinite().all().item<bool>()) {
      throw std::runtime_error("the loss is not finite: " + c10::str(loss.toTensor().item()));
    }
  }

  // Turns what went wrong into the one error that users see, and tells the peers.
  [[noreturn]] void Fail(int action_index, const std::exception& error) {
    const Action& action = current.load()->actions[action_index];
    const Resolved& resolved = current.load()->resolved[action_index];
    std::string where =
        RankName(rank) + ", stage " + std::to_string(action.stage) + ", action " + ToString(action);
    const auto* lost = dynamic_cast<const CommunicationError*>(&error);
    const std::optional<AbortRecord> first = communicator.aborted();
    if (first.has_value() && (lost != nullptr || first->rank == rank)) {
      failure = where + ": stopped because of " + first->what;
    } else {
      failure = where;
      if (lost != nullptr && resolved.peer_rank >= 0) {
        failure += ", waiting for stage " + std::to_string(action.peer_stage) + " on " +
                   RankName(resolved.peer_rank);
      }
      failure += ": " + internal::ErrorText(error);
      communicator.Abort({rank, failure});
      // Another rank may have been first.
      const std::optional<AbortRecord> record = communicator.aborted();
      if (record.has_value() && record->rank != rank && lost != nullptr) {
        failure = where + ": stopped because of " + record->what;
      }
    }
    for (const auto& stage : stages) {
      if (stage != nullptr) stage->Reset();
    }
    throw std::runtime_error(failure);
  }

  const OpGraph graph;
  const Plan plan;
  const StagePlacement placement;
  const int rank;
  std::map<std::string, at::Tensor> parameters;
  Communicator& communicator;
  const RankExecutorOptions options;
  internal::Loopback loopback;
  std::vector<std::unique_ptr<Stage>> stages;  // by stage, empty where other ranks have it
  std::vector<at::Tensor> trained;
  std::vector<std::pair<ReduceGroup, std::vector<at::Tensor>>> reduce_groups;
  ActionList planned, forward_only;
  std::string failure;  // set: closed

  // Of the step in progress.
  std::atomic<const ActionList*> current{nullptr};
  const RankStepInput* input = nullptr;
  std::vector<std::vector<at::IValue>> outputs;
  std::vector<at::Tensor> set_aside;  // gradients from before the step, by index into trained
  Clock::time_point began;
  int64_t bytes_before = 0;
  // For Describe, from any thread.
  std::atomic<int> action{-1};
  std::atomic<Clock::rep> action_began{0};
};

RankExecutor::RankExecutor(const OpGraph& graph, const Plan& plan, int rank,
                           std::map<std::string, at::Tensor> parameters, Communicator& communicator,
                           const RankExecutorOptions& options)
    : impl_(std::make_unique<Impl>(graph, plan, rank, std::move(parameters), communicator,
                                   options)) {}

RankExecutor::~RankExecutor() = default;

RankStepOutput RankExecutor::Step(const RankStepInput& input) {
  Begin(input);
  const int count = static_cast<int>(actions().size());
  for (int i = 0; i < count; ++i) RunAction(i);
  return End();
}

void RankExecutor::Begin(const RankStepInput& input) {
  Impl& impl = *impl_;
  if (!impl.failure.empty()) throw std::runtime_error(impl.failure);
  if (at::get_num_threads() != 1) at::set_num_threads(1);
  if (input.backward && static_cast<int>(input.weights.size()) != impl.plan.micro_batches) {
    throw std::invalid_argument(std::to_string(input.weights.size()) + " weights were given for " +
                                std::to_string(impl.plan.micro_batches) + " micro-batches");
  }
  if (!input.backward && impl.plan.schedule != "forward" && impl.forward_only.actions.empty()) {
    impl.forward_only = impl.MakeActionList("forward");
  }
  impl.current =
      input.backward || impl.plan.schedule == "forward" ? &impl.planned : &impl.forward_only;
  impl.action = -1;
  impl.input = &input;
  impl.began = Clock::now();
  if (impl.options.log != nullptr) impl.options.log->BeginStep(impl.current.load()->actions.size());
  if (impl.options.memory != nullptr) {
    impl.options.memory->ResetPeak(impl.rank);
    impl.bytes_before = impl.options.memory->live_bytes(impl.rank);
  }
  impl.outputs.assign(impl.plan.micro_batches, std::vector<at::IValue>(impl.graph.outputs.size()));
  impl.set_aside.assign(impl.trained.size(), at::Tensor());
  if (input.backward) {
    for (size_t i = 0; i < impl.trained.size(); ++i) {
      impl.set_aside[i] = std::move(impl.trained[i].mutable_grad());
      impl.trained[i].mutable_grad() = at::Tensor();
    }
  }
  StageStep step;
  step.context.training = input.training;
  step.seed = impl.options.seed;
  step.step = input.step;
  step.backward = input.backward;
  step.inputs = &input.inputs;
  step.weights = &input.weights;
  step.outputs = &impl.outputs;
  for (const auto& stage : impl.stages) {
    if (stage != nullptr) stage->Begin(step);
  }
}

void RankExecutor::RunAction(int action_index) {
  Impl& impl = *impl_;
  const ActionList& list = *impl.current;
  impl.action_began.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  impl.action.store(action_index, std::memory_order_release);
  if (!impl.failure.empty()) throw std::runtime_error(impl.failure);
  std::optional<RankMemoryObserver::Scope> observed;
  if (impl.options.memory != nullptr) observed.emplace(impl.options.memory, impl.rank);
  ActionLog* const log = impl.options.log.get();
  if (log != nullptr) log->BeginAction(action_index);
  try {
    impl.Execute(list.actions[action_index], list.resolved[action_index]);
  } catch (const std::exception& error) {
    impl.Fail(action_index, error);
  }
  if (log != nullptr) log->EndAction(action_index);
  if (impl.options.after_action)
    impl.options.after_action(action_index, list.actions[action_index]);
}

RankStepOutput RankExecutor::End() {
  Impl& impl = *impl_;
  impl.action.store(-1, std::memory_order_release);
  if (impl.options.log != nullptr) impl.options.log->EndStep();
  RankStepOutput output;
  output.outputs = std::move(impl.outputs);
  output.step_ms = std::chrono::duration<double, std::milli>(Clock::now() - impl.began).count();
  if (impl.options.memory != nullptr) {
    output.peak_bytes = impl.options.memory->peak_bytes(impl.rank) - impl.bytes_before;
  }
  impl.input = nullptr;
  return output;
}

const std::vector<Action>& RankExecutor::actions() const { return impl_->current.load()->actions; }

std::string RankExecutor::Describe() const {
  const Impl& impl = *impl_;
  const int at = impl.action.load(std::memory_order_acquire);
  std::string text = RankName(impl.rank) + ": ";
  if (at < 0) return text + "between steps";
  const ActionList& list = *impl.current.load();
  if (at >= static_cast<int>(list.actions.size())) return text + "between steps";
  const auto since = Clock::now().time_since_epoch() -
                     Clock::duration(impl.action_began.load(std::memory_order_relaxed));
  const double seconds = std::chrono::duration<double>(since).count();
  char elapsed[32];
  std::snprintf(elapsed, sizeof(elapsed), "%.1f s", seconds);
  text += "action " + std::to_string(at + 1) + " of " + std::to_string(list.actions.size()) + ", " +
          ToString(list.actions[at]) + ", for " + elapsed;
  const int peer = list.resolved[at].peer_rank;
  if (peer >= 0) text += ", with " + RankName(peer);
  return text;
}

void FinishStepOnOneThread(std::span<RankExecutor* const> ranks) {
  const RankExecutor::Impl& first = *ranks.front()->impl_;
  if (first.input->backward) {
    for (const ReduceGroup& group : FindReduceGroups(first.graph, first.plan)) {
      std::vector<std::vector<at::Tensor>> parameters;
      for (const int rank : group.ranks) {
        parameters.push_back(ranks[rank]->impl_->Tensors(group.parameters));
      }
      ReduceGradientsOnOneThread(parameters);
    }
    for (RankExecutor* rank : ranks) rank->impl_->FinishGradients();
  }
  if (!first.input->training || !first.input->backward) return;
  c10::AutoGradMode no_grad(false);
  for (const PlanStage& planned : first.plan.stages) {
    RankExecutor::Impl& source = *ranks[planned.ranks[0]]->impl_;
    for (const int p : source.stages[planned.index]->written_buffers()) {
      const std::string& name = first.graph.parameters[p].name;
      for (size_t r = 1; r < planned.ranks.size(); ++r) {
        ranks[planned.ranks[r]]->impl_->parameters.at(name).copy_(source.parameters.at(name));
      }
    }
  }
}

}  // namespace autopart
