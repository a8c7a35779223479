// The search. A candidate is
//
//   assignment of nodes to stages x replicas of each x layout of the ranks on the hosts x schedule
//   x number of micro-batches (of a size) x optimizer sharded or not x what is recomputed
//
// and its judge the simulator (internal/judge.h): first one pipeline for all where there are many,
// then, for the best few, every rank. Best first (branch and bound, Land and Doig 1960): a queue of
// what could still win, by the least time that it can take. What comes up is made more definite and
// goes back with a higher bound:
//
//   place     shape, schedule, micro-batches, ranks      bound by the work (internal/step_bound.h)
//   simulate  + nodes on stages, optimizer, recompute    bound by the order of the computes
//                                                        (internal/order_bound.h), mostly exact
//   capped    what does not fit: to be split again       as the split that did not fit
//             under a cap on memory, which falls by
//             what is found to be too much
//
// The search ends where the best candidate is no worse than the queue's first. Recomputing the
// least that fits is a search of its own: only the most promising of those that would fit with all
// recomputed get it, at the end. Where all placements are few, they are all tried: the answer is
// then proven best of what is searched.
//
// Cost: (divisors of N) partitions, (divisors x layouts x schedules x micro-batch counts) bounds of
// a few ns for each compute of one pipeline, and the simulations that the bounds leave.
#include "pipeline/planner.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "partitioner/partitioner.h"
#include "pipeline/breakdown.h"
#include "pipeline/internal/advice.h"
#include "pipeline/internal/assign.h"
#include "pipeline/internal/contest.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/judge.h"
#include "pipeline/internal/layout.h"
#include "pipeline/internal/memory_bound.h"
#include "pipeline/internal/pinned_slices.h"
#include "pipeline/internal/small_instances.h"
#include "pipeline/internal/splits.h"
#include "pipeline/internal/step_bound.h"
#include "pipeline/internal/unequal.h"
#include "pipeline/internal/wishes.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace internal {
namespace {

// Splits under a cap that one candidate gets.
constexpr int kCappedTries = 6;
// Iterations of the partitioner that look for the least recomputation that fits, of which each
// takes up to a second on a large graph: so many nodes in all of them together, but at least a few.
constexpr int64_t kRecomputeNodes = 3000000;
constexpr int64_t kLeastIterations = 200;
constexpr int64_t kFewNodes = 1000;  // so few are split in no time
// Actions of a schedule beyond which one pipeline stands for all, and beyond which the chosen plan
// is not simulated rank by rank either.
constexpr int64_t kExactActions = 20000;
constexpr int64_t kMostActions = 20000000;
constexpr size_t kMostAlternatives = 200;
constexpr int64_t kOverlapBucketBytes = 25 << 20;

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

// All but what the graph decides.
struct Place {
  Shape shape;
  int chunks = 1;
  std::string schedule;
  int micro_batches = 1;
  Neighbours neighbours = Neighbours::kStages;
  bool recompute_tried = false;

  int num_stages() const { return shape.stages * chunks; }
  int own() const { return (micro_batches + shape.replicas - 1) / shape.replicas; }
};

// What could still win.
struct Candidate {
  enum class Next { kPlace, kSimulate, kCapped };
  Next next = Next::kPlace;
  int place = 0;             // into the planner's places
  double ms_per_sample = 0;  // that it cannot beat
  bool shard_optimizer = false;
  Recompute recompute = Recompute::kNone;
  StageAssignment assignment;
  int64_t cap_bytes = 0;  // of a rank, that its split kept to, or is to keep to
  int tries_left = kCappedTries;
};

// The search for one size of micro-batch.
class Planner {
 public:
  Planner(const CostGraph& graph, const Cluster& cluster, const PlannerOptions& options,
          bool any_will_do, Contest& contest)
      : graph_(graph),
        cluster_(cluster),
        options_(options),
        any_will_do_(any_will_do),
        contest_(contest),
        devices_(cluster.num_devices()),
        types_(DeviceTypes(cluster)),
        work_(WorkOf(graph, options.training)) {
    memory_ = options.memory_bytes.value_or(std::numeric_limits<int64_t>::max());
    if (!options.memory_bytes) {
      for (const DeviceSpec& type : types_) memory_ = std::min(memory_, type.memory_bytes);
    }
  }

