// The search. A candidate is
//
//   assignment of nodes to stages x replicas of each x layout of the ranks on the hosts x schedule
//   x number of micro-batches (of a size) x optimizer sharded or not x what is recomputed
//
// and its judge the simulator (internal/judge.h): first one pipeline for all where there are many,
// then, for the best few, every rank. For each number of stages the partitioner is asked once
// without a memory cap. What does not fit is tried again with the optimizer's state sharded, with a
// cap (which falls by what the simulator finds too much, since only the simulator counts messages),
// and with recomputation, in that order and where allowed. A shape whose lower bound is above the
// best candidate so far is left out. Where all assignments are few, they are all tried: the answer
// is then proven best of what is searched.
//
// Cost: (divisors of N) partitions and (divisors x layouts x schedules x micro-batch counts)
// simulations of one pipeline.
#include "pipeline/planner.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "partitioner/partitioner.h"
#include "pipeline/breakdown.h"
#include "pipeline/internal/assign.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/judge.h"
#include "pipeline/internal/memory_bound.h"
#include "pipeline/internal/pinned_slices.h"
#include "pipeline/internal/step_bound.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace {

using internal::Assignment;
using internal::Judgement;
using internal::Precision;

constexpr int kCappedTries = 3;
// Every action is simulated: beyond these a plan takes minutes and its answer is no better.
constexpr int kMostDevices = 16384;
constexpr int kMostMicroBatches = 100000;
// Actions of a schedule beyond which one pipeline stands for all, and beyond which the chosen plan
// is not simulated rank by rank either.
constexpr int64_t kExactActions = 20000;
constexpr int64_t kMostActions = 20000000;
constexpr int kFinalists = 3;
constexpr int kChunks = 2;  // stages a rank, of schedules that have several
// Assignments that are all tried where there are no more, and alternatives that are kept.
constexpr int kAllAssignments = 3000;
constexpr size_t kMostAlternatives = 200;
constexpr int64_t kOverlapBucketBytes = 25 << 20;

bool HasChunks(std::string_view schedule) {
  return schedule == "interleaved" || schedule == "zb-v";
}

// The graph as a forward-only plan sees it.
CostGraph ForwardOnlyGraph(CostGraph graph) {
  for (CostNode& node : graph.nodes) {
    node.backward_input_ms = node.backward_weight_ms = 0;
    node.saved_values.clear();
    node.saved_bytes = 0;
  }
  for (CostValue& value : graph.values) value.gradient_bytes = 0;
  return graph;
}

// One stage a rank, whose gradients go on when its whole backward is done.
bool RunsStageAtOnce(std::string_view schedule) {
  return schedule == "gpipe" || schedule == "1f1b" || schedule == "forward";
}

// Stages and replicas of each.
struct Shape {
  int stages = 1, replicas = 1;
};

absl::Status CheckWishes(int devices, const PlannerOptions& options) {
  for (const auto& [name, value] : {std::pair("stages", options.stages),
                                    {"replicas", options.replicas},
                                    {"micro-batches", options.micro_batches}}) {
    if (value.has_value() && *value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the number of ", name, " must be at least 1, not ", *value));
    }
  }
  if (options.batch.value_or(1) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch must be at least 1 sample, not ", *options.batch));
  }
  if (devices > kMostDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("plans are for at most ", kMostDevices, " devices, not ", devices));
  }
  if (options.micro_batches.value_or(1) > kMostMicroBatches) {
    return absl::InvalidArgumentError(absl::StrCat("the number of micro-batches must be at most ",
                                                   kMostMicroBatches, ", not ",
                                                   *options.micro_batches));
  }
  if (options.stages && options.replicas && *options.stages * *options.replicas != devices) {
    return absl::InvalidArgumentError(
        absl::StrCat(*options.stages, " stages of ", internal::Count(*options.replicas, "replica"),
                     " need ", *options.stages * *options.replicas, " devices, not ", devices));
  }
  const std::set<std::string> known = {"none", "all", "auto"};
  if (options.recompute && known.count(*options.recompute) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("unknown --recompute '", *options.recompute,
                                                   "': known are ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

// Numbers of stages that a graph can have.
absl::StatusOr<std::vector<Shape>> AllowedShapes(const CostGraph& graph, int devices,
                                                 const PlannerOptions& options, int pinned_stages) {
  const int operators = graph.nodes.size();
  const bool may_be_empty = !options.pinned_stage_of_node.empty();
  if (options.stages && *options.stages > operators && !may_be_empty) {
    return absl::InvalidArgumentError(absl::StrCat("cannot make ", *options.stages,
                                                   " stages: the model has ",
                                                   internal::Count(operators, "operator")));
  }
  if (options.stages && *options.stages < pinned_stages) {
    return absl::InvalidArgumentError(absl::StrCat("a node is pinned to stage ", pinned_stages - 1,
                                                   ", but there are ", *options.stages,
                                                   " stages, from 0"));
  }
  std::vector<int> divisors;
  std::vector<Shape> shapes;
  for (int p = 1; p <= devices; ++p) {
    if (devices % p != 0) continue;
    divisors.push_back(p);
    if (options.stages ? p != *options.stages
                       : (may_be_empty ? p != pinned_stages : p < pinned_stages)) {
      continue;
    }
    if (options.replicas && devices / p != *options.replicas) continue;
    if (p <= operators || may_be_empty) shapes.push_back({p, devices / p});
  }
  if (!shapes.empty()) return shapes;
  if (options.stages || pinned_stages > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(internal::Count(devices, "device"), " cannot be shared out evenly among ",
                     options.stages.value_or(pinned_stages), " stages: possible are ",
                     absl::StrJoin(divisors, ", ")));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      internal::Count(devices, "device"), " cannot be shared out evenly among stages of ",
      internal::Count(options.replicas.value_or(1), "replica"), ": replicas may be ",
      absl::StrJoin(divisors, ", "), ", and each stage needs an operator (the model has ",
      operators, ")"));
}

