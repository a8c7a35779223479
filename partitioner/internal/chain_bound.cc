#include "partitioner/internal/chain_bound.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "partitioner/internal/stage_payment.h"
#include "partitioner/internal/stretch.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of the value: a smaller step is not worth its time.
constexpr double kLeastGain = 0.0005;

// Of the tables of pairs and of levels.
constexpr int kMostBuckets = 4096;

class Refuter {
 public:
  // stretches: null where the whole problem is one stretch. is_last: no finer buckets will follow.
  Refuter(const Problem& problem, const ChainBoundOptions& options, int buckets_per_stage,
          const Stretches* stretches, bool is_last)
      : problem_(problem),
        options_(options),
        stretches_(stretches),
        num_passes_(is_last ? kNumPasses : kNumPasses - 1) {
    num_levels_ = (problem.num_stages + 1) * (problem.num_cpus + 1);
    for (const Node& node : problem.nodes) {
      work_ms_ += node.work_ms;
      if (node.work_ms > 0) {
        cpu_speed_ = std::max(cpu_speed_, node.cpu_ms > 0 ? node.work_ms / node.cpu_ms : kInfinity);
      }
    }
    MakeBuckets(buckets_per_stage);
  }

  int64_t steps() const { return steps_; }

  // Raises a bound.
  double Run(double known) {
    double unrefuted = options_.value_ms;
    double bound = Sharpen(known, unrefuted);
    const double least_gain = kLeastGain * unrefuted;
    double step = std::max(0.01 * bound, 0.25 * (unrefuted - bound));
    while (unrefuted - bound > least_gain) {
      const double target = std::min(bound + std::max(step, least_gain),
                                     unrefuted == options_.value_ms && bound + step >= unrefuted
                                         ? unrefuted - 1e-9 * unrefuted
                                         : 0.5 * (bound + unrefuted));
      switch (Refute(target)) {
        case Verdict::kRefuted:
          bound = target;
          step *= 2;
          break;
        case Verdict::kStands:
          unrefuted = target;
          step = 0.5 * (unrefuted - bound);
          break;
        case Verdict::kStopped:
          return Sharpen(bound, unrefuted);
      }
    }
    return Sharpen(bound, unrefuted);
  }

 private:
  enum class Verdict { kRefuted, kStands, kStopped };
  // A pair of buckets is searched in passes, each dearer than all before: each end alone, then
  // both together. Most pairs need the first few branchings only.
  struct Pass {
    bool both;
    int max_branchings;
  };
  static constexpr Pass kPasses[] = {{false, 6}, {false, 40}, {true, 30}, {true, 120}};
  static constexpr int kNumPasses = 4, kEndsPasses = 2;

  struct Bucket {
    double low_ms, high_ms;  // of the work of its boundaries
    bool empty = false;
  };

  // Buckets [first, first + boxes.size()) as boxes of a stretch of the problem.
  struct Segment {
    Stretch stretch;
    std::unique_ptr<DownsetCut> cut;
    int first = 0;
    std::vector<Box> boxes;
    const Box& BoxOf(int bucket) const { return boxes[bucket - first]; }
    int end() const { return first + static_cast<int>(boxes.size()); }
  };

  // What is known of a stage from one bucket to another, for each sum of payments.
  struct Pair {
    double front_ms = 0, back_ms = 0, both_ms = 0;
    int passes = 0;  // done
    double ms() const { return std::max(both_ms, front_ms + back_ms); }
  };

  struct From {
    int bucket = -1;
    int level = -1;
    bool on_cpu = false;
  };

  int LevelOf(int accelerators, int cpus) const {
    return accelerators * (problem_.num_cpus + 1) + cpus;
  }

  // Bucket 0 is before the first stage, the last one behind the last stage.
  void MakeBuckets(int buckets_per_stage) {
    const int stages = problem_.num_stages + problem_.num_cpus;
    const int count = std::clamp(buckets_per_stage * stages, 1, kMostBuckets);
    const double width = work_ms_ / count;
    buckets_.push_back({0, 0});
    for (int b = 0; b < count; ++b) buckets_.push_back({b * width, (b + 1) * width});
    buckets_.push_back({work_ms_, work_ms_});
    num_buckets_ = static_cast<int>(buckets_.size());
    max_length_ = std::min(num_buckets_ - 1, static_cast<int>(options_.value_ms / width) + 3);
    span_ = stretches_ ? max_length_ : num_buckets_;
    for (int first = 0; first < num_buckets_ && !options_.stop(); first += span_) AddSegment(first);
    pairs_.assign(segments_.empty() ? 1 : segments_[0].stretch.payments.size(),
                  std::vector<Pair>(static_cast<size_t>(num_buckets_) * (max_length_ + 1)));
  }

