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
//   - a downset whose remaining work, with what crosses to it, exceeds what the devices left can do
//     leads nowhere; so a stage must also be large enough, and what it sends leaves less room;
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
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "partitioner/internal/downset_table.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/stage_choice.h"
#include "partitioner/internal/stage_growth.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;
// Of the downsets met, and of the nodes' ancestors and descendants: as bits, n^2 / 4 bytes.
constexpr size_t kMostBytes = size_t{1} << 30;
constexpr size_t kMostNodes = 20'000;
constexpr int64_t kFirstSteps = 20'000'000;  // half a second

enum class Emptiness {
  kAnywhere,   // stages may stay empty, wherever they are in the chain: what domination assumes
  kAsDefined,  // by the problem's rule
};

// Bytes of a stage, and what it repeats, from the definitions (problem.h), by recompute level.
class StageMemory {
 public:
  explicit StageMemory(const Problem& problem)
      : problem_(problem),
        num_levels_(problem.num_recompute_levels),
        shared_seen_(problem.shared.size()),
        held_(problem.saved_values.size()),
        needs_(problem.saved_values.size()) {
    users_.resize(problem.nodes.size());
    for (size_t s = 0; s < problem.shared.size(); ++s) {
      for (const int n : problem.shared[s].nodes) users_[n].push_back(static_cast<int>(s));
    }
  }

  struct Bytes {
    double resident = 0, temporary = 0;
    double gradient = 0;  // of parameters with several users
    std::array<StageSums::Level, kMaxRecomputeLevels> levels;

    double Total(int level, int in_flight) const {
      return resident + in_flight * levels[level].flight_bytes + levels[level].once_bytes +
             temporary;
    }
  };

  // Of the nodes of `stage`, and of `extra` unless that is negative.
  Bytes Of(const Word* stage, int num_words, int extra, bool is_first) {
    ++walk_;
    kept_.clear();
    const auto made_here = [&](int value) {
      const int producer = problem_.saved_values[value].producer;
      return producer == kCaller ? is_first : producer == extra || HasBit(stage, producer);
    };
    Bytes bytes;
    ForEachBit(stage, num_words, [&](int n) { AddNode(n, made_here, bytes); });
    if (extra >= 0) AddNode(extra, made_here, bytes);
    for (const int value : kept_) AddValue(value, made_here(value), bytes);
    return bytes;
  }

 private:
  // The levels that need a value: those of a bit set.
  struct Need {
    uint32_t levels = 0;
    bool saved = false;  // by some node, rather than only read by nodes that run again
  };

  template <typename MadeHere>
  void AddNode(int n, MadeHere made_here, Bytes& bytes) {
    const Node& node = problem_.nodes[n];
    bytes.resident += node.resident_bytes;
    bytes.temporary = std::max(bytes.temporary, node.temporary_bytes);
    for (const int s : users_[n]) {
      if (std::exchange(shared_seen_[s], walk_) == walk_) continue;
      bytes.resident += problem_.shared[s].bytes;
      bytes.gradient += problem_.shared[s].gradient_bytes;
    }
    double again_ms = 0, again_bytes = 0;
    for (int l = 0; l < num_levels_; ++l) {
      if (l > 0) {
        again_ms += node.again_ms[l];
        again_bytes += node.again_flight_bytes[l];
      }
      bytes.levels[l].extra_ms += again_ms;
      bytes.levels[l].flight_bytes += node.flight_bytes - again_bytes;
      bytes.levels[l].once_bytes += again_bytes;
    }
    const uint32_t all = (1u << num_levels_) - 1;
    for (const int value : node.saves) Hold(value, {all, true}, made_here);
    for (const ReadAgain& read : node.reads) {
      if (read.level < num_levels_) {
        Hold(read.value, {all & ~((1u << read.level) - 1), false}, made_here);
      }
    }
  }