absl::StatusOr<std::vector<std::string>> AllowedSchedules(const PlannerOptions& options) {
  std::vector<std::string> all = ScheduleNames();
  const auto forward_only = [](const std::string& name) { return name == "forward"; };
  if (options.schedule) {
    if (std::find(all.begin(), all.end(), *options.schedule) == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown schedule '", *options.schedule,
                                                     "': known are ", absl::StrJoin(all, ", ")));
    }
    if (forward_only(*options.schedule) == options.training) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule '", *options.schedule, "' is ",
                       options.training ? "for inference, but the plan is for training"
                                        : "for training, but the plan is for inference"));
    }
    return std::vector<std::string>{*options.schedule};
  }
  if (options.search == SearchSpace::kExecutable) all = ExecutableScheduleNames();
  std::erase_if(all,
                [&](const std::string& name) { return forward_only(name) == options.training; });
  return all;
}

// The best so far and what lost, over all sizes of micro-batch.
class Contest {
 public:
  struct Entry {
    Judgement judgement;
    Assignment assignment;
    const CostGraph* graph = nullptr;
    Shape shape;  // stages of a rank counted once
    std::string recompute = "none";

    double ms_per_sample() const {
      const Plan& plan = judgement.plan;
      return plan.predicted_step_ms / plan.micro_batches /
             std::max<int64_t>(1, plan.micro_batch_samples);
    }
    // Faster first (times within 1e-9 are equal), then what needs less memory, then fewer stages.
    bool BetterThan(const Entry& o) const {
      const double mine = ms_per_sample();
      const double its = o.ms_per_sample();
      if (mine < its * (1 - 1e-9)) return true;
      if (mine > its * (1 + 1e-9)) return false;
      const auto key = [](const Entry& e) {
        return std::tuple(e.judgement.over_bytes, e.shape.stages, e.judgement.plan.micro_batches);
      };
      return key(*this) < key(o);
    }
  };

  void Add(Entry entry) {
    std::vector<Entry>& list = entry.judgement.fits() ? fits_ : misses_;
    if (!entry.judgement.fits()) Slim(entry.judgement.plan);
    list.push_back(std::move(entry));
    if (fits_.size() > 4 * kFinalists && list.size() % (4 * kFinalists) == 0) Trim();
  }

  bool empty() const { return fits_.empty(); }
  // Of the best; infinity if there is none.
  double best_ms_per_sample() const {
    double best = std::numeric_limits<double>::infinity();
    for (const Entry& e : fits_) best = std::min(best, e.ms_per_sample());
    return best;
  }
  std::vector<Entry>& fits() { return fits_; }
  const std::vector<Entry>& misses() const { return misses_; }

  // Only what a report of losers needs is kept of those that cannot win.
  void Trim() {
    std::stable_sort(fits_.begin(), fits_.end(),
                     [](const Entry& a, const Entry& b) { return a.BetterThan(b); });
    for (size_t i = kFinalists; i < fits_.size(); ++i) Slim(fits_[i].judgement.plan);
  }

 private:
  // Nodes, storages and edges go; stages stay for their number.
  static void Slim(Plan& plan) {
    plan.edges.clear();
    for (PlanStage& stage : plan.stages) {
      const int64_t peak = stage.peak_memory_bytes;
      stage = {};
      stage.peak_memory_bytes = peak;
    }
  }

  std::vector<Entry> fits_, misses_;
};

// The search for one size of micro-batch.
class Planner {
 public:
  Planner(const CostGraph& graph, const Cluster& cluster, const PlannerOptions& options,
          bool any_will_do, Contest& contest)
      : graph_(graph),
        samples_(graph.samples),
        cluster_(cluster),
        options_(options),
        any_will_do_(any_will_do),
        contest_(contest) {
    devices_ = cluster.num_devices();
    types_ = DeviceTypes(cluster);
    memory_ = options.memory_bytes.value_or(std::numeric_limits<int64_t>::max());
    if (!options.memory_bytes) {
      for (const DeviceSpec& type : types_) memory_ = std::min(memory_, type.memory_bytes);
    }
    work_ = internal::WorkOf(graph, options.training);
  }

  const std::vector<Shape>& shapes() const { return shapes_; }
  bool all_tried() const { return all_tried_; }

  absl::Status Run() {
    if (graph_.nodes.empty()) return absl::InvalidArgumentError("the model has no operators");
    int pinned_stages = 0;
    if (!options_.pinned_stage_of_node.empty()) {
      if (options_.pinned_stage_of_node.size() != graph_.nodes.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("pins for ", options_.pinned_stage_of_node.size(),
                         " nodes, the model has ", graph_.nodes.size()));
      }
      pinned_stages = 1 + *std::max_element(options_.pinned_stage_of_node.begin(),
                                            options_.pinned_stage_of_node.end());
    }
    if (!options_.pins.empty()) {
      absl::StatusOr<std::vector<int>> pins = internal::PinsOfModules(graph_, options_.pins);
      if (!pins.ok()) return pins.status();
      module_pins_ = *std::move(pins);
      pinned_stages =
          std::max(pinned_stages, 1 + *std::max_element(module_pins_.begin(), module_pins_.end()));
    }
    auto shapes = AllowedShapes(graph_, devices_, options_, pinned_stages);
    if (!shapes.ok()) return shapes.status();
    shapes_ = *std::move(shapes);
    auto schedules = AllowedSchedules(options_);
    if (!schedules.ok()) return schedules.status();
    schedules_ = *std::move(schedules);
    auto micro_batches = MicroBatches();
    if (!micro_batches.ok()) return micro_batches.status();
    micro_batches_ = *std::move(micro_batches);