  // For stages that begin in one of span_ buckets.
  void AddSegment(int first) {
    Segment& segment = segments_.emplace_back();
    segment.first = first;
    const int end = std::min(num_buckets_, first + span_ + max_length_);
    segment.stretch = stretches_
                          ? stretches_->Between(buckets_[first].low_ms, buckets_[end - 1].high_ms)
                          : WholeStretch(problem_);
    const Stretch& stretch = segment.stretch;
    const DownsetSpace& space = *stretch.space;
    segment.cut = std::make_unique<DownsetCut>(space);
    for (int b = first; b < end; ++b) {
      Bucket& bucket = buckets_[b];
      Box& box = segment.boxes.emplace_back();
      const bool any = stretch.BoxOf(bucket.low_ms, bucket.high_ms, box);
      if (b == 0 || b + 1 == num_buckets_) {
        NodeSet& all = b == 0 ? box.out : box.in;
        for (int v = 0; v < space.num_nodes(); ++v) all.Add(v);
        (b == 0 ? box.in : box.out) = NodeSet(space.num_nodes());
        continue;
      }
      bucket.empty = bucket.empty || !any;
      if (bucket.empty || b >= first + span_) continue;
      // Where little is open, what work its boundaries can have is known better.
      const double in_ms = stretch.before_ms + space.WorkOf(box.in);
      const double open_ms = space.WorkOf(space.OpenOf(box));
      bucket.low_ms = std::max(bucket.low_ms, in_ms - Slack() / 16);
      bucket.high_ms = std::min(bucket.high_ms, in_ms + open_ms + Slack() / 16);
    }
  }

  Pair& PairOf(int sum, int from, int to) {
    return pairs_[sum][static_cast<size_t>(from) * (max_length_ + 1) + (to - from)];
  }

  // The most work that devices cover within the target and end in `to`; negative if they cannot.
  double Reach(int from, double covered_ms, int to, double target) {
    const Bucket& bucket = buckets_[to];
    double reach = covered_ms + target;
    if (problem_.objective == Objective::kSum) {
      reach -= PairOf(0, from, to).ms();
    } else if (PairOf(0, from, to).ms() > target || PairOf(1, from, to).ms() > target) {
      return -1;
    }
    reach = std::min(reach, bucket.high_ms);
    return reach >= bucket.low_ms - Slack() ? reach : -1;
  }
  double ReachOnCpu(double covered_ms, int to, double target) const {
    const double reach = std::min(covered_ms + target * cpu_speed_, buckets_[to].high_ms);
    return reach >= buckets_[to].low_ms - Slack() ? reach : -1;
  }
  double Slack() const { return 1e-9 * work_ms_; }

  // covered_[level][bucket]: the most work of a boundary there, -1 if none is possible.
  // needed_[level][bucket]: the least from which the devices left cover the rest.
  bool Cover(double target) {
    covered_.assign(num_levels_, std::vector<double>(num_buckets_, -1));
    from_.assign(num_levels_, std::vector<From>(num_buckets_));
    covered_[0][0] = 0;
    const auto offer = [&](int level, int bucket, double reach, From from) {
      if (reach > covered_[level][bucket]) {
        covered_[level][bucket] = reach;
        from_[level][bucket] = from;
      }
    };
    for (int a = 0; a <= problem_.num_stages; ++a) {
      for (int c = 0; c <= problem_.num_cpus; ++c) {
        const int level = LevelOf(a, c);
        for (int b = 0; b < num_buckets_; ++b) {
          const double covered = covered_[level][b];
          if (covered < 0 || !MayBe(level, b, covered)) continue;
          if (a < problem_.num_stages) {
            const int next = LevelOf(a + 1, c);
            offer(next, b, covered, {b, level, true});  // an empty stage
            for (int to = b + (b > 0 ? 0 : 1); to < num_buckets_ && to - b <= max_length_; ++to) {
              if (buckets_[to].low_ms > covered + target + Slack()) break;
              ++steps_;
              if (buckets_[to].empty) continue;
              offer(next, to, Reach(b, covered, to, target), {b, level, false});
            }
          }
          if (c < problem_.num_cpus) {
            const int next = LevelOf(a, c + 1);
            for (int to = b; to < num_buckets_; ++to) {
              if (buckets_[to].low_ms > covered + target * cpu_speed_ + Slack()) break;
              if (!buckets_[to].empty) {
                offer(next, to, ReachOnCpu(covered, to, target), {b, level, true});
              }
            }
          }
        }
      }
    }
    return covered_[num_levels_ - 1][num_buckets_ - 1] >= 0;
  }

  // Work that devices could at most still take decides whether a boundary is of use.
  bool MayBe(int level, int bucket, double covered) const {
    return needed_.empty() || covered >= needed_[level][bucket] - Slack();
  }

