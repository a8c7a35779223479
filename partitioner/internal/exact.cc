// Dynamic programming over downsets (Tarnawski et al., NeurIPS 2020), turned into a decision: every
// partition into a chain of stages is a chain of downsets {} = I0 < I1 < ... < Ik = V, so walk over
// the downsets that a chain of stages with loads within a limit can reach, and see whether V is one
// of them. With the limit just under the value of the best partition known, "no" proves it optimal;
// a "yes" comes with a better partition, and the limit moves down.
//
// For each downset reached: the set of states in which it was reached. A state is how many devices
// of each kind are left. What keeps the walk short:
//
//   - tensors that cost a limit by themselves are not cut: their nodes become one
//   (GlueDearTensors);
//   - a stage is abandoned as soon as what it pays for sure exceeds the limit (stage_growth.h);
//   - a downset whose remaining work exceeds what the devices left can do leads nowhere; so a
//     stage must also be large enough;
//   - stages that could take in one more node without harm to any later stage are not looked at:
//     the larger one serves (StageGrowth::IsDominated). This assumes that a stage may be left
//     empty. Where it may not, an answer "no" still holds; a "yes" that needs an empty stage is
//     looked into again without the assumption.
//
// Downsets go by their number of nodes, so each is grown from once, when all its states are known.
// Cost: the number of (downset, stage) pairs within the limits; there can be exponentially many of
// them, so the steps are counted and bounded.
#include "partitioner/internal/exact.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "partitioner/internal/downset_table.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/stage_growth.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

enum class Emptiness {
  kAnywhere,   // stages may stay empty, wherever they are in the chain: what domination assumes
  kAsDefined,  // by the problem's rule
};

// Bytes of a stage, from the definition (problem.h).
class StageMemory {
 public:
  explicit StageMemory(const Problem& problem)
      : problem_(problem), shared_seen_(problem.shared.size()), held_(problem.saved_values.size()) {
    users_.resize(problem.nodes.size());
    for (size_t s = 0; s < problem.shared.size(); ++s) {
      for (const int n : problem.shared[s].nodes) users_[n].push_back(static_cast<int>(s));
    }
  }

  struct Bytes {
    double resident = 0, flight = 0, temporary = 0;
    double Total(int in_flight) const { return resident + in_flight * flight + temporary; }
  };

  // `is_in` says of a node whether it is in the stage.
  template <typename IsIn>
  Bytes Of(const Word* stage, int num_words, bool is_first, IsIn is_in) {
    ++walk_;
    Bytes bytes;
    ForEachBit(stage, num_words, [&](int n) { AddNode(n, is_first, is_in, bytes); });
    return bytes;
  }

  template <typename IsIn>
  void AddNode(int n, bool is_first, IsIn is_in, Bytes& bytes) {
    const Node& node = problem_.nodes[n];
    bytes.resident += node.resident_bytes;
    bytes.flight += node.flight_bytes;
    bytes.temporary = std::max(bytes.temporary, node.temporary_bytes);
    for (const int s : users_[n]) {
      if (std::exchange(shared_seen_[s], walk_) != walk_)
        bytes.resident += problem_.shared[s].bytes;
    }
    const auto made_here = [&](int value) {
      const int producer = problem_.saved_values[value].producer;
      return producer == kCaller ? is_first : is_in(producer);
    };
    for (int value : node.saves) {
      while (made_here(value) && problem_.saved_values[value].view_of >= 0) {
        value = problem_.saved_values[value].view_of;
      }
      if (std::exchange(held_[value], walk_) == walk_) continue;
      const SavedValue& saved = problem_.saved_values[value];
      bytes.flight += made_here(value) ? saved.storage_bytes : saved.bytes;
    }
  }

 private:
  const Problem& problem_;
  std::vector<std::vector<int>> users_;  // shared bytes of a node
  std::vector<int> shared_seen_, held_;
  int walk_ = 0;
};

int InFlightOf(const Problem& problem, int stages_behind) {
  const int last = static_cast<int>(problem.in_flight.size()) - 1;
  return problem.in_flight[std::min(stages_behind, last)];
}

