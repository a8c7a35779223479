// Grows stages: all sets of nodes that can be the next stage behind a given downset (a set of nodes
// that holds all predecessors of its nodes) without exceeding a load.
//
// Depth first, one decision a step: the newest node whose predecessors are all in is put into the
// stage, or is left out for good, and its descendants with it. What the stage pays for sure grows
// with every decision: its work, each tensor that it touches and that has a node outside for good.
// So a branch ends as soon as that exceeds the limit, and at a leaf it is the load. The decision on
// the newest node first settles the newest tensors first.
//
// Left out at the start: nodes whose ancestors outside the downset are too much work for a stage.
//
// A step costs the degree of the node decided on (of all its descendants in reach, if left out).
#ifndef AUTOPART_PARTITIONER_INTERNAL_STAGE_GROWTH_H_
#define AUTOPART_PARTITIONER_INTERNAL_STAGE_GROWTH_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "partitioner/internal/problem.h"
#include "partitioner/internal/stage_choice.h"
#include "partitioner/internal/step_budget.h"

namespace autopart::internal {

using Word = uint64_t;

inline bool HasBit(const Word* set, int i) { return set[i >> 6] >> (i & 63) & 1; }
inline void SetBit(Word* set, int i) { set[i >> 6] |= Word{1} << (i & 63); }
inline void ClearBit(Word* set, int i) { set[i >> 6] &= ~(Word{1} << (i & 63)); }
template <typename F>
void ForEachBit(const Word* set, int num_words, F f) {
  for (int w = 0; w < num_words; ++w) {
    for (Word bits = set[w]; bits != 0; bits &= bits - 1) f(64 * w + std::countr_zero(bits));
  }
}

// Rows of ids in one array.
class IdRows {
 public:
  void Add(std::span<const int> row) {
    ids_.insert(ids_.end(), row.begin(), row.end());
    begin_.push_back(static_cast<int>(ids_.size()));
  }
  std::span<const int> operator[](int row) const {
    return {ids_.data() + begin_[row], ids_.data() + begin_[row + 1]};
  }

 private:
  std::vector<int> begin_ = {0};
  std::vector<int> ids_;
};

// What a stage pays, so far or in the end. With the objective sum, all communication is in `send`.
struct Load {
  double work = 0, send = 0, receive = 0;
  double gradient_bytes = 0;  // of parameters that no node outside uses
  // What of send and receive goes over the link before the stage. Only Evaluate tells.
  double send_before = 0, receive_before = 0;
};

class StageGrowth {
 public:
  StageGrowth(const Problem& problem, const StageChoices& choices);

  int num_nodes() const { return num_nodes_; }
  int num_words() const { return num_words_; }
  double weight(int node) const { return work_[node] == kInfinity ? 0 : work_[node]; }

  // See StageChoices::LoadMs.
  double LoadOf(const StageChoices::Kind& kind, const Load& load) const {
    if (kind.is_cpu) return load.work;
    const double work = load.work * kind.compute_share;
    const double send = load.send * kind.share, receive = load.receive * kind.share;
    return (overlap_ ? std::max({work, send, receive}) : work + send + receive) +
           load.gradient_bytes * kind.all_reduce_ms_per_byte;
  }
  // With unequal links; without them or before Evaluate it is the least that it can be.
  double LoadOf(const StageChoices::Kind& kind, Load load, const StageLinks& links) const {
    if (links.before == 1 && links.behind == 1) return LoadOf(kind, load);
    load.send = (load.send - load.send_before) * links.behind + load.send_before * links.before;
    load.receive =
        (load.receive - load.receive_before) * links.behind + load.receive_before * links.before;
    return LoadOf(kind, load);
  }
  // From the definition, without any state of a walk; for CPUs the work is the CPU's.
  Load Evaluate(const Word* before, const Word* after, bool on_cpu) const;

  struct Limits {
    double load = 0;
    // Of the stage's nodes, so that those behind have no more than they can take; what crosses to
    // them counts as theirs, times crossing_weight.
    double least_weight = 0;
    double crossing_weight = 0;
    StageChoices::Kind kind;
  };
  // Calls leaf() for each stage behind `before`; see the accessors. It returns false to end the
  // walk, as does the end of the budget. No stage is empty.
  template <typename Leaf>
  bool Grow(const Word* before, const Limits& limits, StepBudget& budget, Leaf leaf);

  // At a leaf: the stage.
  const Word* stage() const { return stage_.data(); }
  int stage_nodes() const { return stage_nodes_; }
  double stage_weight() const { return weight_; }
  uint64_t stage_hash() const { return hash_; }
  const Load& load() const { return load_; }
  double crossing() const { return crossing_; }  // to later stages, if crossing_weight is not 0
  double resident_bytes() const { return resident_; }