  template <typename MadeHere>
  void Hold(int value, Need need, MadeHere made_here) {
    while (made_here(value) && problem_.saved_values[value].view_of >= 0) {
      value = problem_.saved_values[value].view_of;
    }
    if (std::exchange(held_[value], walk_) != walk_) {
      kept_.push_back(value);
      needs_[value] = {};
    }
    needs_[value].levels |= need.levels;
    needs_[value].saved = needs_[value].saved || need.saved;
  }

  // A level keeps what it needs, unless the producer is here and runs again.
  void AddValue(int value, bool own, Bytes& bytes) const {
    const SavedValue& saved = problem_.saved_values[value];
    const double size = own ? saved.storage_bytes : saved.bytes;
    for (int l = 0; l < num_levels_; ++l) {
      if (own && l >= saved.level) {
        if (needs_[value].saved) bytes.levels[l].once_bytes += size;
      } else if (needs_[value].levels >> l & 1) {
        bytes.levels[l].flight_bytes += size;
      }
    }
  }

  const Problem& problem_;
  const int num_levels_;
  std::vector<std::vector<int>> users_;  // shared bytes of a node
  std::vector<int> shared_seen_, held_;
  std::vector<int> kept_;
  std::vector<Need> needs_;  // of those kept
  int walk_ = 0;
};

// The first recompute level that fits; num_levels() if none does.
int FirstThatFits(const StageChoices& choices, const StageChoices::Kind& kind,
                  const StageMemory::Bytes& bytes, int in_flight) {
  int level = choices.first_level();
  if (kind.is_cpu) return level;
  while (level < choices.num_levels() && bytes.Total(level, in_flight) > kind.memory_bytes) ++level;
  return level;
}

Load WithBytes(Load load, const StageMemory::Bytes& bytes, int level) {
  load.work += bytes.levels[level].extra_ms;
  load.gradient_bytes += bytes.gradient;
  return load;
}

// The decision for one limit.
class Decision {
 public:
  Decision(const Problem& problem, double limit, Emptiness emptiness, StepBudget& budget)
      : problem_(problem),
        choices_(problem),
        limit_(limit),
        emptiness_(emptiness),
        budget_(budget),
        growth_(problem, choices_),
        memory_(problem),
        state_words_((choices_.num_states() + 63) / 64),
        table_(growth_.num_words()),
        by_size_(problem.nodes.size() + 1),
        after_(growth_.num_words()),
        next_states_(state_words_) {
    for (int n = 0; n < growth_.num_nodes(); ++n) total_weight_ += growth_.weight(n);
    FindTransitions();
    FindCapacities();
    FindMemory();
  }

  // A chain within the limit, if the walk ended and there is one.
  std::optional<Assignment> Run() {
    std::vector<Word> none(growth_.num_words()), start(state_words_);
    for (int s = 0; s < choices_.num_states(); ++s) {
      if (choices_.MayStart(s)) SetBit(start.data(), s);
    }
    if (emptiness_ == Emptiness::kAnywhere) CloseUnderIdling(start.data());
    Reach(none.data(), 0, 0, 0, start.data());
    for (int size = 0; size < growth_.num_nodes() && !IsSolved(); ++size) {
      for (size_t i = 0; i < by_size_[size].size() && !IsSolved(); ++i) {
        const bool has_room = table_.bytes() + states_.size() * sizeof(Word) <= kMostBytes;
        const bool goes_on = has_room && GrowFrom(by_size_[size][i], size);
        if (!goes_on && !IsSolved()) return std::nullopt;
      }
      by_size_[size] = {};
    }
    finished_ = true;
    if (!IsSolved()) return std::nullopt;
    return ReadBack();
  }

  bool finished() const { return finished_; }

 private:
  using Kind = StageChoices::Kind;
  // A stage of some kind takes a chain from a state to one with less left.
  struct Transition {
    int from, to;
    int in_flight;
  };

  bool IsSolved() const { return solution_ >= 0; }