// The decision for one limit.
class Decision {
 public:
  Decision(const Problem& problem, double limit, Emptiness emptiness, int64_t& steps_left)
      : problem_(problem),
        limit_(limit),
        emptiness_(emptiness),
        steps_left_(steps_left),
        growth_(problem),
        memory_(problem),
        with_memory_(!std::isinf(problem.memory_bytes)),
        stride_(problem.num_cpus + 1),
        num_states_((problem.num_stages + 1) * stride_),
        state_words_((num_states_ + 63) / 64),
        table_(growth_.num_words()),
        by_size_(problem.nodes.size() + 1),
        after_(growth_.num_words()),
        next_states_(state_words_) {
    for (int n = 0; n < growth_.num_nodes(); ++n) total_weight_ += growth_.weight(n);
    FillCapacities();
    FillProducers();
  }

  // A chain within the limit, if the walk ended and there is one.
  std::optional<Assignment> Run() {
    const int num_nodes = growth_.num_nodes();
    std::vector<Word> none(growth_.num_words()), start(state_words_);
    SetBit(start.data(), num_states_ - 1);
    if (emptiness_ == Emptiness::kAnywhere) CloseUnderIdling(start.data());
    Reach(none.data(), 0, 0, 0, start.data());
    for (int size = 0; size < num_nodes && !IsSolved(); ++size) {
      for (size_t i = 0; i < by_size_[size].size() && !IsSolved(); ++i) {
        if (!GrowFrom(by_size_[size][i]) && !IsSolved()) return std::nullopt;
      }
      by_size_[size] = {};
    }
    finished_ = true;
    if (!IsSolved()) return std::nullopt;
    return ReadBack();
  }

  bool finished() const { return finished_; }

 private:
  bool IsSolved() const { return solution_ >= 0; }

  // The most work that the devices left in a state can do, and the same by what is left to do.
  void FillCapacities() {
    double cpu_speed = 0;  // most accelerator time that a millisecond of a CPU stands for
    for (const Node& node : problem_.nodes) {
      if (node.work_ms > 0 && !std::isinf(node.work_ms)) {
        cpu_speed = std::max(cpu_speed, node.cpu_ms > 0 ? node.work_ms / node.cpu_ms : kInfinity);
      }
    }
    for (int state = 0; state < num_states_; ++state) {
      double capacity = (state / stride_) * limit_;
      if (state % stride_ > 0 && cpu_speed > 0) capacity += (state % stride_) * limit_ * cpu_speed;
      capacity_.push_back(capacity * (1 + 1e-12) + 1e-12 * total_weight_);
    }
  }

  void FillProducers() {
    makes_saved_.resize(problem_.nodes.size());
    for (const SavedValue& value : problem_.saved_values) {
      if (value.producer != kCaller) makes_saved_[value.producer] = true;
    }
    detailed_memory_ = with_memory_ && (!problem_.shared.empty() || !problem_.saved_values.empty());
    for (const Node& node : problem_.nodes) {
      detailed_memory_ =
          detailed_memory_ || (with_memory_ && (node.flight_bytes > 0 || node.temporary_bytes > 0));
    }
  }

  void CloseUnderIdling(Word* states) const {
    for (int s = num_states_ - 1; s > 0; --s) {
      if (!HasBit(states, s)) continue;
      if (s >= stride_) SetBit(states, s - stride_);
      if (s % stride_ > 0) SetBit(states, s - 1);
    }
  }

  // Notes that a downset can be reached in these states.
  void Reach(const Word* set, uint64_t hash, int size, double weight, const Word* states) {
    const auto [id, is_new] = table_.Insert(set, hash);
    if (is_new) {
      by_size_[size].push_back(id);
      weights_.push_back(weight);
      states_.insert(states_.end(), states, states + state_words_);
    } else {
      for (int w = 0; w < state_words_; ++w) StatesOf(id)[w] |= states[w];
    }
    if (size == growth_.num_nodes()) solution_ = id;
  }