  // The same from behind, with the payments known so far; they only grow, so for one target it
  // stays true.
  void Need(double target) {
    needed_.assign(num_levels_, std::vector<double>(num_buckets_, kInfinity));
    needed_[num_levels_ - 1][num_buckets_ - 1] = work_ms_;
    const auto offer = [&](int level, int bucket, double least) {
      least = std::max(least, buckets_[bucket].low_ms);
      if (least <= buckets_[bucket].high_ms + Slack()) {
        needed_[level][bucket] = std::min(needed_[level][bucket], least);
      }
    };
    for (int a = problem_.num_stages; a >= 0; --a) {
      for (int c = problem_.num_cpus; c >= 0; --c) {
        const int level = LevelOf(a, c);
        for (int to = 0; to < num_buckets_; ++to) {
          const double needed = needed_[level][to];
          if (needed == kInfinity || buckets_[to].empty) continue;
          if (a > 0) {
            const int before = LevelOf(a - 1, c);
            offer(before, to, needed);
            for (int b = to; b >= 0 && to - b <= max_length_; --b) {
              if (buckets_[b].high_ms + target < needed - Slack()) break;
              if (buckets_[b].empty || (b == 0 && to == 0)) continue;
              double least = needed - target;
              if (problem_.objective == Objective::kSum) {
                least += PairOf(0, b, to).ms();
              } else if (PairOf(0, b, to).ms() > target || PairOf(1, b, to).ms() > target) {
                continue;
              }
              offer(before, b, least);
            }
          }
          if (c > 0) {
            const int before = LevelOf(a, c - 1);
            for (int b = to; b >= 0; --b) {
              if (buckets_[b].high_ms + target * cpu_speed_ < needed - Slack()) break;
              if (!buckets_[b].empty) offer(before, b, needed - target * cpu_speed_);
            }
          }
        }
      }
    }
  }

  Verdict Refute(double target) {
    needed_.clear();
    for (int round = 0;; ++round) {
      if (round % 8 == 0) Need(target);
      if (!Cover(target)) return Verdict::kRefuted;
      if (!SearchChain(target)) return Verdict::kStands;
      if (steps_ > options_.max_steps || options_.stop()) {
        return Verdict::kStopped;
      }
    }
  }

  // Looks closer at the stages of the chain that reaches furthest, at those that were looked at
  // least. False if nothing is left to see.
  bool SearchChain(double target) {
    struct Stage {
      int sum, from, to;
      double enough;  // a payment above is as good as infinite, for this chain
    };
    std::vector<Stage> stages;
    int least = kNumPasses;
    int to = num_buckets_ - 1;
    for (int level = num_levels_ - 1; level > 0;) {
      const From from = from_[level][to];
      for (int sum = 0; !from.on_cpu && sum < static_cast<int>(pairs_.size()); ++sum) {
        double enough = target;
        if (problem_.objective == Objective::kSum) {
          const double needed = std::max(buckets_[to].low_ms, needed_[level][to]);
          enough = covered_[from.level][from.bucket] + target - needed + 2 * Slack();
        }
        stages.push_back({sum, from.bucket, to, enough});
        least = std::min(least, PairOf(sum, from.bucket, to).passes);
      }
      level = from.level;
      to = from.bucket;
    }
    if (least >= num_passes_ || segments_.size() * span_ < static_cast<size_t>(num_buckets_)) {
      return false;  // or stopped while segments were made
    }
    for (const Stage& stage : stages) {
      if (PairOf(stage.sum, stage.from, stage.to).passes == least) {
        SearchPair(stage.sum, stage.from, stage.to, stage.enough);
      }
    }
    return true;
  }

  // One more pass over a pair. It counts as done where it has not ended early.
  void SearchPair(int sum, int from, int to, double enough) {
    Pair& pair = PairOf(sum, from, to);
    const Segment& segment = segments_[from / span_];
    const Pass& pass = kPasses[pair.passes];
    const auto bound_payment = [&](Ends ends, double enough_ms) {
      const int64_t steps = segment.cut->num_steps();
      const PaymentBound bound = BoundPayment(
          *segment.stretch.space, segment.stretch.payments[sum], segment.BoxOf(from),
          segment.BoxOf(to),
          {ends, enough_ms, std::min(pass.max_branchings, options_.max_branchings)}, *segment.cut);
      steps_ += segment.cut->num_steps() - steps;
      return bound;
    };
    if (pass.both) {
      const PaymentBound bound = bound_payment(Ends::kBoth, enough);
      pair.both_ms = std::max(pair.both_ms, bound.ms);
      if (pair.ms() <= enough) pair.passes = bound.exhausted ? kNumPasses : pair.passes + 1;
      return;
    }
    bool exhausted = true;
    const bool has_front = from > 0, has_back = to + 1 < num_buckets_;
    if (has_front) {
      const PaymentBound bound = bound_payment(Ends::kFront, enough - pair.back_ms);
      RaiseFront(segment, sum, from, to, bound.ms);
      exhausted = exhausted && bound.exhausted;
    }
    if (has_back) {
      const PaymentBound bound = bound_payment(Ends::kBack, enough - pair.front_ms);
      RaiseBack(segment, sum, from, to, bound.ms);
      exhausted = exhausted && bound.exhausted;
    }
    if (pair.ms() > enough) return;
    pair.passes = exhausted ? kEndsPasses : pair.passes + 1;
    // The first and the last stage have one end only.
    if (pair.passes == kEndsPasses && !(has_front && has_back)) pair.passes = kNumPasses;
  }