  void FindTransitions() {
    for (const Kind& kind : choices_.kinds()) {
      std::vector<Transition>& transitions = transitions_.emplace_back();
      for (int to = 0; to < choices_.num_states(); ++to) {
        if (!choices_.CanPrecede(kind, to)) continue;
        transitions.push_back({to + kind.step, to, choices_.InFlight(kind, to)});
      }
    }
  }

  // The most work that the devices left in a state can do.
  void FindCapacities() {
    double cpu_speed = 0;  // most accelerator time that a millisecond of a CPU stands for
    for (const Node& node : problem_.nodes) {
      if (node.work_ms > 0 && !std::isinf(node.work_ms)) {
        cpu_speed = std::max(cpu_speed, node.cpu_ms > 0 ? node.work_ms / node.cpu_ms : kInfinity);
      }
    }
    std::vector<double> speed;  // of a device, by type
    for (const Kind& kind : choices_.kinds()) {
      if (kind.type >= static_cast<int>(speed.size())) speed.resize(kind.type + 1);
      speed[kind.type] = kind.is_cpu ? cpu_speed : kind.share / kind.compute_share;
    }
    // A tensor that crosses is paid again behind, in the time of a device, unless sends overlap or
    // a CPU reads it.
    if (problem_.objective == Objective::kSum && problem_.num_cpus == 0) {
      crossing_weight_ = *std::min_element(speed.begin(), speed.end());
    }
    for (int state = 0; state < choices_.num_states(); ++state) {
      double capacity = 0;
      for (size_t t = 0; t < speed.size(); ++t) {
        const int left = choices_.Used(state, static_cast<int>(t));
        if (left > 0 && speed[t] > 0) capacity += left * limit_ * speed[t];
      }
      capacity_.push_back(capacity * (1 + 1e-12) + 1e-12 * total_weight_);
    }
  }

  void FindMemory() {
    makes_saved_.resize(problem_.nodes.size());
    for (const SavedValue& value : problem_.saved_values) {
      if (value.producer != kCaller) makes_saved_[value.producer] = true;
    }
    if (!CountsBytes(problem_)) return;
    detailed_memory_ = !problem_.shared.empty() || !problem_.saved_values.empty() ||
                       problem_.num_recompute_levels > 1;
    for (const Node& node : problem_.nodes) {
      detailed_memory_ = detailed_memory_ || node.flight_bytes > 0 || node.temporary_bytes > 0;
    }
  }

