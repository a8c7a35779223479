#include "partitioner/internal/search.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "partitioner/internal/coarsen.h"
#include "partitioner/internal/deadline.h"
#include "partitioner/internal/metis.h"
#include "partitioner/internal/order.h"
#include "partitioner/internal/parallel.h"
#include "partitioner/internal/random.h"
#include "partitioner/internal/slice.h"
#include "partitioner/internal/stage_choice.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// On the public graphs the last improvements come at 20 to 40 rounds.
constexpr int kIterations = 48;
constexpr int kIslands = 2;
constexpr int kEpoch = 4;  // rounds of an island between barriers
// Rounds without progress before an island walks on from elsewhere. Walks on NASNet make their last
// steps within 15 rounds of the step before.
constexpr int kStaleRounds = 16;
constexpr int kNear = 4;         // stages around the heaviest
constexpr double kShake = 1.06;  // how much heavier a shaken partition may be, at first
// Below this a few rounds take less than starting a thread does.
constexpr size_t kWorthAThread = 200;

// Parts in the order in which the model runs: ranked by their nodes' mean position.
std::vector<int> RankParts(const std::vector<int>& part, int num_parts, const Order& order) {
  std::vector<double> sum(num_parts), count(num_parts);
  for (size_t p = 0; p < order.size(); ++p) {
    sum[part[order[p]]] += static_cast<double>(p);
    count[part[order[p]]] += 1;
  }
  std::vector<int> parts(num_parts);
  std::iota(parts.begin(), parts.end(), 0);
  std::stable_sort(parts.begin(), parts.end(), [&](int a, int b) {
    return sum[a] * std::max(count[b], 1.0) < sum[b] * std::max(count[a], 1.0);
  });
  std::vector<int> rank_of_part(num_parts);
  for (int r = 0; r < num_parts; ++r) rank_of_part[parts[r]] = r;
  std::vector<int> rank;
  for (const int p : part) rank.push_back(rank_of_part[p]);
  return rank;
}

uint64_t Fingerprint(const Order& order) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const int node : order) hash = (hash ^ static_cast<uint64_t>(node)) * 0x100000001b3;
  return hash;
}

// Places where an order may be cut. Small problems at every place. For large ones enough that a
// stage's load is met within a few per cent; the answer is sliced once more at more of them.
int UsualBlocks(const Problem& problem) {
  const int num_nodes = static_cast<int>(problem.nodes.size());
  return num_nodes <= 600 ? num_nodes : std::max(256, 32 * problem.num_stages);
}
// Without a bound on the load a slice looks at every stretch of the order, for every stage:
// blocks^2 x stages steps. At fewer places, then, where that is a lot.
int UnboundedBlocks(const Problem& problem) {
  constexpr double kMostSteps = 2e8;
  const int places = std::sqrt(kMostSteps / std::max(1, problem.num_stages));
  return std::max(places, 2 * problem.num_stages);
}
int MostBlocks(const Problem& problem) { return std::max(UsualBlocks(problem), 4000); }

// Orders to start from that share a guide: parts of METIS, or none.
struct Start {
  int metis_factor = 0;  // parts for each stage; 0: no guide
  std::vector<ReadyRule> rules;
};

// Walks through the space of orders. Each goes down to a partition that no order tried makes
// better, and then another begins: from the best with a stretch of its stages in disorder, or from
// a fresh order (iterated local search; Lourenco, Martin, Stuetzle 2003).
class Island {
 public:
  Island(const Problem& problem, const SearchOptions& options, const Deadline& deadline, int index)
      : problem_(problem),
        bound_ms_(options.bound_ms),
        deadline_(deadline),
        random_(options.effort.seed * kIslands + static_cast<uint64_t>(index)),
        max_blocks_(UsualBlocks(problem)) {}

  const std::optional<Slicing>& best() const { return best_; }
  const std::optional<Slicing>& nearest() const { return nearest_; }
  const Order& best_order() const { return best_order_; }
  // At the bound, or out of time with something to show.
  bool IsDone() const {
    if (best_ && best_->max_load_ms <= bound_ms_ * (1 + 1e-9)) return true;
    return (best_ || nearest_) && deadline_.IsOver();
  }

  void AllowMoreBlocks() {
    max_blocks_ = MostBlocks(problem_);
    tried_.clear();
  }