    if (absl::Status s = TryAllAssignments(); !s.ok() || all_tried_) return s;
    for (const Shape& shape : ByPromise()) {
      for (const int chunks : {1, kChunks}) {
        if (Stopped()) return absl::OkStatus();
        if (absl::Status s = TryShape(shape, chunks); !s.ok()) return s;
      }
    }
    return TryUnequal();
  }

 private:
  bool Stopped() const {
    return options_.stop.stop_requested() || (any_will_do_ && !contest_.empty());
  }
  bool Pinned() const { return !options_.pinned_stage_of_node.empty() || !module_pins_.empty(); }
  bool AllSearched() const { return options_.search == SearchSpace::kAll; }

  // Of the whole job.
  absl::StatusOr<std::vector<int>> MicroBatches() const {
    if (options_.batch) {
      if (samples_ == 0) {
        if (options_.micro_batches) return std::vector<int>{*options_.micro_batches};
        return absl::InvalidArgumentError(
            "a batch needs a model whose samples can be counted: give --micro-batches instead");
      }
      if (*options_.batch % samples_ != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("a batch of ", internal::Count(*options_.batch, "sample"),
                         " cannot be cut into micro-batches of ", samples_));
      }
      const int64_t count = *options_.batch / samples_;
      if (options_.micro_batches.value_or(count) != count) {
        return absl::InvalidArgumentError(absl::StrCat(
            *options_.micro_batches, " micro-batches of ", internal::Count(samples_, "sample"),
            " are not a batch of ", *options_.batch));
      }
      if (count > kMostMicroBatches) {
        return absl::InvalidArgumentError(absl::StrCat("a batch of ", *options_.batch, " would be ",
                                                       count, " micro-batches, more than ",
                                                       kMostMicroBatches));
      }
      return std::vector<int>{static_cast<int>(count)};
    }
    if (options_.micro_batches) return std::vector<int>{*options_.micro_batches};
    // p, 2p and 4p micro-batches a replica: the same N, 2N, 4N for every shape.
    return std::vector<int>{devices_, 2 * devices_, 4 * devices_};
  }

  PartitionOptions SplitOptions(int stages) const {
    PartitionOptions split;
    split.num_stages = stages;
    split.objective = Objective::kOverlap;
    const std::vector<DevicePlace> places = PlacesOf(cluster_);
    // Neighbours are mostly on one host.
    const LinkSpec link = devices_ > 1 ? LinkBetween(cluster_, places[0], places[1]) : LinkSpec();
    if (link.bytes_per_ms > 0) split.bytes_per_ms = link.bytes_per_ms;
    split.latency_ms = link.latency_ms;
    split.effort.seed = options_.seed;
    split.effort.iterations = options_.iterations;
    split.effort.prove = false;  // one of dozens of searches; only the chosen plan counts
    split.effort.stop = options_.stop;
    return split;
  }

  absl::StatusOr<std::vector<int>> FreeAssignment(int stages) {
    if (!options_.pinned_stage_of_node.empty()) {
      return internal::CompletePins(graph_, options_.pinned_stage_of_node, stages);
    }
    if (!module_pins_.empty()) return internal::PinnedSlices(graph_, module_pins_, stages);
    if (stages == 1) return std::vector<int>(graph_.nodes.size(), 0);
    const auto it = free_.find(stages);
    if (it != free_.end()) return it->second;
    Say(absl::StrCat("splitting into ", internal::Count(stages, "stage"), BestSoFar()));
    absl::StatusOr<Partition> partition = PartitionGraph(graph_, SplitOptions(stages));
    return free_
        .emplace(stages, partition.ok() ? absl::StatusOr<std::vector<int>>(partition->stage_of_node)
                                        : partition.status())
        .first->second;
  }

  // Ranks of each stage: a pipeline on neighbouring ranks, or the replicas of a stage.
  static std::vector<std::vector<int>> Ranks(const Shape& shape, int chunks,
                                             std::string_view schedule, bool replicas_first) {
    std::vector<std::vector<int>> ranks(shape.stages * chunks);
    for (int s = 0; s < shape.stages * chunks; ++s) {
      const int lane =
          schedule == "zb-v" ? std::min(s, shape.stages * chunks - 1 - s) : s % shape.stages;
      for (int r = 0; r < shape.replicas; ++r) {
        ranks[s].push_back(replicas_first ? lane * shape.replicas + r : r * shape.stages + lane);
      }
    }
    return ranks;
  }

  Plan Settings(const std::string& schedule, int micro_batches, bool shard) const {
    Plan plan;
    plan.cluster = cluster_;
    plan.memory_bytes = options_.memory_bytes.value_or(0);
    plan.dtype = options_.dtype;
    plan.optimizer = options_.optimizer;
    plan.shard_optimizer = shard;
    plan.seed = options_.seed;
    plan.schedule = schedule;
    plan.micro_batches = micro_batches;
    plan.micro_batch_samples = samples_;
    if (AllSearched() && options_.training) plan.reduce_bucket_bytes = kOverlapBucketBytes;
    return plan;
  }

  // A good plan found early leaves out many others by their bounds.
  std::vector<Shape> ByPromise() const {
    std::vector<Shape> shapes = shapes_;
    std::stable_sort(shapes.begin(), shapes.end(), [&](const Shape& a, const Shape& b) {
      return BoundOf(a, "1f1b", micro_batches_.back()) < BoundOf(b, "1f1b", micro_batches_.back());
    });
    return shapes;
  }

  // No plan of this shape can be faster.
  double BoundOf(const Shape& shape, const std::string& schedule, int micro_batches) const {
    if (types_.size() > 1) return 0;
    const int own = (micro_batches + shape.replicas - 1) / shape.replicas;
    return PerSample(RunsStageAtOnce(schedule)
                         ? internal::AtOncePipelineBoundMs(work_, shape.stages, own)
                         : internal::PipelineBoundMs(work_, shape.stages, own),
                     micro_batches);
  }
  // No plan with this split can be faster.
  double BoundOf(const std::vector<int>& stage_of_node, const Shape& shape,
                 const std::string& schedule, int micro_batches) const {
    if (types_.size() > 1 || !RunsStageAtOnce(schedule)) return 0;
    const int own = (micro_batches + shape.replicas - 1) / shape.replicas;
    return PerSample(internal::AtOncePipelineBoundMs(graph_, stage_of_node, shape.stages, own,
                                                     options_.training),
                     micro_batches);
  }
  double PerSample(double step_ms, int micro_batches) const {
    return step_ms / micro_batches / std::max<int64_t>(1, samples_);
  }

  absl::Status TryShape(const Shape& shape, int chunks) {
    const int stages = shape.stages * chunks;
    if (chunks > 1) {
      const bool wanted = std::any_of(schedules_.begin(), schedules_.end(), HasChunks);
      if (!wanted || shape.stages == 1 || stages > static_cast<int>(graph_.nodes.size()) ||
          Pinned()) {
        return absl::OkStatus();
      }
    }
    const bool hosts = cluster_.num_hosts() > 1 && shape.stages > 1 && shape.replicas > 1;
    bool described = false;
    for (const int micro_batches : micro_batches_) {
      for (const std::string& schedule : schedules_) {
        if (BoundOf(shape, schedule, micro_batches) > contest_.best_ms_per_sample()) continue;
        if (HasChunks(schedule) != (chunks > 1)) {
          // Asked for, but one stage a rank is all there is.
          if (!(options_.schedule && chunks == 1 && shape.stages == 1)) continue;
        }
        if (shape.stages == 1 && !options_.schedule && schedule != schedules_.front() &&
            schedule != "1f1b") {
          continue;  // all orders of one stage take as long, and 1F1B holds least
        }
        for (const bool replicas_first : {false, true}) {
          if (replicas_first && !hosts) continue;
          if (Stopped() && !contest_.empty()) return absl::OkStatus();
          if (!described) {
            const absl::StatusOr<std::vector<int>> free = FreeAssignment(stages);
            if (!free.ok()) {
              // Too many stages for what may be divided: only the caller's own wish makes that an
              // error.
              if (shapes_.size() == 1 && chunks == 1) return free.status();
              return absl::OkStatus();
            }
            described = true;
          }
          const auto ranks = Ranks(shape, chunks, schedule, replicas_first);
          if (absl::Status s = TryMemory(shape, ranks, schedule, micro_batches); !s.ok()) return s;
        }
      }
    }
    return absl::OkStatus();
  }

  // Whether the state is sharded over replicas: what may be.
  std::vector<bool> Shardings(int replicas) const {
    if (!options_.training || replicas == 1) return {false};
    if (options_.shard_optimizer) return {*options_.shard_optimizer};
    if (!AllSearched()) return {false};
    return {false, true};
  }

  std::vector<Recompute> Recomputations() const {
    if (!options_.training) return {Recompute::kNone};
    if (options_.recompute == "all") return {Recompute::kAll};
    if (options_.recompute == "none") return {Recompute::kNone};
    if (options_.recompute == "auto" || AllSearched()) return {Recompute::kNone, Recompute::kAuto};
    return {Recompute::kNone};
  }

  // One candidate of each kind that may fit; recomputation only where nothing else fits.
  absl::Status TryMemory(const Shape& shape, const std::vector<std::vector<int>>& ranks,
                         const std::string& schedule, int micro_batches) {
    const int stages = ranks.size();
    std::optional<Contest::Entry> nearest;
    const auto offer = [&](Contest::Entry entry) {
      if (entry.judgement.fits()) {
        contest_.Add(std::move(entry));
        return true;
      }
      if (!nearest || entry.judgement.over_bytes < nearest->judgement.over_bytes) {
        nearest = std::move(entry);
      }
      return false;
    };
    const bool may_split = stages > 1 && !Pinned() && (schedule != "gpipe" || options_.schedule);
    for (const Recompute recompute : Recomputations()) {
      bool fits = false;
      for (const bool shard : Shardings(shape.replicas)) {
        const Plan settings = Settings(schedule, micro_batches, shard);
        // As the partitioner likes it best, without a cap.
        const absl::StatusOr<std::vector<int>> free = FreeAssignment(stages);
        if (!free.ok()) return free.status();
        // A cap would hardly balance better.
        if (Loses(*free, shape, schedule, micro_batches)) continue;
        Assignment assignment{*free, ranks, {}};
        if (recompute != Recompute::kNone) assignment.recomputed = AllNodes();
        absl::StatusOr<Contest::Entry> entry = JudgeAssignment(assignment, settings, shape);
        if (!entry.ok()) return entry.status();
        int64_t over = entry->judgement.over_bytes;
        const bool free_fits = offer(*std::move(entry));
        fits |= free_fits;
        // `auto` recomputes everything on a free split only as a last resort.
        if (free_fits && recompute != Recompute::kAuto) continue;
        if (!may_split && recompute != Recompute::kAuto) continue;
        if (Pinned()) continue;
        const std::vector<int> in_flight = InFlight(shape, stages, schedule, micro_batches);
        const double state_factor = StateFactor(shard ? shape.replicas : 1);
        internal::LeastMemory least = internal::ComputeLeastMemory(graph_, state_factor);
        if (recompute != Recompute::kNone) least.saved = 0;
        int64_t cap = memory_;
        for (int tries = 0; tries < kCappedTries && cap > 0; ++tries) {
          if (!internal::MayFit(least, stages, in_flight, cap)) break;
          const absl::StatusOr<Assignment>& split =
              CappedSplit(stages, in_flight, cap, state_factor, recompute);
          if (!split.ok() || Loses(split->stage_of_node, shape, schedule, micro_batches)) break;
          assignment.stage_of_node = split->stage_of_node;
          assignment.recomputed = split->recomputed;
          entry = JudgeAssignment(assignment, settings, shape);
          if (!entry.ok()) return entry.status();
          over = entry->judgement.over_bytes;
          if (offer(*std::move(entry))) {
            fits = true;
            break;
          }
          cap -= over;
        }
      }
      if (fits) return absl::OkStatus();
    }
    if (nearest) contest_.Add(*std::move(nearest));
    return absl::OkStatus();
  }

  // By a bound alone.
  bool Loses(const std::vector<int>& split, const Shape& shape, const std::string& schedule,
             int micro_batches) const {
    return !contest_.empty() &&
           BoundOf(split, shape, schedule, micro_batches) > contest_.best_ms_per_sample();
  }

  std::vector<int> AllNodes() const {
    std::vector<int> all(graph_.nodes.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  absl::StatusOr<Contest::Entry> JudgeAssignment(const Assignment& assignment, const Plan& settings,
                                                 const Shape& shape) {
    Say(absl::StrCat("simulating ", internal::Count(shape.stages, "stage"), " x ", shape.replicas,
                     ", ", settings.schedule, ", ",
                     internal::Count(settings.micro_batches, "micro-batch"), BestSoFar()));
    absl::StatusOr<Plan> plan = AssignPlan(graph_, settings, assignment);
    if (!plan.ok()) return plan.status();
    const int64_t actions =
        int64_t{8} * plan->micro_batches * static_cast<int64_t>(assignment.ranks.size());
    Contest::Entry entry;
    if (actions > kExactActions) {
      entry.judgement = internal::JudgeMemory(*plan, HeldAtFirstBackward(*plan, shape));
    }
    if (entry.judgement.fits()) {
      absl::StatusOr<Judgement> judgement = internal::Judge(
          *std::move(plan), actions > kExactActions ? Precision::kOnePipeline : Precision::kExact);
      if (!judgement.ok()) return judgement.status();
      entry.judgement = *std::move(judgement);
    }
    entry.assignment = assignment;
    entry.graph = &graph_;
    entry.shape = shape;
    if (!assignment.recomputed.empty()) {
      entry.recompute = assignment.recomputed.size() == graph_.nodes.size() ? "all" : "some";
    }
    return entry;
  }

  // Kept, as candidates that differ in micro-batches only often ask for the same.
  const absl::StatusOr<Assignment>& CappedSplit(int stages, const std::vector<int>& in_flight,
                                                int64_t cap, double state_factor,
                                                Recompute recompute) {
    const auto key = std::tuple(stages, in_flight, cap, state_factor, recompute);
    if (const auto it = capped_.find(key); it != capped_.end()) return it->second;
    Say(absl::StrCat("splitting into ", internal::Count(stages, "stage"), " of at most ",
                     internal::HumanBytes(cap), BestSoFar()));
    PartitionOptions split = SplitOptions(stages);
    split.memory_bytes = cap;
    split.state_factor = state_factor;
    split.in_flight = in_flight;
    split.recompute = recompute;
    const absl::StatusOr<Partition> partition = PartitionGraph(graph_, split);
    if (!partition.ok()) return capped_.emplace(key, partition.status()).first->second;
    Assignment assignment{partition->stage_of_node, {}, {}};
    for (const StageConfiguration& stage : partition->stages) {
      assignment.recomputed.insert(assignment.recomputed.end(), stage.recomputed.begin(),
                                   stage.recomputed.end());
    }
    std::sort(assignment.recomputed.begin(), assignment.recomputed.end());
    return capped_.emplace(key, std::move(assignment)).first->second;
  }

  // Weights, gradients and optimizer state, in copies of the trained parameters.
  double StateFactor(int sharers) const {
    if (!options_.training) return 1;
    if (options_.optimizer == "sgd") return 2;
    if (options_.optimizer == "sgd-momentum") return 2 + 1.0 / sharers;
    return 2 + 2.0 / sharers;
  }

  // Micro-batches held at once, from the last stage on.
  static std::vector<int> InFlight(const Shape& shape, int stages, const std::string& schedule,
                                   int micro_batches) {
    const int own = (micro_batches + shape.replicas - 1) / shape.replicas;
    if (schedule == "zb-h1" || schedule == "zb-v") return {std::min(own, shape.stages)};
    if (schedule != "1f1b" && schedule != "interleaved") return {own};
    std::vector<int> in_flight;
    for (int s = 1; s <= stages; ++s) in_flight.push_back(std::min(own, s));
    return in_flight;
  }

  // What every plan of the schedule has saved on a stage when its first backward starts.
  static std::vector<int> HeldAtFirstBackward(const Plan& plan, const Shape& shape) {
    if (plan.schedule == "forward") return {0};
    if (!RunsStageAtOnce(plan.schedule) || shape.replicas == 0) return {1};
    return InFlight(shape, plan.stages.size(), plan.schedule, plan.micro_batches);
  }

  // Stages with unequal replicas, or of unequal devices.
  absl::Status TryUnequal() {
    const bool mixed = types_.size() > 1;
    if (options_.replicas || Pinned() || devices_ < 2 || (!mixed && devices_ < 3)) {
      return absl::OkStatus();
    }
    constexpr int kMostStages = 16;
    constexpr int kMostUnequalDevices = 64;
    if (devices_ > kMostUnequalDevices) return absl::OkStatus();
    const int most = std::min<int>({devices_, kMostStages, static_cast<int>(graph_.nodes.size())});
    const std::vector<DevicePlace> places = PlacesOf(cluster_);
    for (int stages = mixed ? 1 : 2; stages <= most; ++stages) {
      if (options_.stages && *options_.stages != stages) continue;
      if (Stopped() && !contest_.empty()) return absl::OkStatus();
      for (const int micro_batches : micro_batches_) {
        PartitionOptions split = SplitOptions(stages);
        split.in_flight = InFlight({stages, 1}, stages, "1f1b", micro_batches);
        split.state_factor = StateFactor(1);
        split.all_reduce_bytes_per_ms = split.bytes_per_ms;
        if (mixed) {
          for (size_t t = 0; t < types_.size(); ++t) {
            DeviceType type;
            type.count = std::count_if(places.begin(), places.end(), [&](const DevicePlace& place) {
              return place.device_type == static_cast<int>(t);
            });
            const int first = std::find_if(places.begin(), places.end(),
                                           [&](const DevicePlace& place) {
                                             return place.device_type == static_cast<int>(t);
                                           }) -
                              places.begin();
            const std::vector<double> slowness = RankSlowness(cluster_, options_.dtype);
            type.speed = slowness.empty() ? 1 : 1 / slowness[first];
            type.memory_bytes = options_.memory_bytes.value_or(types_[t].memory_bytes);
            split.device_types.push_back(type);
          }
        } else {
          split.num_devices = devices_;
          split.memory_bytes = memory_;
        }
        const absl::StatusOr<Partition> partition = PartitionGraph(graph_, split);
        if (!partition.ok()) continue;
        Assignment assignment{partition->stage_of_node, {}, {}};
        int used = 0;
        std::vector<std::vector<int>> free(types_.size());
        for (int rank = 0; rank < devices_; ++rank) free[places[rank].device_type].push_back(rank);
        std::vector<size_t> next(types_.size());
        bool equal = !mixed;
        for (const StageConfiguration& stage : partition->stages) {
          assignment.ranks.emplace_back();
          for (int r = 0; r < stage.replicas; ++r) {
            assignment.ranks.back().push_back(free[stage.device_type][next[stage.device_type]++]);
          }
          used += stage.replicas;
          equal &= stage.replicas == partition->stages[0].replicas;
        }
        if (used != devices_ || equal) continue;
        for (const std::string& schedule : schedules_) {
          if (HasChunks(schedule)) continue;
          absl::StatusOr<Contest::Entry> entry =
              JudgeAssignment(assignment, Settings(schedule, micro_batches, false), {stages, 0});
          if (!entry.ok()) return entry.status();
          contest_.Add(*std::move(entry));
        }
      }
    }
    return absl::OkStatus();
  }

  // Ways to share the devices out among so many stages, each with at least one.
  static void Compositions(int devices, int stages, std::vector<int>& so_far,
                           std::vector<std::vector<int>>& all) {
    if (stages == 1) {
      so_far.push_back(devices);
      all.push_back(so_far);
      so_far.pop_back();
      return;
    }
    for (int first = 1; first <= devices - stages + 1; ++first) {
      so_far.push_back(first);
      Compositions(devices - first, stages - 1, so_far, all);
      so_far.pop_back();
    }
  }

  // All assignments of nodes to so many stages in which no value flows back and groups stay whole;
  // false if there are more than may be tried.
  bool AllAssignments(int stages, std::vector<std::vector<int>>& all) const {
    const int n = graph_.nodes.size();
    std::vector<std::vector<int>> sources(n);
    for (const CostValue& value : graph_.values) {
      if (value.producer == kModelInput) continue;
      for (const int reader : value.consumers) sources[reader].push_back(value.producer);
    }
    std::vector<int> stage(n);
    bool few = true;
    const auto place = [&](auto&& self, int node) -> void {
      if (!few) return;
      if (node == n) {
        std::vector<bool> used(stages);
        for (const int s : stage) used[s] = true;
        if (std::find(used.begin(), used.end(), false) == used.end()) all.push_back(stage);
        few = all.size() <= kAllAssignments;
        return;
      }
      int low = 0;
      int high = stages - 1;
      for (const int source : sources[node]) low = std::max(low, stage[source]);
      if (graph_.nodes[node].group != kNoGroup) {
        for (int other = 0; other < node; ++other) {
          if (graph_.nodes[other].group == graph_.nodes[node].group) {
            low = std::max(low, stage[other]);
            high = std::min(high, stage[other]);
          }
        }
      }
      for (int s = low; s <= high; ++s) {
        stage[node] = s;
        self(self, node + 1);
      }
    };
    place(place, 0);
    return few;
  }

  // Small instances: every assignment, every share of devices, every schedule.
  absl::Status TryAllAssignments() {
    constexpr int kFewNodes = 12;
    constexpr int kFewDevices = 4;
    if (static_cast<int>(graph_.nodes.size()) > kFewNodes || devices_ > kFewDevices || Pinned()) {
      return absl::OkStatus();
    }
    struct Case {
      std::vector<int> stage_of_node;
      Shape shape;
      std::vector<std::vector<int>> ranks;
      bool chunks = false;
    };
    std::vector<Case> cases;
    for (int stages = 1; stages <= devices_ * kChunks; ++stages) {
      std::vector<std::vector<int>> assignments;
      std::vector<std::vector<int>> shares;
      std::vector<int> so_far;
      if (stages <= devices_) Compositions(devices_, stages, so_far, shares);
      const bool chunked = stages % kChunks == 0 && stages / kChunks > 1 &&
                           devices_ % (stages / kChunks) == 0 &&
                           std::any_of(schedules_.begin(), schedules_.end(), HasChunks);
      if (!AllAssignments(stages, assignments)) return absl::OkStatus();
      if (assignments.size() * (shares.size() + chunked) + cases.size() > kAllAssignments) {
        return absl::OkStatus();
      }
      for (const std::vector<int>& assignment : assignments) {
        for (const std::vector<int>& share : shares) {
          const bool equal = std::count(share.begin(), share.end(), share[0]) == stages;
          if (options_.stages.value_or(stages) != stages) continue;
          if (options_.replicas && (!equal || share[0] != *options_.replicas)) continue;
          Case c{assignment, {stages, equal ? share[0] : 0}, {}, false};
          if (equal) {
            c.ranks = Ranks(c.shape, 1, "1f1b", false);
          } else {
            int rank = 0;
            for (const int d : share) {
              c.ranks.emplace_back();
              for (int r = 0; r < d; ++r) c.ranks.back().push_back(rank++);
            }
          }
          cases.push_back(std::move(c));
        }
        if (!chunked) continue;
        const Shape shape{stages / kChunks, devices_ / (stages / kChunks)};
        if (options_.stages.value_or(shape.stages) != shape.stages) continue;
        if (options_.replicas.value_or(shape.replicas) != shape.replicas) continue;
        cases.push_back({assignment, shape, {}, true});
      }
    }
    for (const Case& c : cases) {
      for (const std::string& schedule : schedules_) {
        if (HasChunks(schedule) != c.chunks) continue;
        for (const int micro_batches : micro_batches_) {
          for (const bool shard : Shardings(c.shape.replicas)) {
            for (const Recompute recompute : Recomputations()) {
              Assignment assignment{c.stage_of_node, c.ranks, {}};
              if (c.chunks) assignment.ranks = Ranks(c.shape, kChunks, schedule, false);
              if (recompute != Recompute::kNone) assignment.recomputed = AllNodes();
              absl::StatusOr<Contest::Entry> entry =
                  JudgeAssignment(assignment, Settings(schedule, micro_batches, shard), c.shape);
              if (!entry.ok()) return entry.status();
              contest_.Add(*std::move(entry));
            }
          }
        }
      }
    }
    all_tried_ = true;
    return absl::OkStatus();
  }

  void Say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }
  std::string BestSoFar() const {
    if (contest_.empty()) return "; nothing fits so far";
    return absl::StrCat("; best so far ", internal::HumanNumber(contest_.best_ms_per_sample()),
                        " ms a sample");
  }

  const CostGraph& graph_;
  const int64_t samples_;
  const Cluster& cluster_;
  const PlannerOptions& options_;
  const bool any_will_do_;
  Contest& contest_;
  int devices_ = 0;
  int64_t memory_ = 0;  // least of a device
  internal::PipelineWork work_;
  bool all_tried_ = false;
  std::vector<DeviceSpec> types_;
  std::vector<int> module_pins_;
  std::vector<Shape> shapes_;
  std::vector<std::string> schedules_;
  std::vector<int> micro_batches_;
  std::map<int, absl::StatusOr<std::vector<int>>> free_;
  std::map<std::tuple<int, std::vector<int>, int64_t, double, Recompute>,
           absl::StatusOr<Assignment>>
      capped_;
};

