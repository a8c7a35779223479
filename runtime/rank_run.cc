// All ranks come together before each step (the all-gather that also asks whether to go on), so a
// step is the time from the first rank's begin to the last rank's end, and nothing of one step runs
// in another. Clocks of one host agree: times of different ranks are set beside each other.
#include "runtime/rank_run.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/version.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/action_log.h"
#include "runtime/make_optimizer.h"
#include "runtime/rank_executor.h"
#include "runtime/stage_program.h"

namespace autopart {
namespace {

template <typename T>
ConstBytes BytesOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <typename T>
Bytes WritableBytesOf(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

// Owned and copied parameters of the rank's stages.
std::map<std::string, at::Tensor> CopyParameters(const Model& model, const Plan& plan, int rank) {
  c10::AutoGradMode no_grad(false);
  std::map<std::string, at::Tensor> copies;
  for (const PlanStage& stage : plan.stages) {
    if (std::find(stage.ranks.begin(), stage.ranks.end(), rank) == stage.ranks.end()) continue;
    for (const std::vector<int>* held : {&stage.owned_parameters, &stage.copied_parameters}) {
      for (const int p : *held) {
        const std::string& name = model.graph.parameters.at(p).name;
        const auto own = model.tensors.find(name);
        if (own == model.tensors.end() || own->second.is_meta()) {
          throw std::invalid_argument("parameter '" + name +
                                      "' has no values: the model file holds only its shape");
        }
        at::Tensor& copy = copies[name];
        if (copy.defined()) continue;
        copy = own->second.detach().clone();
        if (own->second.requires_grad()) copy.requires_grad_(true);
      }
    }
  }
  return copies;
}

// Every rank has the constants for itself, as it would in a process of its own.
OpGraph WithOwnConstants(OpGraph graph) {
  for (ConstantTensor& constant : graph.constants) {
    if (constant.tensor.defined()) constant.tensor = constant.tensor.clone();
  }
  return graph;
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// One rank that trains; what it saw goes to rank 0 at the end.
class Run {
 public:
  Run(const Model& model, const Plan& plan, const Batches& batches, Communicator& communicator,
      const RankRunOptions& options)
      : graph_(WithOwnConstants(model.graph)),
        plan_(plan),
        batches_(batches),
        communicator_(communicator),
        options_(options),
        rank_(communicator.rank()),
        log_(std::make_shared<ActionLog>()) {
    everyone_.resize(communicator.size());
    std::iota(everyone_.begin(), everyone_.end(), 0);
    parameters_ = CopyParameters(model, plan, rank_);
    held_bytes_ = options.memory->live_bytes(rank_);
    optimizer_ = MakeOptimizer(plan.optimizer, options.learning_rate, parameters_);
    RankExecutorOptions executor;
    executor.deadline = options.deadline;
    executor.seed = options.seed;
    executor.check_finite = options.check_finite;
    executor.memory = options.memory;
    executor.log = log_;
    executor.update = [this] {
      optimizer_->Step();
      optimizer_->ZeroGrad();
    };
    executor_ =
        std::make_unique<RankExecutor>(graph_, plan, rank_, parameters_, communicator, executor);
  }

  void Train() {
    const double weight = graph_.loss_is_sum ? 1.0 : 1.0 / plan_.micro_batches;
    RankStepInput input;
    input.backward = plan_.schedule != "forward";
    input.training = graph_.training;
    input.weights.assign(plan_.micro_batches, weight);
    const int all = options_.warm_up_steps + options_.steps;
    for (int s = 0; s < all && GoOn(); ++s) {
      if (s == options_.warm_up_steps) log_->Clear();
      input.step = s;
      input.inputs = batches_.Of(s);
      const RankStepOutput output = executor_->Step(input);
      peak_bytes_ = std::max(peak_bytes_, options_.memory->peak_bytes(rank_));
      warm_up_ = std::min(s + 1, options_.warm_up_steps);
      if (s < options_.warm_up_steps) continue;
      losses_.push_back(LossOf(output, weight));
      if (options_.after_step) options_.after_step(s + 1 - options_.warm_up_steps);
    }
  }

  // Rank 0 gets what all saw. Called on every rank.
  std::optional<RunRecord> Gather() {
    // Interrupted in the warm-up: what was run is what there is.
    if (losses_.empty()) {
      losses_.assign(log_->steps().size(), std::nan(""));
      warm_up_ = 0;
    }
    const size_t steps = log_->steps().size();
    std::vector<int64_t> mine;
    for (const ActionLog::Step& step : log_->steps()) {
      mine.push_back(step.whole.begin.time_since_epoch().count());
      mine.push_back(step.whole.end.time_since_epoch().count());
    }
    std::vector<int64_t> all(mine.size() * everyone_.size());
    communicator_.AllGather(everyone_, BytesOf(mine), WritableBytesOf(all), Deadline());
    std::vector<double> losses(steps * everyone_.size());
    communicator_.AllGather(everyone_, BytesOf(losses_), WritableBytesOf(losses), Deadline());

    RunRecord record;
    record.plan_hash = PlanHash(plan_);
    record.model_hash = plan_.model.hash;
    record.torch_version = TORCH_VERSION;
    record.transport = std::string(communicator_.transport());
    record.warm_up_steps = warm_up_;
    std::vector<Clock::time_point> begins;
    for (size_t s = 0; s < steps; ++s) {
      int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
      double loss = 0;
      for (size_t r = 0; r < everyone_.size(); ++r) {
        begin = std::min(begin, all[(r * steps + s) * 2]);
        end = std::max(end, all[(r * steps + s) * 2 + 1]);
        loss += losses[r * steps + s];
      }
      begins.emplace_back(Clock::duration(begin));
      record.step_s.push_back(std::chrono::duration<double>(Clock::duration(end - begin)).count());
      if (graph_.loss_output.has_value()) record.losses.push_back(loss);
    }
    const double typical = record.StepQuantile(0.1);
    record.typical_step =
        std::find(record.step_s.begin(), record.step_s.end(), typical) - record.step_s.begin();

    const RunRank own = Own(record.typical_step, begins[record.typical_step]);
    if (rank_ != 0) {
      const std::vector<double> told = Tell(own);
      communicator_.Send(0, {BytesOf(told)}, Deadline());
      return std::nullopt;
    }
    record.ranks.push_back(own);
    const absl::StatusOr<Schedule> schedule = BuildSchedule(plan_);
    if (!schedule.ok()) throw std::invalid_argument(std::string(schedule.status().message()));
    for (size_t r = 1; r < everyone_.size(); ++r) {
      std::vector<double> told(kFixed + kPerAction * schedule->ranks[r].size());
      communicator_.Receive(r, {WritableBytesOf(told)}, Deadline());
      record.ranks.push_back(Hear(r, schedule->ranks[r], told));
    }
    return record;
  }

 private:
  static constexpr size_t kFixed = 3, kPerAction = 4;

  Clock::time_point Deadline() const { return Clock::now() + options_.deadline; }

  bool GoOn() {
    std::vector<char> mine = {options_.stop.stop_requested() ? char{1} : char{0}};
    std::vector<char> all(everyone_.size());
    communicator_.AllGather(everyone_, BytesOf(mine), WritableBytesOf(all), Deadline());
    // At least one step, so that there is something to tell.
    return log_->steps().empty() || std::count(all.begin(), all.end(), char{1}) == 0;
  }

  double LossOf(const RankStepOutput& output, double weight) const {
    double loss = 0;
    if (!graph_.loss_output.has_value()) return loss;
    for (const std::vector<at::IValue>& results : output.outputs) {
      const at::IValue& part = results.at(*graph_.loss_output);
      if (part.isTensor()) loss += weight * part.toTensor().item<double>();
    }
    return loss;
  }

  RunRank Own(int typical_step, Clock::time_point begin) const {
    RunRank own;
    own.rank = rank_;
    own.held_bytes = held_bytes_;
    own.peak_bytes = peak_bytes_;
    own.resident_bytes = ResidentBytes();
    const auto since = [&](Clock::time_point t) {
      return std::chrono::duration<double>(t - begin).count();
    };
    const std::vector<Action>& actions = executor_->actions();
    for (size_t i = 0; i < actions.size(); ++i) {
      std::vector<double> lengths;
      for (const ActionLog::Step& step : log_->steps()) {
        lengths.push_back(step.actions[i].seconds());
      }
      const TimeSpan& span = log_->steps()[typical_step].actions[i];
      own.actions.push_back({actions[i], since(span.begin), since(span.end), Quantile(lengths, 0.1),
                             Quantile(lengths, 0.5)});
    }
    return own;
  }

  static std::vector<double> Tell(const RunRank& rank) {
    std::vector<double> told = {static_cast<double>(rank.held_bytes),
                                static_cast<double>(rank.peak_bytes),
                                static_cast<double>(rank.resident_bytes)};
    for (const RunAction& a : rank.actions) {
      told.insert(told.end(), {a.start_s, a.end_s, a.p10_s, a.median_s});
    }
    return told;
  }

  static RunRank Hear(int r, const std::vector<Action>& actions, const std::vector<double>& told) {
    RunRank rank;
    rank.rank = r;
    rank.held_bytes = static_cast<int64_t>(told[0]);
    rank.peak_bytes = static_cast<int64_t>(told[1]);
    rank.resident_bytes = static_cast<int64_t>(told[2]);
    for (size_t i = 0; i < actions.size(); ++i) {
      const double* t = &told[kFixed + kPerAction * i];
      rank.actions.push_back({actions[i], t[0], t[1], t[2], t[3]});
    }
    return rank;
  }

  const OpGraph graph_;
  const Plan& plan_;
  const Batches& batches_;
  Communicator& communicator_;
  const RankRunOptions& options_;
  const int rank_;
  const std::shared_ptr<ActionLog> log_;
  std::vector<int> everyone_;
  std::map<std::string, at::Tensor> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RankExecutor> executor_;
  std::vector<double> losses_;  // this rank's part, of each counted step
  int warm_up_ = 0;
  int64_t held_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace

absl::Status CheckRuns(const Plan& plan, const OpGraph& graph) {
  if (const std::string hash = ModelHash(graph); plan.model.hash != hash) {
    return absl::FailedPreconditionError(
        absl::StrCat("the plan was made for another model: its hash is ", plan.model.hash,
                     ", this model's is ", hash, ". Run `autopart plan` on this model"));
  }
  const std::vector<std::string> known = ExecutableScheduleNames();
  if (std::find(known.begin(), known.end(), plan.schedule) == known.end()) {
    return absl::UnimplementedError(absl::StrCat("schedule '", plan.schedule,
                                                 "' cannot be run yet: plan again with --schedule ",
                                                 absl::StrJoin(known, ", "), " or without it"));
  }
  for (const PlanStage& stage : plan.stages) {
    if (stage.recomputed_nodes.empty()) continue;
    return absl::UnimplementedError(
        absl::StrCat("stage ", stage.index, " recomputes ", stage.recomputed_nodes.size(),
                     " operators, which cannot be run yet: plan again with --recompute none"));
  }
  if (plan.shard_optimizer) {
    return absl::UnimplementedError(
        "the plan shards the optimizer's state, which cannot be run yet: plan again without "
        "--shard-optimizer");
  }
  if (plan.reduce_bucket_bytes > 0) {
    return absl::UnimplementedError(
        "the plan reduces gradients during the backward, which cannot be run yet: plan again with "
        "--search executable");
  }
  if (plan.schedule != "forward" && !graph.loss_output.has_value()) {
    return absl::FailedPreconditionError(
        "the model has no loss, so there is nothing to train: save it with "
        "autopart.save(module, example_inputs, path, loss=...), or plan with --schedule forward");
  }
  return absl::OkStatus();
}

std::optional<RunRecord> RunSteps(const Model& model, const Plan& plan, const Batches& batches,
                                  Communicator& communicator, const RankRunOptions& options) {
  const RankMemoryObserver::Scope scope(options.memory, communicator.rank());
  try {
    Run run(model, plan, batches, communicator, options);
    run.Train();
    return run.Gather();
  } catch (const std::exception& error) {
    communicator.Abort({communicator.rank(), error.what()});
    throw;
  }
}

}  // namespace autopart