  // At a leaf: is there a node that could join the stage within the limit, and with whose passing
  // from later stages into this one none of theirs gets heavier, whatever they are? Then the leaf
  // need not be looked at: what can be reached from it can be reached from the larger stage.
  // `may_join(node, load)` can object: the load is the stage's with the node.
  template <typename MayJoin>
  bool IsDominated(MayJoin may_join) const;

  uint64_t HashOf(int node) const { return node_hash_[node]; }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Of a tensor: has a node in the stage, before it, behind it for sure.
  static constexpr uint8_t kTouched = 1, kBefore = 2, kBehind = 4;
  static constexpr uint8_t kOutside = kBefore | kBehind, kUpstream = kTouched | kBefore;

  static bool Pays(uint8_t state) { return (state & kTouched) && (state & kOutside); }
  static bool Crosses(uint8_t state) { return (state & kUpstream) && (state & kBehind); }

  struct Cost {
    double send, receive;
  };
  struct TensorCost {
    Cost in, out, least;  // made outside, made in the stage, undecided
  };
  struct TrailEntry {
    int tensor;
    uint8_t state;
  };

  const Word* Descendants(int node) const {
    return descendants_.data() + static_cast<size_t>(node) * num_words_;
  }
  const Word* Ancestors(int node) const {
    return ancestors_.data() + static_cast<size_t>(node) * num_words_;
  }
  bool IsInFree(int node) const { return HasBit(free_.data(), node); }
  bool IsInStage(int node) const { return HasBit(stage_.data(), node); }

  void SetUp();
  void Add(const Cost& cost) {
    load_.send += cost.send;
    load_.receive += cost.receive;
  }
  void Subtract(const Cost& cost) {
    load_.send -= cost.send;
    load_.receive -= cost.receive;
  }
  void Charge(int tensor);
  void Set(int tensor, uint8_t bit);
  bool Include(int node);
  bool LeaveOut(int node, StepBudget& budget);
  double LeastWeight() const { return limits_.least_weight + limits_.crossing_weight * crossing_; }
  // Also if the weight becomes no more than it has to.
  bool IsWithin() const {
    Load load = load_;
    if (!limits_.kind.is_cpu) load.work = std::max(load.work, LeastWeight());
    return LoadOf(limits_.kind, load) <= limits_.load && potential_ >= LeastWeight();
  }
  template <typename Leaf>
  bool Branch(StepBudget& budget, Leaf& leaf);
  void Undo(size_t mark) {
    for (; trail_.size() > mark; trail_.pop_back()) {
      state_[trail_.back().tensor] = trail_.back().state;
    }
  }

  const int num_nodes_, num_words_;
  const bool overlap_;
  const double most_speed_;  // of an accelerator
  std::vector<double> work_, cpu_, resident_of_, gradient_of_;
  IdRows predecessors_, successors_;
  IdRows tensors_;  // that touch a node
  IdRows pins_;     // nodes of a tensor
  std::vector<int> producer_;
  std::vector<TensorCost> cost_;
  std::vector<int> from_caller_;               // tensors
  std::vector<Word> ancestors_, descendants_;  // with the node itself
  std::vector<uint64_t> node_hash_;

  // Of one call of Grow.
  const Word* before_ = nullptr;
  bool is_first_ = false;
  Limits limits_;
  std::vector<Word> free_;       // in reach and undecided
  int num_free_ = 0;             // at the start
  std::vector<int> waiting_;     // predecessors that are not in yet
  std::vector<double> closure_;  // work of the ancestors that are not in yet
  std::vector<int> tensor_seen_;
  int walk_ = 0;
  std::vector<uint8_t> state_;  // of a tensor