  void TryStart(const Start& start) {
    if (IsDone()) return;
    OrderOptions options;
    if (start.metis_factor > 0) {
      const Order plain = MakeOrder(problem_, {ReadyRule::kDepthFirst}, random_);
      const int num_parts = start.metis_factor * std::max(1, problem_.num_stages);
      if (num_parts < 2 || num_parts >= static_cast<int>(plain.size())) return;
      options.rank = RankParts(MetisParts(problem_, num_parts), num_parts, plain);
    }
    for (const ReadyRule rule : start.rules) {
      for (const bool from_sinks : {false, true}) {
        options.rule = rule;
        options.from_sinks = from_sinks;
        if (!IsDone()) Try(MakeOrder(problem_, options, random_));
      }
    }
  }

  void RunRounds(int64_t rounds) {
    for (int64_t r = 0; r < rounds && !IsDone(); ++r) {
      if (best_ && stale_rounds_ >= kStaleRounds) BeginWalk();
      ++stale_rounds_;
      Try(Reorder(round_++), SliceGoal::kEvenLoads);
    }
  }

  // At a barrier.
  void Learn(const Island& other) {
    tried_.insert(other.tried_.begin(), other.tried_.end());
    const auto is_better = [](const std::optional<Slicing>& a, const std::optional<Slicing>& b,
                              double Slicing::*key) { return a && (!b || *a.*key < *b.*key); };
    if (is_better(other.best_, best_, &Slicing::max_load_ms)) {
      best_ = other.best_;
      best_order_ = other.best_order_;
      if (num_walks_ == 0) {  // the first walk is taken together
        walk_ = best_;
        stale_rounds_ = 0;
      }
    }
    if (is_better(other.nearest_, nearest_, &Slicing::value)) nearest_ = other.nearest_;
  }

 private:
  // Around the best partition: its stages one after another, so that the old cut is one of the
  // slicings, and inside them another order; every other time a run of stages as if it were one.
  Order Reorder(int64_t round) {
    OrderOptions options;
    constexpr ReadyRule kRules[] = {ReadyRule::kLeastCommunication, ReadyRule::kDepthFirst,
                                    ReadyRule::kBreadthFirst, ReadyRule::kRandom};
    options.rule = kRules[random_.Below(4)];
    options.from_sinks = random_.Below(2) == 1;
    options.noise = random_.Uniform();
    const std::optional<Slicing>& around = walk_ ? walk_ : nearest_;
    if (!around || round % 8 == 7) {
      return MakeOrder(problem_, options, random_);  // far from it, once in a while
    }
    options.rank = around->assignment.stage_of_node;
    if (round % 2 == 1) MergeSomeStages(options.rank, around->heaviest_stage);
    return MakeOrder(problem_, options, random_);
  }

  // A stretch of stages becomes one; every other time it is a short one with the heaviest in it.
  void MergeSomeStages(std::vector<int>& rank, int heaviest) {
    const int num_places = problem_.num_stages + problem_.num_cpus;
    int first = random_.Below(num_places);
    int last = first + random_.Below(num_places - first);
    if (random_.Below(2) == 1) {
      first = std::max(0, heaviest - random_.Below(kNear));
      last = std::min(num_places - 1, heaviest + random_.Below(kNear));
    }
    for (int& r : rank) {
      if (r > first && r <= last) r = first;
    }
  }

  void BeginWalk() {
    stale_rounds_ = 0;
    tried_.clear();
    OrderOptions options;
    options.rule = ReadyRule::kRandom;
    options.noise = 1;
    const bool is_fresh = num_walks_++ % 4 == 3;
    if (is_fresh) {
      options.rule = ReadyRule::kDepthFirst;
      walk_.reset();
      return Try(MakeOrder(problem_, options, random_));
    }
    options.rank = best_->assignment.stage_of_node;
    MergeSomeStages(options.rank, best_->heaviest_stage);
    walk_ = best_;
    auto shaken = Slice(problem_, MakeOrder(problem_, options, random_),
                        {SliceGoal::kEvenLoads, kShake * best_->max_load_ms, max_blocks_});
    if (shaken) walk_ = std::move(shaken);
  }