  void CloseUnderIdling(Word* states) const {
    for (int s = choices_.num_states() - 1; s > 0; --s) {
      if (!HasBit(states, s)) continue;
      for (const Kind& kind : choices_.kinds()) {
        if (s >= kind.step && choices_.CanPrecede(kind, s - kind.step) &&
            choices_.Used(s, kind.type) >= kind.replicas) {
          SetBit(states, s - kind.step);
        }
      }
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
  bool GrowFrom(int id, int size) {
    const std::vector<Word> before(table_.bits(id), table_.bits(id) + growth_.num_words());
    const std::vector<Word> states(StatesOf(id), StatesOf(id) + state_words_);
    for (size_t k = 0; k < choices_.kinds().size(); ++k) {
      usable_.clear();
      double most = -kInfinity;
      for (const Transition& transition : transitions_[k]) {
        if (!HasBit(states.data(), transition.from)) continue;
        usable_.push_back(transition);
        most = std::max(most, capacity_[transition.to]);
      }
      if (usable_.empty()) continue;
      const double least_weight = total_weight_ - weights_[id] - most;
      if (!GrowKind(id, size, before,
                    {limit_, least_weight, crossing_weight_, choices_.kinds()[k]}))
        return false;
    }
    return true;
  }

  bool GrowKind(int id, int size, const std::vector<Word>& before,
                const StageGrowth::Limits& limits) {
    const double weight = weights_[id];
    const uint64_t hash = table_.hash(id);
    const bool is_first = id == 0, is_detailed = detailed_memory_ && !limits.kind.is_cpu;
    const auto leaf = [&] {
      const int size_after = size + growth_.stage_nodes();
      const double rest = total_weight_ - weight - growth_.stage_weight();
      StageMemory::Bytes bytes;
      if (is_detailed) {
        bytes = BytesOf(is_first, growth_.stage(), kNone);
        budget_.Count(growth_.stage_nodes());
      }
      const bool has_links = choices_.has_links() && !limits.kind.is_cpu;
      Load load = growth_.load();
      if (has_links) {
        for (int w = 0; w < growth_.num_words(); ++w) after_[w] = before[w] | growth_.stage()[w];
        load = growth_.Evaluate(before.data(), after_.data(), false);
        budget_.Count(growth_.num_nodes());
      }
      std::fill(next_states_.begin(), next_states_.end(), 0);
      bool any = false;
      for (const Transition& transition : usable_) {
        if (capacity_[transition.to] < rest + crossing_weight_ * growth_.crossing()) continue;
        if (size_after == growth_.num_nodes() && !MayEnd(transition.to)) continue;
        if ((is_detailed || has_links) && !Fits(limits.kind, load, bytes, transition)) continue;
        SetBit(next_states_.data(), transition.to);
        any = true;
      }
      if (!any) return true;
      if (emptiness_ == Emptiness::kAnywhere) {
        const auto may_join = [&](int node, const Load& with) {
          return !is_detailed || FitsWith(node, with, limits.kind, is_first, bytes);
        };
        if (growth_.IsDominated(may_join)) return true;
        if (detailed_memory_) CloseUnderIdling(next_states_.data());
      }
      for (int w = 0; w < growth_.num_words(); ++w) after_[w] = before[w] | growth_.stage()[w];
      Reach(after_.data(), hash ^ growth_.stage_hash(), size_after, weight + growth_.stage_weight(),
            next_states_.data());
      return !IsSolved();
    };
    return growth_.Grow(before.data(), limits, budget_, leaf);
  }

  bool Fits(const Kind& kind, const Load& load, const StageMemory::Bytes& bytes,
            const Transition& transition) const {
    const int level = FirstThatFits(choices_, kind, bytes, transition.in_flight);
    return level < choices_.num_levels() &&
           growth_.LoadOf(kind, WithBytes(load, bytes, level), choices_.LinksOf(transition.to)) <=
               limit_;
  }

  // Does the stage with the node fit wherever that without it does? And stages that lose the node
  // need no more: one that makes a value which others keep might.
  bool FitsWith(int node, const Load& with, const Kind& kind, bool is_first,
                const StageMemory::Bytes& without) {
    if (makes_saved_[node]) return false;
    budget_.Count(growth_.stage_nodes());
    const StageMemory::Bytes bytes = BytesOf(is_first, growth_.stage(), node);
    return std::all_of(usable_.begin(), usable_.end(), [&](const Transition& transition) {
      return Fits(kind, with, bytes, transition) ||
             !Fits(kind, growth_.load(), without, transition);
    });
  }

  bool MayEnd(int state) const {
    return emptiness_ == Emptiness::kAnywhere || choices_.MayEnd(state);
  }

  StageMemory::Bytes BytesOf(bool is_first, const Word* stage, int extra) {
    return memory_.Of(stage, growth_.num_words(), extra, is_first);
  }

  // From the whole set back to the empty one, over downsets reached from which the rest is one
  // stage; of those the stage with the least load.
  Assignment ReadBack() {
    const int words = growth_.num_words();
    std::vector<std::vector<int>> stages;  // from the last
    std::vector<Step> steps;
    int id = solution_;
    std::vector<Word> states(StatesOf(id), StatesOf(id) + state_words_);
    while (id != 0) {
      const std::vector<Word> after(table_.bits(id), table_.bits(id) + words);
      Step step;
      for (int from = 0; from < table_.size(); ++from) {
        const Word* before = table_.bits(from);
        bool is_subset = from != id;
        for (int w = 0; w < words && is_subset; ++w) is_subset = (before[w] & ~after[w]) == 0;
        if (is_subset) Consider(from, after, states, step);
      }
      stages.emplace_back();
      for (int n = 0; n < growth_.num_nodes(); ++n) {
        if (HasBit(after.data(), n) && !HasBit(table_.bits(step.from), n)) {
          stages.back().push_back(n);
        }
      }
      steps.push_back(step);
      id = step.from;
      std::fill(states.begin(), states.end(), 0);
      SetBit(states.data(), step.state);
    }
    return ToAssignment(stages, steps);
  }

  struct Step {
    int from = kNone, state = kNone, kind = kNone, level = 0;
    double load = kInfinity;
  };

  // Can a stage from `from` to `after` end in one of the states, and is it the best so far?
  void Consider(int from, const std::vector<Word>& after, const std::vector<Word>& states,
                Step& step) {
    const Word* before = table_.bits(from);
    std::vector<Word> stage(after);
    for (int w = 0; w < growth_.num_words(); ++w) stage[w] &= ~before[w];
    const StageMemory::Bytes bytes = BytesOf(from == 0, stage.data(), kNone);
    for (size_t k = 0; k < choices_.kinds().size(); ++k) {
      const Kind& kind = choices_.kinds()[k];
      const Load load = growth_.Evaluate(before, after.data(), kind.is_cpu);
      for (const Transition& transition : transitions_[k]) {
        if (!HasBit(StatesOf(from), transition.from)) continue;
        if (!HasBit(states.data(), transition.to)) continue;
        const int level = FirstThatFits(choices_, kind, bytes, transition.in_flight);
        if (level == choices_.num_levels()) continue;
        const double value =
            growth_.LoadOf(kind, kind.is_cpu ? load : WithBytes(load, bytes, level),
                           choices_.LinksOf(transition.to));
        if (!(value < step.load) || value > limit_ * (1 + 1e-12)) continue;
        step = {from, transition.from, static_cast<int>(k), level, value};
      }
    }
  }

  Assignment ToAssignment(const std::vector<std::vector<int>>& stages,
                          const std::vector<Step>& steps) const {
    Assignment assignment;
    assignment.stage_of_node.resize(problem_.nodes.size());
    int state = choices_.num_states() - 1;
    const int count = static_cast<int>(stages.size());
    for (int s = 0; s < count; ++s) {
      const Step& step = steps[count - 1 - s];
      const Kind& kind = choices_.kinds()[step.kind];
      for (const int n : stages[count - 1 - s]) assignment.stage_of_node[n] = s;
      assignment.is_cpu.push_back(kind.is_cpu);
      assignment.choices.push_back({kind.type, kind.replicas, step.level});
      state -= kind.step;
    }
    if (problem_.device_types.empty()) choices_.AddEmptyStages(state, assignment);
    return assignment;
  }

  static constexpr int kNone = -1;

  const Problem& problem_;
  const StageChoices choices_;
  const double limit_;
  const Emptiness emptiness_;
  StepBudget& budget_;
  StageGrowth growth_;
  StageMemory memory_;
  const int state_words_;
  double total_weight_ = 0;
  std::vector<std::vector<Transition>> transitions_;  // by kind
  std::vector<double> capacity_;                      // of a state
  double crossing_weight_ = 0;                        // see StageGrowth::Limits
  std::vector<bool> makes_saved_;
  bool detailed_memory_ = false;  // bytes are more than a number of each node

  DownsetTable table_;  // 0: the empty set
  std::vector<double> weights_;
  std::vector<Word> states_;
  std::vector<std::vector<int>> by_size_;
  int solution_ = kNone;
  bool finished_ = false;
  // Of the present growth.
  std::vector<Transition> usable_;
  std::vector<Word> after_, next_states_;
};

// Does the assignment keep to the rules on states, empty stages and memory? And its value. From the
// definitions, without what the search found out.
struct Score {
  bool is_valid = true;
  double value_ms = 0;
  double bytes = 0;  // of the stage that needs most
};
Score ScoreOf(const Problem& problem, const Assignment& assignment) {
  const StageChoices choices(problem);
  const StageGrowth growth(problem, choices);
  StageMemory memory(problem);
  const int words = growth.num_words();
  std::vector<Word> after(words, ~Word{0}), before, stage;
  Score score;
  int state = choices.EndState(static_cast<int>(assignment.is_cpu.size()));
  for (int s = static_cast<int>(assignment.is_cpu.size()) - 1; s >= 0; --s) {
    const StageChoice& choice = assignment.choices[s];
    const auto kind = std::find_if(
        choices.kinds().begin(), choices.kinds().end(),
        [&](const auto& k) { return k.type == choice.type && k.replicas == choice.replicas; });
    if (kind == choices.kinds().end() || !choices.CanPrecede(*kind, state)) return {false, 0, 0};
    before.assign(words, 0);
    stage.assign(words, 0);
    bool is_empty = true, is_first = true;
    for (int n = 0; n < growth.num_nodes(); ++n) {
      if (assignment.stage_of_node[n] < s) {
        SetBit(before.data(), n);
        is_first = false;
      } else if (assignment.stage_of_node[n] == s) {
        SetBit(stage.data(), n);
        is_empty = false;
      }
    }
    if (is_empty) {
      score.is_valid = score.is_valid && problem.allow_empty_stages;
    } else {
      const StageMemory::Bytes bytes = memory.Of(stage.data(), words, -1, is_first);
      Load load = growth.Evaluate(before.data(), after.data(), kind->is_cpu);
      if (!kind->is_cpu) {
        load = WithBytes(load, bytes, choice.recompute_level);
        const double needs = bytes.Total(choice.recompute_level, choices.InFlight(*kind, state));
        score.is_valid = score.is_valid && needs <= kind->memory_bytes;
        score.bytes = std::max(score.bytes, needs);
      }
      score.value_ms = std::max(score.value_ms, growth.LoadOf(*kind, load, choices.LinksOf(state)));
      after = before;
    }
    state += kind->step;
  }
  score.is_valid = score.is_valid && choices.MayStart(state);
  return score;
}

double AboveAnyLoad(const Problem& problem) {
  double sum = 1, gradient_bytes = 0;
  for (const Node& node : problem.nodes) {
    if (!std::isinf(node.work_ms)) sum += node.work_ms;
    sum += node.cpu_ms;
    gradient_bytes += node.gradient_bytes;
  }
  for (const SharedBytes& shared : problem.shared) gradient_bytes += shared.gradient_bytes;
  double slowest = 1;  // link
  for (const double slowness : problem.link_slowness) slowest = std::max(slowest, slowness);
  for (const Tensor& tensor : problem.tensors) {
    sum += slowest * (tensor.forward_ms + tensor.backward_ms);
  }
  double most = 0;
  const StageChoices choices(problem);
  for (const StageChoices::Kind& kind : choices.kinds()) {
    most = std::max(most, sum * std::max(1.0, kind.compute_share) +
                              gradient_bytes * kind.all_reduce_ms_per_byte);
  }
  return 2 * most;
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

// With less to keep to, and nothing to recompute.
Problem WithoutMemoryLimits(Problem problem) {
  problem.memory_bytes = kInfinity;
  for (DeviceType& type : problem.device_types) type.memory_bytes = kInfinity;
  problem.first_recompute_level = 0;
  problem.num_recompute_levels = 1;
  return problem;
}

ExactResult SearchLevels(const Problem& problem, const ExactOptions& options) {
  ExactResult result;
  result.bound_ms = options.bound_ms;
  double below = std::isinf(options.below_ms) ? AboveAnyLoad(problem) : options.below_ms;
  // Over unequal links a larger stage may cost the next ones more.
  Emptiness emptiness =
      problem.link_slowness.empty() ? Emptiness::kAnywhere : Emptiness::kAsDefined;

  enum class Answer { kNone, kBetter, kUnknown };
  const auto decide = [&](double limit, int64_t max_steps) {
    while (true) {
      const Problem glued = GlueDearTensors(problem, limit);
      StepBudget budget(std::min(max_steps, options.max_steps - result.steps), options.stop);
      Decision decision(glued, limit, emptiness, budget);
      std::optional<Assignment> found = decision.Run();
      result.steps += budget.spent();
      if (!decision.finished()) return Answer::kUnknown;
      if (!found) {
        result.bound_ms = std::max(result.bound_ms, limit);
        return Answer::kNone;
      }
      Assignment assignment = Unglue(glued, problem, *std::move(found));
      const Score score = ScoreOf(problem, assignment);
      if (score.is_valid) {
        result.better = std::move(assignment);
        result.value_ms = below = score.value_ms;
        return Answer::kBetter;
      }
      emptiness = Emptiness::kAsDefined;
    }
  };

  // Mostly the value known is the best. If it is not, or if that is hard to tell, look further
  // below first: lower limits are decided sooner, a better value found there saves many small steps
  // down, and each "no" is a bound.
  const int64_t first = std::min(options.max_steps / 3, kFirstSteps);
  result.finished = decide(below * (1 - kRounding), first) == Answer::kNone;
  const bool is_done = result.finished || (options.any_will_do && result.better);
  for (double gap = 0.08; !is_done && !result.finished;) {
    const double limit = below * (1 - std::max(gap, kRounding));
    const Answer answer =
        limit <= result.bound_ms ? Answer::kNone : decide(limit, options.max_steps);
    if (answer == Answer::kUnknown) break;
    if (options.any_will_do && result.better) break;
    if (answer == Answer::kBetter) continue;
    result.finished = gap == 0;
    gap = gap < 1e-4 ? 0 : gap / 4;
  }
  if (result.finished) result.bound_ms = below;
  return result;
}

}  // namespace

ExactResult SearchExactly(const Problem& problem, const ExactOptions& options) {
  ExactResult result;
  if (problem.nodes.size() > kMostNodes || options.max_steps == 0) return result;
  if (problem.more_replicas_are_allowed) {
    result = SearchLevels(problem, options);
    result.finished = false;
    result.bound_ms = options.bound_ms;
    return result;
  }
  if (problem.num_recompute_levels - problem.first_recompute_level == 1) {
    return SearchLevels(problem, options);
  }
  // The levels are not all that a stage may choose, so among them a better answer can be found, but
  // nothing proven.
  ExactOptions half = options;
  half.max_steps = (options.max_steps + 1) / 2;
  result = SearchLevels(problem, half);
  if (result.better) half.below_ms = result.value_ms;
  const ExactResult bound = SearchLevels(WithoutMemoryLimits(problem), half);
  result.finished = bound.finished && !bound.better;
  result.bound_ms = bound.bound_ms;
  result.steps += bound.steps;
  return result;
}

LeastMemory FindLeastMemory(const Problem& problem, LeastMemory known,
                            const ExactOptions& options) {
  Problem limited = problem;
  LeastMemory least = std::move(known);
  ExactOptions left = options;
  left.below_ms = kInfinity;
  left.any_will_do = true;
  double too_little = problem.memory_bytes;
  // First far below what is known, so as not to come down a byte at a time.
  for (double gap = 0.5; !least.proven;) {
    limited.memory_bytes =
        gap == 0 ? least.bytes * (1 - kRounding) : least.bytes - gap * (least.bytes - too_little);
    const bool is_known = limited.memory_bytes <= too_little;
    const ExactResult result = is_known ? ExactResult{} : SearchExactly(limited, left);
    left.max_steps -= result.steps;
    if (result.better) {
      least.assignment = *result.better;
      least.bytes = ScoreOf(limited, least.assignment).bytes;
    } else if (result.finished || is_known) {
      too_little = std::max(too_little, limited.memory_bytes);
      least.proven = gap == 0;
      gap = gap < 1e-3 ? 0 : gap / 4;
    } else {
      break;
    }
  }
  return least;
}

}  // namespace autopart::internal