  // Of the branch.
  std::vector<Word> stage_;
  int stage_nodes_ = 0;
  uint64_t hash_ = 0;
  double weight_ = 0, potential_ = 0, resident_ = 0;
  double crossing_ = 0;
  Load load_;
  std::vector<int> available_;
  std::vector<int> left_out_;  // though all predecessors are in
  std::vector<TrailEntry> trail_;
  std::vector<Word> free_trail_;
};

template <typename Leaf>
bool StageGrowth::Grow(const Word* before, const Limits& limits, StepBudget& budget, Leaf leaf) {
  before_ = before;
  limits_ = limits;
  SetUp();
  budget.Count(num_nodes_ / 8 + 2 * (num_free_ + 1));
  return !IsWithin() || Branch(budget, leaf);
}

template <typename Leaf>
bool StageGrowth::Branch(StepBudget& budget, Leaf& leaf) {
  budget.Count(1);
  if (budget.IsOver()) return false;
  if (available_.empty()) return stage_nodes_ == 0 || weight_ < LeastWeight() || leaf();
  const int node = available_.back();
  available_.pop_back();
  const size_t slot = available_.size();
  const Load load = load_;
  const double potential = potential_, weight = weight_, resident = resident_;
  const double crossing = crossing_;
  const size_t mark = trail_.size();
  bool go_on = true;

  if (Include(node)) {
    for (const int s : successors_[node]) {
      if (--waiting_[s] == 0 && IsInFree(s)) available_.push_back(s);
    }
    go_on = Branch(budget, leaf);
    for (const int s : successors_[node]) ++waiting_[s];
    available_.resize(slot);
  }
  Undo(mark);
  ClearBit(stage_.data(), node);
  SetBit(free_.data(), node);
  --stage_nodes_;
  hash_ ^= node_hash_[node];
  load_ = load;
  weight_ = weight;
  resident_ = resident;
  crossing_ = crossing;

  if (go_on) {
    const size_t free_mark = free_trail_.size();
    free_trail_.insert(free_trail_.end(), free_.begin(), free_.end());
    left_out_.push_back(node);
    budget.Count(num_words_ / 8);
    if (LeaveOut(node, budget)) go_on = Branch(budget, leaf);
    left_out_.pop_back();
    std::copy(free_trail_.begin() + free_mark, free_trail_.end(), free_.begin());
    free_trail_.resize(free_mark);
    Undo(mark);
    load_ = load;
    potential_ = potential;
    crossing_ = crossing;
  }
  available_.push_back(node);
  return go_on;
}

template <typename MayJoin>
bool StageGrowth::IsDominated(MayJoin may_join) const {
  for (const int node : left_out_) {
    // What leaving a later stage saves it and costs it; and the load of this one with the node.
    Cost gain = {}, loss = {};
    StageGrowth::Cost delta = {};
    for (const int t : tensors_[node]) {
      const TensorCost& cost = cost_[t];
      const bool makes = producer_[t] == node;
      bool in_before = producer_[t] < 0 && !is_first_, in_stage = producer_[t] < 0 && is_first_;
      bool later = false;
      for (const int pin : pins_[t]) {
        if (pin == node) continue;
        if (IsInStage(pin)) {
          in_stage = true;
        } else if (HasBit(before_, pin)) {
          in_before = true;
        } else {
          later = true;
        }
      }
      const Cost& mine = makes ? cost.out : cost.in;
      if (!in_before && !in_stage) {
        if (later) {
          loss.send += makes ? cost.in.send : std::max(cost.in.send, cost.out.send);
          loss.receive += makes ? cost.in.receive : std::max(cost.in.receive, cost.out.receive);
        }
      } else if (!later) {
        gain.send += mine.send;
        gain.receive += mine.receive;
      } else if (makes) {
        loss.send += std::max(0.0, cost.in.send - cost.out.send);
        loss.receive += std::max(0.0, cost.in.receive - cost.out.receive);
      }
      // This stage: touched, it paid so far, as maker if the maker is in it.
      const bool pays = in_before || later;
      if (in_stage) {
        const bool made_here = producer_[t] < 0 ? is_first_ : IsInStage(producer_[t]);
        const Cost& so_far = made_here ? cost.out : cost.in;
        const Cost& now = made_here || makes ? cost.out : cost.in;
        delta.send += (pays ? now.send : 0) - so_far.send;
        delta.receive += (pays ? now.receive : 0) - so_far.receive;
      } else if (pays) {
        delta.send += mine.send;
        delta.receive += mine.receive;
      }
    }
    const bool harmless = overlap_ ? gain.send >= loss.send && gain.receive >= loss.receive
                                   : weight(node) / most_speed_ + gain.send + gain.receive >=
                                         loss.send + loss.receive;
    if (!harmless) continue;
    Load with = load_;
    if (limits_.kind.is_cpu) {
      with.work += cpu_[node];
    } else {
      with.work += work_[node];
      with.gradient_bytes += gradient_of_[node];
      with.send += delta.send;
      with.receive += delta.receive;
      if (resident_ + resident_of_[node] > limits_.kind.memory_bytes) continue;
    }
    if (LoadOf(limits_.kind, with) <= limits_.load && may_join(node, with)) return true;
  }
  return false;
}

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_STAGE_GROWTH_H_