std::string Misfit(const Contest::Entry& e) {
  const Plan& plan = e.judgement.plan;
  const int64_t peak = plan.stages[e.judgement.worst_stage].peak_memory_bytes;
  return absl::StrCat("stage ", e.judgement.worst_stage, " needs ",
                      e.judgement.precision == Precision::kLeastMemory ? "at least " : "",
                      internal::BytesOf(peak, peak - e.judgement.over_bytes));
}

std::string Describe(const Contest::Entry& e) {
  const Plan& plan = e.judgement.plan;
  return absl::StrCat(
      internal::Count(e.shape.stages, "stage"), " x ",
      e.shape.replicas > 0 ? internal::Count(e.shape.replicas, "replica") : "unequal replicas",
      ", ", plan.schedule, ", ", internal::Count(plan.micro_batches, "micro-batch"));
}

// The smallest change with which a plan is found, of those in this order.
std::string Advice(std::span<const CostGraph> sizes, const Cluster& cluster,
                   const PlannerOptions& options);

PlanAlternative AlternativeOf(const Contest::Entry& e, std::string reason) {
  const Plan& plan = e.judgement.plan;
  return {e.shape.stages,           plan.micro_batches,     e.shape.replicas,
          plan.micro_batch_samples, plan.schedule,          e.recompute,
          plan.shard_optimizer,     plan.predicted_step_ms, std::move(reason)};
}

