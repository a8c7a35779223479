#include "partitioner/internal/stage_growth.h"

#include "partitioner/internal/random.h"

namespace autopart::internal {
namespace {

double MostSpeed(const StageChoices& choices) {
  double most = 0;
  for (const StageChoices::Kind& kind : choices.kinds()) {
    if (!kind.is_cpu) most = std::max(most, kind.share / kind.compute_share);
  }
  return most > 0 ? most : 1;
}

}  // namespace

StageGrowth::StageGrowth(const Problem& problem, const StageChoices& choices)
    : num_nodes_(static_cast<int>(problem.nodes.size())),
      num_words_((num_nodes_ + 63) / 64),
      overlap_(problem.objective == Objective::kOverlap),
      most_speed_(MostSpeed(choices)),
      ancestors_(static_cast<size_t>(num_nodes_) * num_words_),
      descendants_(ancestors_.size()),
      free_(num_words_),
      waiting_(num_nodes_),
      closure_(num_nodes_),
      tensor_seen_(problem.tensors.size()),
      state_(problem.tensors.size()),
      stage_(num_words_) {
  Random random(0);
  std::vector<std::vector<int>> touching(num_nodes_);
  for (const Tensor& tensor : problem.tensors) {
    const int id = static_cast<int>(producer_.size());
    for (const int n : tensor.nodes) touching[n].push_back(id);
    pins_.Add(tensor.nodes);
    producer_.push_back(tensor.producer);
    if (tensor.producer == kCaller) from_caller_.push_back(id);
    const double f = tensor.forward_ms, b = tensor.backward_ms;
    if (overlap_) {
      cost_.push_back({{b, f}, {f, b}, {std::min(f, b), std::min(f, b)}});
    } else {
      cost_.push_back({{f + b, 0}, {f + b, 0}, {f + b, 0}});
    }
  }
  for (int n = 0; n < num_nodes_; ++n) {
    const Node& node = problem.nodes[n];
    work_.push_back(node.work_ms);
    cpu_.push_back(node.cpu_ms);
    resident_of_.push_back(node.resident_bytes);
    gradient_of_.push_back(node.gradient_bytes);
    predecessors_.Add(node.predecessors);
    successors_.Add(node.successors);
    tensors_.Add(touching[n]);
    node_hash_.push_back(random.Next());
  }
  const auto unite = [&](std::vector<Word>& sets, int into, int from) {
    Word* a = sets.data() + static_cast<size_t>(into) * num_words_;
    const Word* b = sets.data() + static_cast<size_t>(from) * num_words_;
    for (int w = 0; w < num_words_; ++w) a[w] |= b[w];
  };
  for (int n = 0; n < num_nodes_; ++n) {
    SetBit(ancestors_.data() + static_cast<size_t>(n) * num_words_, n);
    for (const int p : predecessors_[n]) unite(ancestors_, n, p);
  }
  for (int n = num_nodes_ - 1; n >= 0; --n) {
    SetBit(descendants_.data() + static_cast<size_t>(n) * num_words_, n);
    for (const int s : successors_[n]) unite(descendants_, n, s);
  }
}

// Nodes in reach; what of their tensors is outside already.
void StageGrowth::SetUp() {
  ++walk_;
  std::fill(free_.begin(), free_.end(), 0);
  std::fill(stage_.begin(), stage_.end(), 0);
  stage_nodes_ = 0;
  num_free_ = 0;
  hash_ = 0;
  weight_ = potential_ = resident_ = crossing_ = 0;
  load_ = {};
  available_.clear();
  left_out_.clear();
  trail_.clear();
  const std::vector<double>& cost = limits_.kind.is_cpu ? cpu_ : work_;
  const double most =
      limits_.kind.is_cpu ? limits_.load : limits_.load / limits_.kind.compute_share;

  is_first_ = true;
  for (int w = 0; w < num_words_; ++w) is_first_ = is_first_ && before_[w] == 0;
  int first = 0;
  while (first < num_words_ && before_[first] == ~Word{0}) ++first;
  for (int n = 64 * first; n < num_nodes_; ++n) {
    if (HasBit(before_, n)) continue;
    int waiting = 0, one = -1;
    bool in_reach = true;
    for (const int p : predecessors_[n]) {
      if (HasBit(before_, p)) continue;
      in_reach = in_reach && IsInFree(p);
      ++waiting;
      one = p;
    }
    waiting_[n] = waiting;
    if (!in_reach) continue;
    double closure = cost[n];
    if (waiting == 1) {
      closure += closure_[one];
    } else if (waiting > 1) {
      closure = 0;
      const Word* ancestors = Ancestors(n);
      for (int w = first; w <= n >> 6; ++w) {
        for (Word bits = ancestors[w] & ~before_[w]; bits != 0; bits &= bits - 1) {
          closure += cost[64 * w + std::countr_zero(bits)];
        }
      }
    }
    closure_[n] = closure;
    if (closure > most) continue;
    SetBit(free_.data(), n);
    ++num_free_;
    potential_ += weight(n);
    if (waiting == 0) available_.push_back(n);
  }
  if (limits_.kind.is_cpu) return;

  const auto start_state = [&](int t) {
    uint8_t state = producer_[t] < 0 ? (is_first_ ? kTouched : kBefore) : 0;
    for (const int pin : pins_[t]) {
      if (HasBit(before_, pin)) {
        state |= kBefore;
      } else if (!IsInFree(pin)) {
        state |= kBehind;
      }
    }
    return state;
  };
  const auto start = [&](int t) {
    state_[t] = start_state(t);
    if (Pays(state_[t])) Charge(t);
    if (Crosses(state_[t])) crossing_ += cost_[t].in.send;
  };
  if (limits_.crossing_weight > 0) {
    for (size_t t = 0; t < state_.size(); ++t) start(static_cast<int>(t));
    return;
  }
  if (is_first_) {
    for (const int t : from_caller_) {
      tensor_seen_[t] = walk_;
      start(t);
    }
  }
  ForEachBit(free_.data(), num_words_, [&](int n) {
    for (const int t : tensors_[n]) {
      if (tensor_seen_[t] == walk_) continue;
      tensor_seen_[t] = walk_;
      start(t);
    }
  });
}

void StageGrowth::Charge(int tensor) {
  const int producer = producer_[tensor];
  const TensorCost& cost = cost_[tensor];
  if (producer < 0) return Add(is_first_ ? cost.out : cost.in);
  Add(IsInStage(producer) ? cost.out : IsInFree(producer) ? cost.least : cost.in);
}

void StageGrowth::Set(int tensor, uint8_t bit) {
  const uint8_t before = state_[tensor], after = before | bit;
  if (before == after) return;
  trail_.push_back({tensor, before});
  state_[tensor] = after;
  if (Pays(after) && !Pays(before)) Charge(tensor);
  if (Crosses(after) && !Crosses(before)) crossing_ += cost_[tensor].in.send;
}

bool StageGrowth::Include(int node) {
  SetBit(stage_.data(), node);
  ClearBit(free_.data(), node);
  ++stage_nodes_;
  hash_ ^= node_hash_[node];
  weight_ += weight(node);
  load_.work += limits_.kind.is_cpu ? cpu_[node] : work_[node];
  if (limits_.kind.is_cpu) return load_.work <= limits_.load;
  load_.gradient_bytes += gradient_of_[node];
  resident_ += resident_of_[node];
  if (resident_ > limits_.kind.memory_bytes) return false;
  for (const int t : tensors_[node]) {
    if (producer_[t] == node && Pays(state_[t])) {
      Subtract(cost_[t].least);
      Add(cost_[t].out);
    }
    Set(t, kTouched);
  }
  return IsWithin();
}

bool StageGrowth::LeaveOut(int node, StepBudget& budget) {
  const Word* descendants = Descendants(node);
  for (int w = node >> 6; w < num_words_; ++w) {
    for (Word bits = descendants[w] & free_[w]; bits != 0; bits &= bits - 1) {
      const int n = 64 * w + std::countr_zero(bits);
      budget.Count(1);
      ClearBit(free_.data(), n);
      potential_ -= weight(n);
      if (limits_.kind.is_cpu) continue;
      for (const int t : tensors_[n]) {
        if (producer_[t] == n && Pays(state_[t])) {
          Subtract(cost_[t].least);
          Add(cost_[t].in);
        }
        Set(t, kBehind);
      }
    }
  }
  return IsWithin();
}

Load StageGrowth::Evaluate(const Word* before, const Word* after, bool on_cpu) const {
  Load load;
  bool is_first = true;
  std::vector<Word> stage(num_words_);
  for (int w = 0; w < num_words_; ++w) {
    stage[w] = after[w] & ~before[w];
    is_first = is_first && before[w] == 0;
  }
  for (int n = 0; n < num_nodes_; ++n) {
    if (!HasBit(stage.data(), n)) continue;
    load.work += on_cpu ? cpu_[n] : work_[n];
    load.gradient_bytes += gradient_of_[n];
  }
  for (size_t t = 0; !on_cpu && t < producer_.size(); ++t) {
    const bool made_here = producer_[t] < 0 ? is_first : HasBit(stage.data(), producer_[t]);
    int inside = 0;
    for (const int pin : pins_[t]) inside += HasBit(stage.data(), pin);
    if (!made_here && inside == 0) continue;
    const int others = static_cast<int>(pins_[t].size()) - inside;
    if (others == 0 && (producer_[t] >= 0 || is_first)) continue;
    const Cost& cost = made_here ? cost_[t].out : cost_[t].in;
    load.send += cost.send;
    load.receive += cost.receive;
    if (!made_here) {
      load.send_before += cost.send;
      load.receive_before += cost.receive;
    }
  }
  return load;
}

}  // namespace autopart::internal