  Word* StatesOf(int id) { return states_.data() + static_cast<size_t>(id) * state_words_; }

  // False: out of steps, or solved.
  bool GrowFrom(int id) {
    const std::vector<Word> before(table_.bits(id), table_.bits(id) + growth_.num_words());
    const std::vector<Word> states(StatesOf(id), StatesOf(id) + state_words_);
    return GrowKind(id, before, states, false) &&
           (problem_.num_cpus == 0 || GrowKind(id, before, states, true));
  }

  bool GrowKind(int id, const std::vector<Word>& before, const std::vector<Word>& states,
                bool on_cpu) {
    const int size = CountBits(before);
    const double weight = weights_[id], rest = total_weight_ - weight;
    const uint64_t hash = table_.hash(id);
    // The states that have a device of the kind, and the most work that those behind can do.
    std::vector<int> usable;
    double most = -kInfinity;
    ForEachBit(states.data(), state_words_, [&](int state) {
      if (on_cpu ? state % stride_ == 0 : state < stride_) return;
      usable.push_back(state);
      most = std::max(most, capacity_[state - (on_cpu ? 1 : stride_)]);
    });
    if (usable.empty()) return true;
    StageGrowth::Limits limits;
    limits.load = limit_;
    limits.least_weight = rest - most;
    limits.on_cpu = on_cpu;
    if (with_memory_ && !on_cpu) limits.resident_bytes = problem_.memory_bytes;

    const auto leaf = [&] {
      const double weight_after = weight + growth_.stage_weight();
      std::fill(next_states_.begin(), next_states_.end(), 0);
      bool any = false;
      StageMemory::Bytes bytes;
      const bool check = detailed_memory_ && !on_cpu;
      if (check) {
        bytes = BytesOf(id, growth_.stage(), -1);
        steps_left_ -= growth_.stage_nodes();
      }
      for (const int state : usable) {
        const int next = state - (on_cpu ? 1 : stride_);
        if (capacity_[next] < total_weight_ - weight_after) continue;
        if (check && bytes.Total(InFlight(state)) > problem_.memory_bytes) continue;
        if (size + growth_.stage_nodes() == growth_.num_nodes() && !MayEnd(next)) continue;
        SetBit(next_states_.data(), next);
        any = true;
      }
      if (!any) return true;
      if (emptiness_ == Emptiness::kAnywhere) {
        const auto may_join = [&](int node) {
          if (!check) return true;
          if (makes_saved_[node]) return false;
          steps_left_ -= growth_.stage_nodes();
          const StageMemory::Bytes with = BytesOf(id, growth_.stage(), node);
          return std::all_of(usable.begin(), usable.end(), [&](int state) {
            return with.Total(InFlight(state)) <= problem_.memory_bytes ||
                   bytes.Total(InFlight(state)) > problem_.memory_bytes;
          });
        };
        if (growth_.IsDominated(may_join)) return true;
        if (check) CloseUnderIdling(next_states_.data());
      }
      for (int w = 0; w < growth_.num_words(); ++w) after_[w] = before[w] | growth_.stage()[w];
      Reach(after_.data(), hash ^ growth_.stage_hash(), size + growth_.stage_nodes(), weight_after,
            next_states_.data());
      return !IsSolved();
    };
    return growth_.Grow(before.data(), limits, steps_left_, leaf);
  }

  static int CountBits(const std::vector<Word>& set) {
    int count = 0;
    for (const Word word : set) count += std::popcount(word);
    return count;
  }

  // In flight on an accelerator that takes a stage in that state.
  int InFlight(int state) const { return InFlightOf(problem_, state / stride_ - 1); }

  bool MayEnd(int state) const {
    return state == 0 || emptiness_ == Emptiness::kAnywhere || problem_.allow_empty_stages;
  }

  StageMemory::Bytes BytesOf(int before, const Word* stage, int extra) {
    const bool is_first = before == 0;
    const auto is_in = [&](int n) { return n == extra || HasBit(stage, n); };
    StageMemory::Bytes bytes = memory_.Of(stage, growth_.num_words(), is_first, is_in);
    if (extra >= 0) memory_.AddNode(extra, is_first, is_in, bytes);
    return bytes;
  }