absl::StatusOr<Plan> Choose(Contest& contest, bool all_tried, const std::vector<Shape>& shapes,
                            const PlannerOptions& options) {
  // Finalists that one pipeline stood for are judged rank by rank.
  contest.Trim();
  std::vector<Contest::Entry>& fits = contest.fits();
  const size_t finalists = std::min<size_t>(kFinalists, fits.size());
  for (size_t i = 0; i < finalists; ++i) {
    Judgement& judgement = fits[i].judgement;
    if (judgement.precision == Precision::kExact) continue;
    const int64_t actions =
        int64_t{8} * judgement.plan.micro_batches * judgement.plan.stages.size();
    if (actions > kMostActions || options.stop.stop_requested()) continue;
    absl::StatusOr<Judgement> exact = internal::Judge(judgement.plan, Precision::kExact);
    if (!exact.ok()) return exact.status();
    judgement = *std::move(exact);
  }
  std::stable_sort(fits.begin(), fits.begin() + finalists, [](const auto& a, const auto& b) {
    if (a.judgement.fits() != b.judgement.fits()) return a.judgement.fits();
    return a.BetterThan(b);
  });
  Plan plan = std::move(fits[0].judgement.plan);
  const CostGraph& graph = *fits[0].graph;
  const double chosen =
      plan.predicted_step_ms / plan.micro_batches / std::max<int64_t>(1, plan.micro_batch_samples);
  for (size_t i = 1; i < fits.size() && plan.alternatives.size() < kMostAlternatives; ++i) {
    plan.alternatives.push_back(AlternativeOf(fits[i], fits[i].ms_per_sample() > chosen * (1 + 1e-9)
                                                           ? "slower"
                                                           : "as fast, more memory"));
  }
  for (const Contest::Entry& e : contest.misses()) {
    if (plan.alternatives.size() == 2 * kMostAlternatives) break;
    plan.alternatives.push_back(AlternativeOf(e, absl::StrCat("does not fit: ", Misfit(e))));
  }
  std::vector<std::pair<int, int>> allowed;
  for (const Shape& shape : shapes) allowed.emplace_back(shape.stages, shape.replicas);
  const internal::StepBound bound = internal::ComputeStepBound(
      graph, plan.cluster, plan.dtype, allowed, plan.micro_batches, options.training);
  plan.bound_ms = bound.ms;
  plan.bound_kind = bound.kind;
  plan.optimal = all_tried || plan.predicted_step_ms <= plan.bound_ms * (1 + 1e-9);
  const absl::StatusOr<StepBreakdown> parts = BreakDown(plan);
  if (!parts.ok()) return parts.status();
  plan.breakdown = *parts;
  return plan;
}