  void Try(const Order& order, SliceGoal goal = SliceGoal::kBottleneck) {
    // Graphs that are nearly chains have few orders: most rounds come upon one that was tried.
    if (!tried_.insert(Fingerprint(order)).second) return;
    std::optional<Slicing> slicing;
    if (walk_) {
      slicing = Slice(problem_, order, {goal, walk_->max_load_ms, max_blocks_});
    } else {
      // A tight bound makes slicing fast; most orders keep to one of the first.
      for (const double slack : {1.05, 1.2, 1.6, 3.0, kInfinity}) {
        const int blocks =
            slack < kInfinity ? max_blocks_ : std::min(max_blocks_, UnboundedBlocks(problem_));
        slicing = Slice(problem_, order, {SliceGoal::kBottleneck, bound_ms_ * slack, blocks});
        if (slicing) break;
      }
    }
    if (slicing) {
      Step(*std::move(slicing), order);
    } else if (!best_ && CountsBytes(problem_)) {
      slicing =
          Slice(problem_, order,
                {SliceGoal::kMemory, kInfinity, std::min(max_blocks_, UnboundedBlocks(problem_))});
      if (slicing && (!nearest_ || slicing->value <= nearest_->value)) nearest_ = slicing;
    }
  }

  void Step(Slicing to, const Order& order) {
    if (!walk_ || to.max_load_ms < walk_->max_load_ms) stale_rounds_ = 0;
    walk_ = std::move(to);
    if (best_ && walk_->max_load_ms > best_->max_load_ms) return;
    best_ = walk_;
    best_order_ = order;
  }

  const Problem& problem_;
  const double bound_ms_;
  const Deadline& deadline_;
  Random random_;
  int max_blocks_;
  int64_t round_ = 0;
  int64_t num_walks_ = 0;                // after the first
  int stale_rounds_ = 0;                 // of this walk
  absl::flat_hash_set<uint64_t> tried_;  // hashes of orders
  std::optional<Slicing> walk_;          // where the walk is
  std::optional<Slicing> best_;          // of all walks, by load
  Order best_order_;
  std::optional<Slicing> nearest_;  // by memory, while there is no best
};

class Archipelago {
 public:
  Archipelago(const Problem& problem, const SearchOptions& options, const Deadline& deadline)
      : problem_(problem), options_(options), deadline_(deadline) {
    for (int i = 0; i < kIslands; ++i) islands_.emplace_back(problem, options, deadline, i);
  }

  SearchResult Run() {
    TryStarts();
    const int64_t rounds = Rounds();
    for (int64_t done = 0; done < rounds && !islands_[0].IsDone(); done += kIslands * kEpoch) {
      const int64_t left = (rounds - done - 1) / kIslands + 1;  // for each island
      Epoch([&](Island& island, int) { island.RunRounds(std::min<int64_t>(kEpoch, left)); });
    }
    if (!islands_[0].best() && static_cast<int>(problem_.nodes.size()) > UsualBlocks(problem_)) {
      // Perhaps only the places left out make it fit.
      for (Island& island : islands_) island.AllowMoreBlocks();
      TryStarts();
    }
    SearchResult result;
    if (islands_[0].best()) {
      const Slicing best = Finish();
      result.best = best.assignment;
      result.value_ms = best.max_load_ms;
    } else if (islands_[0].nearest()) {
      result.nearest = islands_[0].nearest()->assignment;
      result.nearest_bytes = islands_[0].nearest()->value;
    }
    result.time_limit_hit = deadline_.IsOver();
    return result;
  }

 private:
  // All islands at once, and then each knows the best.
  void Epoch(const std::function<void(Island&, int)>& work) {
    const bool is_small = problem_.nodes.size() < kWorthAThread;
    const int threads = is_small ? 1 : options_.effort.threads;
    RunInParallel(kIslands, threads, [&](int i) { work(islands_[i], i); });
    for (int i = 1; i < kIslands; ++i) islands_[0].Learn(islands_[i]);
    for (int i = 1; i < kIslands; ++i) islands_[i].Learn(islands_[0]);
  }