  // What the front pays for readers inside, it pays for every back that has these readers before
  // it.
  void RaiseFront(const Segment& segment, int sum, int from, int to, double ms) {
    const Box& front = segment.BoxOf(from);
    const NodeSet& until = segment.BoxOf(to).in;
    NodeSet readers(segment.stretch.space->num_nodes());
    for (const Payment& payment : segment.stretch.payments[sum]) {
      if (payment.first != kCaller && front.out.Has(payment.first)) continue;
      for (const int v : payment.others) {
        if (until.Has(v) && !front.in.Has(v)) readers.Add(v);
      }
    }
    for (; to < segment.end() && to - from <= max_length_; ++to) {
      double& known = PairOf(sum, from, to).front_ms;
      if (readers.IsWithin(segment.BoxOf(to).in)) known = std::max(known, ms);
    }
  }

  // And what the back pays for values made inside, for every front that has them behind it.
  void RaiseBack(const Segment& segment, int sum, int from, int to, double ms) {
    const Box& back = segment.BoxOf(to);
    const NodeSet& after = segment.BoxOf(from).out;
    NodeSet made(segment.stretch.space->num_nodes());
    for (const Payment& payment : segment.stretch.payments[sum]) {
      const int v = payment.first;
      if (v != kCaller && after.Has(v) && !back.out.Has(v)) made.Add(v);
    }
    for (; from >= segment.first && to - from <= max_length_; --from) {
      double& known = PairOf(sum, from, to).back_ms;
      if (made.IsWithin(segment.BoxOf(from).out)) known = std::max(known, ms);
    }
  }

  // The largest target that what is known refutes.
  double Sharpen(double bound, double unrefuted) {
    needed_.clear();
    for (int i = 0; i < 20; ++i) {
      const double target = 0.5 * (bound + unrefuted);
      (Cover(target) ? unrefuted : bound) = target;
    }
    return bound;
  }

  const Problem& problem_;
  const ChainBoundOptions& options_;
  const Stretches* stretches_;
  const int num_passes_;  // the dearest one waits for the last resolution
  double work_ms_ = 0;
  int span_ = 0;  // buckets of a segment in which its stages begin
  std::vector<Segment> segments_;
  int num_levels_ = 0;
  double cpu_speed_ = 0;  // most accelerator time that a millisecond of a CPU can save
  std::vector<Bucket> buckets_;
  int num_buckets_ = 0, max_length_ = 0;
  std::vector<std::vector<Pair>> pairs_;               // by sum, then by from and length
  std::vector<std::vector<double>> covered_, needed_;  // by level, then by bucket
  std::vector<std::vector<From>> from_;
  int64_t steps_ = 0;  // of cuts and of Cover
};

}  // namespace

double ChainBound(const Problem& problem, const ChainBoundOptions& options) {
  double work_ms = 0;
  for (const Node& node : problem.nodes) work_ms += node.work_ms;
  // Without work there are no buckets, and nodes that only a CPU runs are in none.
  if (!(work_ms > 0 && work_ms < kInfinity)) return options.bound_ms;
  std::optional<Stretches> stretches;
  if (problem.nodes.size() > options.largest_whole) stretches.emplace(problem, options.stop);
  if (stretches && !stretches->ok()) return options.bound_ms;
  double bound = options.bound_ms;
  ChainBoundOptions left = options;
  std::vector<int> resolutions = options.buckets_per_stage;
  if (resolutions.empty()) {
    // Coarse ones give most of the bound in little time; fine ones prove small graphs optimal.
    resolutions = stretches ? std::vector<int>{4, 16} : std::vector<int>{8, 32, 128};
  }
  for (const int buckets : resolutions) {
    if (bound >= options.value_ms * (1 - 2e-9)) break;
    if (left.max_steps <= 0 || options.stop()) break;
    Refuter refuter(problem, left, buckets, stretches ? &*stretches : nullptr,
                    buckets == resolutions.back());
    bound = std::max(bound, refuter.Run(bound));
    left.max_steps -= refuter.steps();
  }
  return bound;
}

}  // namespace autopart::internal