// What a search is for: the best plan, with advice if there is none; or any plan that fits.
enum class Goal { kBest, kAny };

absl::StatusOr<Plan> Search(std::span<const CostGraph> sizes, const Cluster& cluster,
                            const PlannerOptions& options, Goal goal) {
  if (absl::Status s = Validate(cluster); !s.ok()) return s;
  const int devices = cluster.num_devices();
  if (absl::Status s = CheckWishes(devices, options); !s.ok()) return s;
  if (sizes.empty()) return absl::InvalidArgumentError("no costs to plan with");

  std::vector<CostGraph> graphs;  // as they are planned
  for (const CostGraph& size : sizes) {
    absl::StatusOr<CostGraph> graph = internal::WithSameStages(size, options.same_stage);
    if (!graph.ok()) return graph.status();
    graphs.push_back(options.training ? *std::move(graph) : ForwardOnlyGraph(*std::move(graph)));
  }
  Contest contest;
  absl::Status refused;
  bool any = false;
  bool all_tried = true;
  std::vector<Shape> shapes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Planner planner(graphs[i], cluster, options, goal == Goal::kAny, contest);
    const absl::Status status = planner.Run();
    if (!status.ok()) {
      refused = status;  // of this size only
      continue;
    }
    any = true;
    all_tried &= planner.all_tried();
    shapes = planner.shapes();
    if (goal == Goal::kAny && !contest.empty()) break;
  }
  if (!any) return refused;
  if (!contest.empty()) {
    return Choose(contest, all_tried && !options.stop.stop_requested(), shapes, options);
  }
  if (contest.misses().empty()) {
    return absl::CancelledError("stopped before any plan was found");
  }
  const Contest::Entry& nearest = *std::min_element(
      contest.misses().begin(), contest.misses().end(),
      [](const auto& a, const auto& b) { return a.judgement.over_bytes < b.judgement.over_bytes; });
  const int64_t cap =
      nearest.judgement.plan.stages[nearest.judgement.worst_stage].peak_memory_bytes -
      nearest.judgement.over_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      "no plan fits into ", internal::HumanBytes(cap), " a device. Nearest: ", Describe(nearest),
      ": ", Misfit(nearest), ", ", nearest.judgement.over_bytes, " bytes too many. ",
      goal == Goal::kBest ? Advice(sizes, cluster, options) : ""));
}