  void TryStarts() {
    // The first gives the bound that makes the others fast.
    Epoch([](Island& island, int i) {
      if (i == 0) island.TryStart({0, {ReadyRule::kDepthFirst}});
    });
    std::vector<Start> starts = {{0, {ReadyRule::kLeastCommunication, ReadyRule::kBreadthFirst}}};
    for (const int factor : {2, 1, 4}) {
      // A bisection is linear, but not cheap.
      if (problem_.nodes.size() > 500 && factor != 1) continue;
      starts.push_back({factor, {ReadyRule::kDepthFirst, ReadyRule::kLeastCommunication}});
    }
    Epoch([&](Island& island, int i) {
      for (size_t s = i; s < starts.size(); s += kIslands) island.TryStart(starts[s]);
    });
  }

  // Small problems are cheap, and have few near-optimal orders to find: they get more rounds. Large
  // ones get fewer.
  int64_t Rounds() const {
    if (deadline_.has_limit() && !options_.effort.iterations) {
      return std::numeric_limits<int64_t>::max();
    }
    const int64_t num_nodes = static_cast<int64_t>(problem_.nodes.size());
    const int64_t iterations = options_.effort.iterations.value_or(kIterations);
    if (num_nodes > 2000) return (iterations * 2000 + num_nodes - 1) / num_nodes;
    return iterations * std::clamp<int64_t>(400 / num_nodes, 1, 16);
  }

  // The best order once more, at every place; of the partitions as fast, the one that sends least.
  Slicing Finish() const {
    Slicing best = *islands_[0].best();
    const Order& order = islands_[0].best_order();
    for (const SliceGoal goal : {SliceGoal::kBottleneck, SliceGoal::kCommunication}) {
      if (goal == SliceGoal::kBottleneck &&
          static_cast<int>(order.size()) <= UsualBlocks(problem_)) {
        continue;
      }
      auto slicing = Slice(problem_, order, {goal, best.max_load_ms, MostBlocks(problem_)});
      if (slicing) best = *std::move(slicing);
    }
    return best;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  const Deadline& deadline_;
  std::deque<Island> islands_;
};

// From here on a search at full size takes seconds a round. Groups: enough that a stage, with 60 of
// them, is met within a per cent or two.
constexpr int kLarge = 20'000;
int CoarseNodes(const Problem& problem) { return std::max(4000, 60 * problem.num_stages); }

// Search the groups, then cut once more between nodes: their stages one after another, so that the
// coarse cut is one of the slicings.
std::optional<SearchResult> SearchCoarse(const Problem& problem, const SearchOptions& options,
                                         const Deadline& deadline) {
  const double before_s = deadline.left_s();
  const Coarsening coarse = Coarsen(problem, CoarseNodes(problem));
  // The last slice, at full size, takes about as long as the grouping did.
  SearchOptions coarse_options = options;
  if (deadline.has_limit()) {
    const double took_s = before_s - deadline.left_s();
    coarse_options.effort.time_limit_s = std::max(0.0, deadline.left_s() - took_s);
  }
  const Deadline coarse_deadline(coarse_options.effort);
  SearchResult result = Archipelago(coarse.problem, coarse_options, coarse_deadline).Run();
  if (!result.best) return std::nullopt;  // perhaps the groups are too large for the memory
  std::vector<int> stage_of_node;
  stage_of_node.reserve(problem.nodes.size());
  for (const int group : coarse.group_of_node) {
    stage_of_node.push_back(result.best->stage_of_node[group]);
  }
  result.best->stage_of_node = std::move(stage_of_node);
  if (deadline.IsOver()) return result;
  OrderOptions by_stage;
  by_stage.rank = result.best->stage_of_node;
  Random unused(0);
  const auto slicing = Slice(problem, MakeOrder(problem, by_stage, unused),
                             {SliceGoal::kBottleneck, result.value_ms, MostBlocks(problem)});
  if (slicing && slicing->max_load_ms < result.value_ms) {
    result.best = slicing->assignment;
    result.value_ms = slicing->max_load_ms;
  }
  return result;
}

}  // namespace

SearchResult Search(const Problem& problem, const SearchOptions& options) {
  const Deadline deadline(options.effort);
  const int num_nodes = static_cast<int>(problem.nodes.size());
  if (num_nodes > std::max(kLarge, 2 * CoarseNodes(problem))) {
    if (auto result = SearchCoarse(problem, options, deadline)) return *std::move(result);
  }
  return Archipelago(problem, options, deadline).Run();
}

}  // namespace autopart::internal