  // From the whole set back to the empty one: any downset reached from which the rest is one stage.
  Assignment ReadBack() {
    const int words = growth_.num_words();
    std::vector<std::vector<int>> stages;  // from the last
    std::vector<bool> is_cpu;
    int id = solution_, state = -1;
    ForEachBit(StatesOf(id), state_words_, [&](int s) { state = std::max(state, s); });
    std::vector<Word> stage(words);
    while (id != 0) {
      const std::vector<Word> after(table_.bits(id), table_.bits(id) + words);
      Step step;
      double least = kInfinity;
      for (int from = 0; from < table_.size(); ++from) {
        if (from == id) continue;
        const Word* before = table_.bits(from);
        bool is_subset = true;
        for (int w = 0; w < words; ++w) is_subset = is_subset && (before[w] & ~after[w]) == 0;
        if (is_subset) Consider(from, after, state, stage, least, step);
      }
      stages.emplace_back();
      for (int n = 0; n < growth_.num_nodes(); ++n) {
        if (HasBit(after.data(), n) && !HasBit(table_.bits(step.from), n)) {
          stages.back().push_back(n);
        }
      }
      is_cpu.push_back(step.on_cpu);
      id = step.from;
      state = step.state;
    }
    return ToAssignment(stages, is_cpu);
  }

  struct Step {
    int from = -1, state = -1;
    bool on_cpu = false;
  };

  void Consider(int from, const std::vector<Word>& after, int state, std::vector<Word>& stage,
                double& least, Step& step) {
    const Word* before = table_.bits(from);
    for (const bool on_cpu : {false, true}) {
      if (on_cpu && problem_.num_cpus == 0) continue;
      const double load = growth_.LoadOf(growth_.Evaluate(before, after.data(), on_cpu));
      if (!(load < least) || load > limit_ * (1 + 1e-12)) continue;
      for (int w = 0; w < growth_.num_words(); ++w) stage[w] = after[w] & ~before[w];
      StageMemory::Bytes bytes;
      if (with_memory_) bytes = BytesOf(from, stage.data(), -1);
      ForEachBit(StatesOf(from), state_words_, [&](int s) {
        if (on_cpu ? s % stride_ == 0 : s < stride_) return;
        const int next = s - (on_cpu ? 1 : stride_);
        const bool leads =
            emptiness_ == Emptiness::kAsDefined
                ? next == state
                : next / stride_ >= state / stride_ && next % stride_ >= state % stride_;
        if (!leads) return;
        if (with_memory_ && !on_cpu && bytes.Total(InFlight(s)) > problem_.memory_bytes) return;
        least = load;
        step = {from, s, on_cpu};
      });
    }
  }

  Assignment ToAssignment(const std::vector<std::vector<int>>& stages,
                          const std::vector<bool>& is_cpu) const {
    Assignment assignment;
    assignment.stage_of_node.resize(problem_.nodes.size());
    const int count = static_cast<int>(stages.size());
    int accelerators = problem_.num_stages, cpus = problem_.num_cpus;
    for (int s = 0; s < count; ++s) {
      for (const int n : stages[count - 1 - s]) assignment.stage_of_node[n] = s;
      assignment.is_cpu.push_back(is_cpu[count - 1 - s]);
      --(is_cpu[count - 1 - s] ? cpus : accelerators);
    }
    assignment.is_cpu.insert(assignment.is_cpu.end(), accelerators, false);
    assignment.is_cpu.insert(assignment.is_cpu.end(), cpus, true);
    return assignment;
  }

  const Problem& problem_;
  const double limit_;
  const Emptiness emptiness_;
  int64_t& steps_left_;
  StageGrowth growth_;
  StageMemory memory_;
  const bool with_memory_;
  const int stride_, num_states_, state_words_;  // state = accelerators left * stride + CPUs left
  double total_weight_ = 0;
  std::vector<double> capacity_;  // of a state
  std::vector<bool> makes_saved_;
  bool detailed_memory_ = false;  // more than a number of each node