std::string Advice(std::span<const CostGraph> sizes, const Cluster& cluster,
                   const PlannerOptions& options) {
  const auto fits = [&](const Cluster& devices, const PlannerOptions& wish) -> std::string {
    const absl::StatusOr<Plan> plan = Search(sizes, devices, wish, Goal::kAny);
    if (!plan.ok()) return "";
    return absl::StrCat("fits: ", internal::Count(plan->stages.size(), "stage"), ", ",
                        internal::HumanNumber(plan->predicted_step_ms), " ms a step or less");
  };
  struct Change {
    const char* flag;
    bool (*make)(PlannerOptions&);  // false: is so already
  };
  constexpr Change kChanges[] = {
      {"--shard-optimizer",
       [](PlannerOptions& o) {
         if (!o.training || o.shard_optimizer.value_or(false)) return false;
         o.shard_optimizer = true;
         return true;
       }},
      {"--recompute auto",
       [](PlannerOptions& o) {
         if (!o.training || o.recompute.value_or("none") != "none") return false;
         o.recompute = "auto";
         return true;
       }},
      {"--recompute auto --shard-optimizer",
       [](PlannerOptions& o) {
         if (!o.training || (o.recompute && o.shard_optimizer)) return false;
         o.recompute = "auto";
         o.shard_optimizer = true;
         return true;
       }},
      {"--optimizer sgd",
       [](PlannerOptions& o) {
         if (!o.training || o.optimizer == "sgd") return false;
         o.optimizer = "sgd";
         return true;
       }},
  };
  for (const Change& change : kChanges) {
    PlannerOptions wish = options;
    if (!change.make(wish)) continue;
    if (const std::string found = fits(cluster, wish); !found.empty()) {
      return absl::StrCat("With ", change.flag, " it ", found, ".");
    }
  }
  // More hosts, or devices in the one host, of the same kinds.
  for (int factor = 2; factor <= 64 && cluster.num_devices() * factor <= kMostDevices;
       factor *= 2) {
    Cluster more = cluster;
    for (HostGroup& hosts : more.hosts) {
      if (cluster.num_hosts() > 1) {
        hosts.count *= factor;
      } else {
        for (DeviceGroup& group : hosts.devices) group.count *= factor;
      }
    }
    PlannerOptions wish = options;
    if (wish.stages && wish.replicas) wish.replicas.reset();
    if (const std::string found = fits(more, wish); !found.empty()) {
      return absl::StrCat("With ", more.num_devices(), " such devices it ", found, ".");
    }
  }
  return "Neither recomputation, nor a sharded optimizer, nor up to 64 times the devices would "
         "fit: "
         "try a smaller micro-batch";
}

}  // namespace

absl::StatusOr<Plan> MakePlan(std::span<const CostGraph> sizes, const Cluster& cluster,
                              const PlannerOptions& options) {
  return Search(sizes, cluster, options, Goal::kBest);
}

absl::StatusOr<Plan> MakePlan(const CostGraph& graph, const Cluster& cluster,
                              const PlannerOptions& options) {
  return MakePlan(std::span(&graph, 1), cluster, options);
}

}  // namespace autopart