  const std::vector<Shape>& shapes() const { return shapes_; }
  bool all_tried() const { return all_tried_; }

  absl::Status Run() {
    if (absl::Status s = ReadWishes(); !s.ok()) return s;
    if (absl::Status s = TryAllPlacements(); !s.ok() || all_tried_) return s;
    AddPlaces();
    while (!queue_.empty() && !Stopped()) {
      Candidate candidate = std::move(queue_.extract(queue_.begin()).mapped());
      if (candidate.ms_per_sample > contest_.best_ms_per_sample()) break;
      if (absl::Status s = Refine(std::move(candidate)); !s.ok()) return s;
    }
    if (!Stopped()) RuleOutTheRest();
    if (absl::Status s = RecomputeLess(); !s.ok()) return s;
    return TryUnequal();
  }

 private:
  absl::Status ReadWishes() {
    if (graph_.nodes.empty()) return absl::InvalidArgumentError("the model has no operators");
    int pinned_stages = 0;
    const std::vector<int>& pinned = options_.pinned_stage_of_node;
    if (!pinned.empty()) {
      if (pinned.size() != graph_.nodes.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "pins for ", pinned.size(), " nodes, the model has ", graph_.nodes.size()));
      }
      pinned_stages = 1 + *std::max_element(pinned.begin(), pinned.end());
    }
    std::vector<int> module_pins;
    if (!options_.pins.empty()) {
      absl::StatusOr<std::vector<int>> pins = PinsOfModules(graph_, options_.pins);
      if (!pins.ok()) return pins.status();
      module_pins = *std::move(pins);
      pinned_stages =
          std::max(pinned_stages, 1 + *std::max_element(module_pins.begin(), module_pins.end()));
    }
    splits_.emplace(graph_, cluster_, options_, std::move(module_pins),
                    [this](const std::string& line) { Say(line); });
    absl::StatusOr<std::vector<Shape>> shapes =
        AllowedShapes(graph_, devices_, options_, pinned_stages);
    if (!shapes.ok()) return shapes.status();
    shapes_ = *std::move(shapes);
    absl::StatusOr<std::vector<std::string>> schedules = AllowedSchedules(options_);
    if (!schedules.ok()) return schedules.status();
    schedules_ = *std::move(schedules);
    absl::StatusOr<std::vector<int>> micro_batches =
        AllowedMicroBatches(graph_.samples, devices_, options_);
    if (!micro_batches.ok()) return micro_batches.status();
    micro_batches_ = *std::move(micro_batches);
    return absl::OkStatus();
  }

  bool Stopped() const {
    return options_.stop.stop_requested() || (any_will_do_ && !contest_.empty());
  }
  bool AllSearched() const { return options_.search == SearchSpace::kAll; }

  // Small instances: every placement, every schedule.
  absl::Status TryAllPlacements() {
    if (splits_->pinned()) return absl::OkStatus();
    const std::vector<PlacedNodes> placements =
        AllPlacements(graph_, devices_, schedules_, options_);
    for (const PlacedNodes& placed : placements) {
      for (const std::string& schedule : schedules_) {
        if (HasChunks(schedule) != (placed.chunks > 1)) continue;
        for (const int micro_batches : micro_batches_) {
          for (const bool shard : Shardings(placed.shape.replicas)) {
            for (const Recompute recompute : Recomputations()) {
              StageAssignment assignment{placed.stage_of_node, placed.ranks, {}};
              if (placed.ranks.empty()) {
                assignment.ranks =
                    RanksOf(placed.shape, placed.chunks, schedule, Neighbours::kStages);
              }
              if (recompute != Recompute::kNone) assignment.recomputed = AllNodes();
              absl::StatusOr<Entry> entry = JudgeAssignment(
                  assignment, Settings(schedule, micro_batches, shard), placed.shape);
              if (!entry.ok()) return entry.status();
              contest_.Add(*std::move(entry));
            }
          }
        }
      }
    }
    all_tried_ = !placements.empty();
    return absl::OkStatus();
  }

  void AddPlaces() {
    for (const Shape& shape : shapes_) {
      for (const int chunks : {1, kChunks}) {
        for (const int micro_batches : micro_batches_) {
          for (const std::string& schedule : schedules_) {
            if (!Suits(schedule, shape, chunks)) continue;
            const bool hosts = cluster_.num_hosts() > 1 && shape.stages > 1 && shape.replicas > 1;
            for (const Neighbours neighbours : {Neighbours::kStages, Neighbours::kReplicas}) {
              if (neighbours == Neighbours::kReplicas && !hosts) continue;
              places_.push_back({shape, chunks, schedule, micro_batches, neighbours});
              Candidate candidate;
              candidate.place = static_cast<int>(places_.size()) - 1;
              candidate.ms_per_sample = BoundOf(places_.back());
              Push(std::move(candidate));
            }
          }
        }
      }
    }
  }

  bool Suits(const std::string& schedule, const Shape& shape, int chunks) const {
    if (chunks > 1 && (shape.stages == 1 || splits_->pinned() ||
                       shape.stages * chunks > static_cast<int>(graph_.nodes.size()))) {
      return false;
    }
    if (HasChunks(schedule) != (chunks > 1)) {
      // Asked for, but one stage a rank is all there is.
      if (!(options_.schedule && chunks == 1 && shape.stages == 1)) return false;
    }
    // All orders of one stage take as long, and 1F1B holds least.
    return shape.stages > 1 || options_.schedule || schedule == schedules_.front() ||
           schedule == "1f1b";
  }

  // Whatever its split.
  double BoundOf(const Place& place) const {
    if (types_.size() > 1) return 0;
    const double step_ms = RunsStageAtOnce(place.schedule)
                               ? AtOncePipelineBoundMs(work_, place.shape.stages, place.own())
                               : PipelineBoundMs(work_, place.shape.stages, place.own());
    return step_ms / place.micro_batches / std::max<int64_t>(1, graph_.samples);
  }

  void Push(Candidate candidate) {
    const std::pair key(candidate.ms_per_sample, order_++);
    queue_.emplace(key, std::move(candidate));
  }

  absl::Status Refine(Candidate candidate) {
    switch (candidate.next) {
      case Candidate::Next::kPlace:
        return Expand(candidate);
      case Candidate::Next::kSimulate:
        return Simulate(std::move(candidate));
      case Candidate::Next::kCapped:
        return SplitUnderCap(std::move(candidate));
    }
    return absl::OkStatus();
  }

  // A place's candidates on the split that the partitioner likes best; recomputation only where
  // nothing else fits.
  absl::Status Expand(const Candidate& candidate) {
    const Place place = places_[candidate.place];
    const absl::StatusOr<std::vector<int>> free = splits_->Free(place.num_stages());
    if (!free.ok()) {
      // Too many stages for what may be divided: only the caller's own wish makes that an error.
      return shapes_.size() == 1 && place.chunks == 1 ? free.status() : absl::OkStatus();
    }
    std::optional<Entry> nearest;
    bool fits = false;
    for (const Recompute recompute : Recomputations()) {
      if (place.recompute_tried && recompute == Recompute::kNone) continue;
      if (recompute != Recompute::kNone) places_[candidate.place].recompute_tried = true;
      for (const bool shard : Shardings(place.shape.replicas)) {
        Candidate next = candidate;
        next.shard_optimizer = shard;
        next.recompute = recompute;
        next.cap_bytes = memory_;
        next.assignment = {*free, Ranks(place), {}};
        if (recompute != Recompute::kNone) next.assignment.recomputed = AllNodes();
        absl::StatusOr<Entry> entry = Weigh(next);
        if (!entry.ok()) return entry.status();
        next.ms_per_sample = std::max(candidate.ms_per_sample, entry->ms_per_sample());
        const bool fits_so = entry->judgement.fits();
        if (recompute == Recompute::kAuto) {
          if (MaySplit(place)) AddToRecompute(next, fits_so);
        } else if (!fits_so && MaySplit(place)) {
          Candidate capped = next;  // with its bound, as a cap would hardly balance better
          capped.next = Candidate::Next::kCapped;
          Push(std::move(capped));
        }
        if (!fits_so) {
          if (!nearest || entry->judgement.over_bytes < nearest->judgement.over_bytes) {
            nearest = *std::move(entry);
          }
          continue;
        }
        fits = true;
        next.next = Candidate::Next::kSimulate;
        if (contest_.empty()) {
          if (absl::Status s = Simulate(std::move(next)); !s.ok()) return s;
        } else {
          Push(std::move(next));
        }
      }
      if (fits) return absl::OkStatus();
    }
    if (nearest) contest_.Add(*std::move(nearest));
    return absl::OkStatus();
  }

  absl::Status Simulate(Candidate candidate) {
    const Place& place = places_[candidate.place];
    Say(absl::StrCat("simulating ", Count(place.shape.stages, "stage"), " x ", place.shape.replicas,
                     ", ", place.schedule, ", ", Count(place.micro_batches, "micro-batch")));
    absl::StatusOr<Entry> entry =
        JudgeAssignment(candidate.assignment, SettingsOf(candidate), place.shape);
    if (!entry.ok()) return entry.status();
    const int64_t over = entry->judgement.over_bytes;
    contest_.Add(*std::move(entry));
    if (over <= 0) return absl::OkStatus();
    // Messages, which only the simulator counts, were too much.
    if (candidate.recompute == Recompute::kNone && !place.recompute_tried &&
        Recomputations().size() > 1) {
      places_[candidate.place].recompute_tried = true;
      Candidate again;
      again.place = candidate.place;
      again.ms_per_sample = BoundOf(place);
      Push(std::move(again));
    }
    if (MaySplit(place)) TryLess(std::move(candidate), over);
    return absl::OkStatus();
  }

  // What was too much, and a quarter, as another split has other messages.
  static int64_t LessBy(int64_t over_bytes) { return over_bytes + over_bytes / 4; }

  // Again under a cap that is lower by what was too much.
  void TryLess(Candidate candidate, int64_t over_bytes) {
    candidate.cap_bytes -= LessBy(over_bytes);
    candidate.next = Candidate::Next::kCapped;
    if (candidate.tries_left > 0 && candidate.cap_bytes > 0) Push(std::move(candidate));
  }

  absl::Status SplitUnderCap(Candidate candidate) {
    --candidate.tries_left;
    if (!SplitAgain(candidate)) return absl::OkStatus();
    const absl::StatusOr<Entry> entry = Weigh(candidate);
    if (!entry.ok()) return entry.status();
    candidate.ms_per_sample = std::max(candidate.ms_per_sample, entry->ms_per_sample());
    if (!entry->judgement.fits()) {
      TryLess(std::move(candidate), entry->judgement.over_bytes);
      return absl::OkStatus();
    }
    candidate.next = Candidate::Next::kSimulate;
    Push(std::move(candidate));
    return absl::OkStatus();
  }

  // A split under the candidate's cap; false if there is none.
  bool SplitAgain(Candidate& candidate) {
    const Place& place = places_[candidate.place];
    const int stages = place.num_stages();
    MemoryCap cap;
    cap.bytes = candidate.cap_bytes / place.chunks;
    cap.state_factor = StateFactor(options_.optimizer, options_.training,
                                   candidate.shard_optimizer ? place.shape.replicas : 1);
    cap.in_flight = InFlightOf(place.shape, stages, place.schedule, place.micro_batches);
    cap.recompute = candidate.recompute;
    LeastBytes least = ComputeLeastMemory(graph_, cap.state_factor);
    if (cap.recompute != Recompute::kNone) least.saved = 0;
    if (!MayFit(least, stages, cap.in_flight, cap.bytes)) return false;
    const absl::StatusOr<StageAssignment>& split = splits_->Capped(stages, cap);
    if (!split.ok()) return false;
    candidate.assignment = {split->stage_of_node, Ranks(place), split->recomputed};
    return true;
  }

  // Those that would fit with all recomputed come first, the fastest of them first.
  void AddToRecompute(Candidate candidate, bool fits) {
    const std::tuple key(!fits, candidate.ms_per_sample, order_++);
    to_recompute_.emplace(key, std::move(candidate));
  }

  // The least recomputation that fits, for the most promising.
  absl::Status RecomputeLess() {
    const int64_t nodes = graph_.nodes.size();
    int64_t most = splits_->iterations() + std::max(kLeastIterations, kRecomputeNodes / nodes);
    if (contest_.empty()) most *= kCappedTries;
    std::set<std::tuple<int, int, std::string>> tried;
    for (auto& [key, candidate] : to_recompute_) {
      const Place& place = places_[candidate.place];
      if (BoundOf(place) > contest_.best_ms_per_sample()) continue;
      // Others of a kind differ less than kinds do.
      const bool is_first = tried.emplace(place.shape.stages, place.chunks, place.schedule).second;
      if (!is_first && nodes > kFewNodes && !contest_.empty()) continue;
      while (candidate.tries_left-- > 0 && candidate.cap_bytes > 0) {
        if (Stopped() || splits_->iterations() > most) return absl::OkStatus();
        if (!SplitAgain(candidate)) break;
        absl::StatusOr<Entry> entry = Weigh(candidate);
        if (!entry.ok()) return entry.status();
        if (entry->judgement.fits()) {
          if (entry->ms_per_sample() > contest_.best_ms_per_sample()) break;
          entry = JudgeAssignment(candidate.assignment, SettingsOf(candidate), place.shape);
          if (!entry.ok()) return entry.status();
        }
        const int64_t over = entry->judgement.over_bytes;
        contest_.Add(*std::move(entry));
        if (over <= 0) break;
        candidate.cap_bytes -= LessBy(over);
      }
    }
    return absl::OkStatus();
  }

  // What is left in the queue cannot win; one of each kind is kept for the report.
  void RuleOutTheRest() {
    std::set<std::tuple<int, int, std::string, int>> seen;
    for (const auto& [key, candidate] : queue_) {
      const Place& place = places_[candidate.place];
      if (!seen.emplace(place.shape.stages, place.chunks, place.schedule, place.micro_batches)
               .second) {
        continue;
      }
      Entry entry;
      entry.shape = place.shape;
      Plan& plan = entry.judgement.plan;
      plan.schedule = place.schedule;
      plan.micro_batches = place.micro_batches;
      plan.micro_batch_samples = graph_.samples;
      plan.predicted_step_ms = candidate.ms_per_sample * place.micro_batches *
                               static_cast<double>(std::max<int64_t>(1, graph_.samples));
      contest_.RuleOut(std::move(entry));
    }
  }

  bool MaySplit(const Place& place) const {
    if (splits_->pinned()) return false;
    const bool has_choice = place.num_stages() > 1 || Recomputations().back() == Recompute::kAuto;
    return has_choice && (place.schedule != "gpipe" || options_.schedule);
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

  std::vector<int> AllNodes() const {
    std::vector<int> all(graph_.nodes.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  static std::vector<std::vector<int>> Ranks(const Place& place) {
    return RanksOf(place.shape, place.chunks, place.schedule, place.neighbours);
  }

  Plan SettingsOf(const Candidate& candidate) const {
    const Place& place = places_[candidate.place];
    return Settings(place.schedule, place.micro_batches, candidate.shard_optimizer);
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
    plan.micro_batch_samples = graph_.samples;
    if (AllSearched() && options_.training) plan.reduce_bucket_bytes = kOverlapBucketBytes;
    return plan;
  }

  static Precision PrecisionFor(const Plan& plan) {
    const int64_t actions =
        int64_t{8} * plan.micro_batches * static_cast<int64_t>(plan.stages.size());
    return actions > kExactActions ? Precision::kOnePipeline : Precision::kExact;
  }

  Entry EntryOf(Judgement judgement, const StageAssignment& assignment, const Shape& shape) const {
    Entry entry;
    entry.judgement = std::move(judgement);
    entry.graph = &graph_;
    entry.shape = shape;
    if (!assignment.recomputed.empty()) {
      entry.recompute = assignment.recomputed.size() == graph_.nodes.size() ? "all" : "some";
    }
    return entry;
  }

  // By bounds.
  absl::StatusOr<Entry> Weigh(const Candidate& candidate) const {
    absl::StatusOr<Plan> plan = AssignPlan(graph_, SettingsOf(candidate), candidate.assignment);
    if (!plan.ok()) return plan.status();
    const Precision precision = PrecisionFor(*plan);
    absl::StatusOr<Judgement> bound = JudgeByOrder(*std::move(plan), precision);
    if (!bound.ok()) return bound.status();
    return EntryOf(*std::move(bound), candidate.assignment, places_[candidate.place].shape);
  }

  // By simulation.
  absl::StatusOr<Entry> JudgeAssignment(const StageAssignment& assignment, const Plan& settings,
                                        const Shape& shape) const {
    absl::StatusOr<Plan> plan = AssignPlan(graph_, settings, assignment);
    if (!plan.ok()) return plan.status();
    const Precision precision = PrecisionFor(*plan);
    absl::StatusOr<Judgement> judgement = Judge(*std::move(plan), precision);
    if (!judgement.ok()) return judgement.status();
    return EntryOf(*std::move(judgement), assignment, shape);
  }

  // Stages with unequal replicas, or of unequal devices.
  absl::Status TryUnequal() {
    constexpr int kMostStages = 16;
    constexpr int kMostUnequalDevices = 64;
    const bool mixed = types_.size() > 1;
    if (options_.replicas || splits_->pinned() || devices_ < (mixed ? 2 : 3) ||
        devices_ > kMostUnequalDevices) {
      return absl::OkStatus();
    }
    const int most = std::min<int>({devices_, kMostStages, static_cast<int>(graph_.nodes.size())});
    for (int stages = mixed ? 1 : 2; stages <= most; ++stages) {
      if (options_.stages && *options_.stages != stages) continue;
      for (const int micro_batches : micro_batches_) {
        if (Stopped()) return absl::OkStatus();
        PartitionOptions split = splits_->Options(stages);
        split.in_flight = InFlightOf({stages, 1}, stages, "1f1b", micro_batches);
        split.state_factor = StateFactor(options_.optimizer, options_.training, 1);
        split.all_reduce_bytes_per_ms = split.bytes_per_ms;
        if (!mixed) split.memory_bytes = memory_;
        const std::optional<StageAssignment> assignment = UnequalAssignment(
            graph_, cluster_, options_.dtype, options_.memory_bytes, std::move(split));
        if (!assignment) continue;
        for (const std::string& schedule : schedules_) {
          if (HasChunks(schedule)) continue;
          absl::StatusOr<Entry> entry =
              JudgeAssignment(*assignment, Settings(schedule, micro_batches, false), {stages, 0});
          if (!entry.ok()) return entry.status();
          contest_.Add(*std::move(entry));
        }
      }
    }
    return absl::OkStatus();
  }

  void Say(const std::string& line) const {
    if (!options_.progress) return;
    options_.progress(absl::StrCat(
        line, contest_.empty()
                  ? "; nothing fits so far"
                  : absl::StrCat("; best so far ", HumanNumber(contest_.best_ms_per_sample()),
                                 " ms a sample")));
  }

  const CostGraph& graph_;
  const Cluster& cluster_;
  const PlannerOptions& options_;
  const bool any_will_do_;
  Contest& contest_;
  const int devices_;
  const std::vector<DeviceSpec> types_;
  const PipelineWork work_;
  int64_t memory_ = 0;  // least of a device
  bool all_tried_ = false;
  std::optional<Splits> splits_;
  std::vector<Shape> shapes_;
  std::vector<std::string> schedules_;
  std::vector<int> micro_batches_;
  std::vector<Place> places_;
  std::map<std::pair<double, int64_t>, Candidate> queue_;  // by bound, then by age
  std::map<std::tuple<bool, double, int64_t>, Candidate> to_recompute_;
  int64_t order_ = 0;
};

std::string Misfit(const Entry& e) {
  const Plan& plan = e.judgement.plan;
  const int64_t peak = plan.stages[e.judgement.worst_stage].peak_memory_bytes;
  return absl::StrCat("stage ", e.judgement.worst_stage, " needs ",
                      e.judgement.precision == Precision::kBound ? "at least " : "",
                      BytesOf(peak, peak - e.judgement.over_bytes));
}

std::string Describe(const Entry& e) {
  const Plan& plan = e.judgement.plan;
  return absl::StrCat(
      Count(e.shape.stages, "stage"), " x ",
      e.shape.replicas > 0 ? Count(e.shape.replicas, "replica") : "unequal replicas", ", ",
      plan.schedule, ", ", Count(plan.micro_batches, "micro-batch"));
}

PlanAlternative AlternativeOf(const Entry& e, std::string reason) {
  const Plan& plan = e.judgement.plan;
  return {e.shape.stages,           plan.micro_batches,     e.shape.replicas,
          plan.micro_batch_samples, plan.schedule,          e.recompute,
          plan.shard_optimizer,     plan.predicted_step_ms, std::move(reason)};
}

absl::StatusOr<Plan> Choose(Contest& contest, bool all_tried, const std::vector<Shape>& shapes,
                            const PlannerOptions& options) {
  // Finalists that one pipeline stood for are judged rank by rank.
  contest.Trim();
  std::vector<Entry>& fits = contest.fits();
  const size_t finalists = std::min<size_t>(kFinalists, fits.size());
  for (size_t i = 0; i < finalists; ++i) {
    Judgement& judgement = fits[i].judgement;
    if (judgement.precision == Precision::kExact) continue;
    const int64_t actions =
        int64_t{8} * judgement.plan.micro_batches * judgement.plan.stages.size();
    if (actions > kMostActions || options.stop.stop_requested()) continue;
    absl::StatusOr<Judgement> exact = Judge(judgement.plan, Precision::kExact);
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
  for (const Entry& e : contest.ruled_out()) {
    if (plan.alternatives.size() == 2 * kMostAlternatives) break;
    plan.alternatives.push_back(AlternativeOf(e, "ruled out: at best as slow as this"));
  }
  for (const Entry& e : contest.misses()) {
    if (plan.alternatives.size() == 3 * kMostAlternatives) break;
    plan.alternatives.push_back(AlternativeOf(e, absl::StrCat("does not fit: ", Misfit(e))));
  }
  std::vector<std::pair<int, int>> allowed;
  for (const Shape& shape : shapes) allowed.emplace_back(shape.stages, shape.replicas);
  const StepBound bound = ComputeStepBound(graph, plan.cluster, plan.dtype, allowed,
                                           plan.micro_batches, options.training);
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

std::string AdviceFor(std::span<const CostGraph> sizes, const Cluster& cluster,
                      const PlannerOptions& options);

absl::StatusOr<Plan> Search(std::span<const CostGraph> sizes, const Cluster& cluster,
                            const PlannerOptions& options, Goal goal) {
  if (absl::Status s = Validate(cluster); !s.ok()) return s;
  const int devices = cluster.num_devices();
  if (absl::Status s = CheckWishes(devices, options); !s.ok()) return s;
  if (sizes.empty()) return absl::InvalidArgumentError("no costs to plan with");

  std::vector<CostGraph> graphs;  // as they are planned
  for (const CostGraph& size : sizes) {
    absl::StatusOr<CostGraph> graph = WithSameStages(size, options.same_stage);
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
  const Entry& nearest = *std::min_element(
      contest.misses().begin(), contest.misses().end(),
      [](const auto& a, const auto& b) { return a.judgement.over_bytes < b.judgement.over_bytes; });
  const int64_t cap =
      nearest.judgement.plan.stages[nearest.judgement.worst_stage].peak_memory_bytes -
      nearest.judgement.over_bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("no plan fits into ", HumanBytes(cap), " a device. Nearest: ", Describe(nearest),
                   ": ", Misfit(nearest), ", ", nearest.judgement.over_bytes, " bytes too many. ",
                   goal == Goal::kBest ? AdviceFor(sizes, cluster, options) : ""));
}

std::string AdviceFor(std::span<const CostGraph> sizes, const Cluster& cluster,
                      const PlannerOptions& options) {
  return Advice(
      cluster, options,
      [&](const Cluster& devices, const PlannerOptions& wish) -> std::optional<std::string> {
        const absl::StatusOr<Plan> plan = Search(sizes, devices, wish, Goal::kAny);
        if (!plan.ok()) return std::nullopt;
        return absl::StrCat("fits: ", Count(plan->stages.size(), "stage"), ", ",
                            HumanNumber(plan->predicted_step_ms), " ms a step or less");
      });
}

}  // namespace
}  // namespace internal

absl::StatusOr<Plan> MakePlan(std::span<const CostGraph> sizes, const Cluster& cluster,
                              const PlannerOptions& options) {
  return internal::Search(sizes, cluster, options, internal::Goal::kBest);
}

absl::StatusOr<Plan> MakePlan(const CostGraph& graph, const Cluster& cluster,
                              const PlannerOptions& options) {
  return MakePlan(std::span(&graph, 1), cluster, options);
}

}  // namespace autopart