  DownsetTable table_;  // 0: the empty set
  std::vector<double> weights_;
  std::vector<Word> states_;
  std::vector<std::vector<int>> by_size_;
  int solution_ = -1;
  bool finished_ = false;
  std::vector<Word> after_, next_states_;  // scratch
};

// Does the assignment keep to the rule on empty stages and to the memory limit? And its value.
struct Score {
  bool is_valid = true;
  double value_ms = 0;
};
Score ScoreOf(const Problem& problem, const Assignment& assignment) {
  const StageGrowth growth(problem);
  StageMemory memory(problem);
  const int words = growth.num_words();
  std::vector<Word> before(words), after(words), stage(words);
  Score score;
  int accelerators_behind = problem.num_stages;
  for (size_t s = 0; s < assignment.is_cpu.size(); ++s) {
    std::fill(stage.begin(), stage.end(), 0);
    bool is_empty = true;
    for (size_t n = 0; n < problem.nodes.size(); ++n) {
      if (assignment.stage_of_node[n] != static_cast<int>(s)) continue;
      SetBit(stage.data(), static_cast<int>(n));
      SetBit(after.data(), static_cast<int>(n));
      is_empty = false;
    }
    if (!assignment.is_cpu[s]) --accelerators_behind;
    if (is_empty) {
      score.is_valid = score.is_valid && problem.allow_empty_stages;
      continue;
    }
    score.value_ms =
        std::max(score.value_ms,
                 growth.LoadOf(growth.Evaluate(before.data(), after.data(), assignment.is_cpu[s])));
    if (!assignment.is_cpu[s]) {
      const auto is_in = [&](int n) { return HasBit(stage.data(), n); };
      const auto bytes = memory.Of(stage.data(), words, s == 0, is_in);
      score.is_valid = score.is_valid && bytes.Total(InFlightOf(problem, accelerators_behind)) <=
                                             problem.memory_bytes;
    }
    before = after;
  }
  return score;
}

double AboveAnyLoad(const Problem& problem) {
  double sum = 1;
  for (const Node& node : problem.nodes) {
    if (!std::isinf(node.work_ms)) sum += node.work_ms;
    sum += node.cpu_ms;
  }
  for (const Tensor& tensor : problem.tensors) sum += tensor.forward_ms + tensor.backward_ms;
  return 2 * sum;
}

// The assignment of the problem that this one was made from by gluing nodes.
Assignment Unglue(const Problem& glued, const Problem& problem, Assignment assignment) {
  const std::vector<int> stage_of_element = StageOfElement(glued, assignment.stage_of_node);
  assignment.stage_of_node.clear();
  for (const Node& node : problem.nodes) {
    assignment.stage_of_node.push_back(stage_of_element[node.elements[0]]);
  }
  return assignment;
}

}  // namespace

ExactResult SearchExactly(const Problem& problem, const ExactOptions& options) {
  ExactResult result;
  if (!problem.device_types.empty() || problem.num_recompute_levels > 1) return result;
  int64_t steps_left = options.max_steps;
  double below = std::isinf(options.below_ms) ? AboveAnyLoad(problem) : options.below_ms;
  Emptiness emptiness = Emptiness::kAnywhere;
  while (true) {
    const double limit = below * (1 - kRounding);
    const Problem glued = GlueDearTensors(problem, limit);
    Decision decision(glued, limit, emptiness, steps_left);
    std::optional<Assignment> found = decision.Run();
    if (!decision.finished()) break;
    if (!found) {
      result.finished = true;
      result.bound_ms = below;
      break;
    }
    Assignment assignment = Unglue(glued, problem, *std::move(found));
    const Score score = ScoreOf(problem, assignment);
    if (!score.is_valid) {
      emptiness = Emptiness::kAsDefined;
      continue;
    }
    result.better = std::move(assignment);
    result.value_ms = below = score.value_ms;
  }
  result.steps = options.max_steps - steps_left;
  return result;
}

}  // namespace autopart::internal
