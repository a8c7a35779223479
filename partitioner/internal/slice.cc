#include "partitioner/internal/slice.h"

#include <algorithm>
#include <cmath>

#include "partitioner/internal/blocks.h"
#include "partitioner/internal/stage_choice.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The stage of blocks [start, end) while start walks down from end.
class Window {
 public:
  Window(const Problem& problem, const Blocks& blocks, bool with_memory)
      : blocks_(blocks),
        sides_differ_(problem.objective == Objective::kOverlap || !problem.link_slowness.empty()),
        with_memory_(with_memory),
        num_levels_(problem.num_recompute_levels),
        shared_seen_(blocks.shared_items.size()),
        held_(blocks.saved_values.size()) {
    if (num_levels_ > 1) needs_.resize(blocks.saved_values.size());
  }

  void Reset(int end) {
    ++walk_;
    end_ = end;
    sums_ = {};
  }

  // Takes in `block`, the one before those inside.
  void Extend(int block) {
    sums_.work_ms += blocks_.work_ms[block];
    sums_.cpu_ms += blocks_.cpu_ms[block];
    sums_.needs_cpu = sums_.needs_cpu || blocks_.needs_cpu[block];
    for (const Touch& touch : blocks_.touches[block]) ExtendTensor(touch, block);
    if (with_memory_) ExtendMemory(block);
  }

  const StageSums& sums() const { return sums_; }

 private:
  // The first block of a tensor to come in adds its time; the block that makes the tensor whole
  // takes it off; the producer turns a receiver into a sender.
  void ExtendTensor(const Touch& touch, int block) {
    const bool was_cut = touch.next < end_;
    const bool is_cut = touch.last >= end_;
    const bool turns = touch.producer == block && sides_differ_;
    if (was_cut && is_cut && !turns) return;
    const bool after = touch.producer < end_;
    if (was_cut) Charge(touch, touch.producer > block && after, -1);
    if (is_cut) Charge(touch, touch.producer >= block && after, 1);
  }

  void Charge(const Touch& touch, bool producer_inside, double sign) {
    (producer_inside ? sums_.out_forward_ms : sums_.in_forward_ms) += sign * touch.forward_ms;
    (producer_inside ? sums_.out_backward_ms : sums_.in_backward_ms) += sign * touch.backward_ms;
  }

  void ExtendMemory(int block) {
    sums_.resident_bytes += blocks_.resident_bytes[block];
    sums_.gradient_bytes += blocks_.gradient_bytes[block];
    sums_.temporary_bytes = std::max(sums_.temporary_bytes, blocks_.temporary_bytes[block]);
    for (const int item : blocks_.shared[block]) {
      if (shared_seen_[item] == walk_) continue;
      shared_seen_[item] = walk_;
      sums_.resident_bytes += blocks_.shared_items[item].bytes;
      sums_.gradient_bytes += blocks_.shared_items[item].gradient_bytes;
    }
    if (num_levels_ > 1) return ExtendLevels(block);
    sums_.levels[0].flight_bytes += blocks_.flight_bytes[block];
    // Values made here that later blocks keep were messages so far; now they are the memory that
    // they view, or their own.
    moved_.clear();
    for (const int value : blocks_.produces[block]) {
      if (held_[value] != walk_) continue;
      held_[value] = 0;
      sums_.levels[0].flight_bytes -= blocks_.saved_values[value].bytes;
      moved_.push_back(value);
    }
    for (const int value : moved_) Hold(value, block);
    for (const int value : blocks_.saves[block]) Hold(value, block);
  }

  void Hold(int value, int start) {
    const std::vector<SavedValue>& values = blocks_.saved_values;
    while (values[value].producer >= start && values[value].view_of >= 0) {
      value = values[value].view_of;
    }
    if (held_[value] == walk_) return;
    held_[value] = walk_;
    sums_.levels[0].flight_bytes +=
        values[value].producer >= start ? values[value].storage_bytes : values[value].bytes;
  }

  // The same where stages may recompute, for all levels at once. Which levels need a value: those
  // of a bit set. A level keeps what it needs unless its producer is here and runs again.
  struct Need {
    uint32_t levels = 0;
    bool saved = false;  // by some node, rather than only read by nodes that run again
  };

  void ExtendLevels(int block) {
    double again_ms = 0, again_bytes = 0;
    sums_.levels[0].flight_bytes += blocks_.flight_bytes[block];
    for (int l = 1; l < num_levels_; ++l) {
      again_ms += blocks_.again_ms[block * num_levels_ + l];
      again_bytes += blocks_.again_flight_bytes[block * num_levels_ + l];
      sums_.levels[l].extra_ms += again_ms;
      sums_.levels[l].flight_bytes += blocks_.flight_bytes[block] - again_bytes;
      sums_.levels[l].once_bytes += again_bytes;
    }
    moved_.clear();
    for (const int value : blocks_.produces[block]) {
      if (held_[value] != walk_) continue;
      held_[value] = 0;
      CountMemory(blocks_.saved_values[value], false, needs_[value], -1);
      moved_.push_back(value);
    }
    for (const int value : moved_) HoldFor(value, needs_[value], block);
    const uint32_t all = (1u << num_levels_) - 1;
    for (const int value : blocks_.saves[block]) HoldFor(value, {all, true}, block);
    for (const ReadAgain& read : blocks_.reads[block]) {
      if (read.level < num_levels_)
        HoldFor(read.value, {all & ~((1u << read.level) - 1), false}, block);
    }
  }

  void HoldFor(int value, Need need, int start) {
    const std::vector<SavedValue>& values = blocks_.saved_values;
    while (values[value].producer >= start && values[value].view_of >= 0) {
      value = values[value].view_of;
    }
    const bool is_new = held_[value] != walk_;
    const Need before = is_new ? Need{} : needs_[value];
    const Need after = {before.levels | need.levels, before.saved || need.saved};
    held_[value] = walk_;
    needs_[value] = after;
    if (after.levels == before.levels && after.saved == before.saved) return;
    const bool own = values[value].producer >= start;
    if (!is_new) CountMemory(values[value], own, before, -1);
    CountMemory(values[value], own, after, 1);
  }

  void CountMemory(const SavedValue& value, bool own, Need need, double sign) {
    const double bytes = sign * (own ? value.storage_bytes : value.bytes);
    const int again_from = own ? value.level : num_levels_;
    for (int l = 0; l < num_levels_; ++l) {
      if (l >= again_from) {
        if (need.saved) sums_.levels[l].once_bytes += bytes;
      } else if (need.levels >> l & 1) {
        sums_.levels[l].flight_bytes += bytes;
      }
    }
  }

  const Blocks& blocks_;
  const bool sides_differ_;  // in what a stage pays for a tensor that it makes or that it gets
  const bool with_memory_;
  const int num_levels_;
  int walk_ = 0;  // marks what this walk has seen
  int end_ = 0;

  StageSums sums_;
  std::vector<int> shared_seen_, held_;
  std::vector<Need> needs_;  // of what is held
  std::vector<int> moved_;
};

// The dynamic programme over the states of StageChoices.
class SliceProgramme {
 public:
  SliceProgramme(const Problem& problem, const Blocks& blocks, const SliceOptions& options,
                 bool with_memory)
      : problem_(problem),
        choices_(problem),
        blocks_(blocks),
        options_(options),
        with_memory_(with_memory),
        bound_(options.bound_ms + 1e-12 * std::abs(options.bound_ms)),
        inverse_bound_(options.bound_ms > 0 ? 1 / options.bound_ms : 1),
        takes_maximum_(options.goal == SliceGoal::kBottleneck ||
                       options.goal == SliceGoal::kMemory),
        num_states_(choices_.num_states()),
        cells_(static_cast<size_t>(num_states_) * (blocks.count + 1)),
        work_before_(blocks.count + 1) {
    for (int b = 0; b < blocks.count; ++b)
      work_before_[b + 1] = work_before_[b] + blocks.work_ms[b];
    for (int b = 0; b < blocks.count; ++b) {
      if (blocks.work_ms[b] > 0) {
        cpu_speed_ = std::max(
            cpu_speed_, blocks.cpu_ms[b] > 0 ? blocks.work_ms[b] / blocks.cpu_ms[b] : kInfinity);
      }
    }
  }

  std::optional<Slicing> Run() {
    FindLatestStarts();
    for (int s = 0; s < num_states_; ++s) {
      if (choices_.MayEnd(s)) At(s, blocks_.count).value = 0;
    }
    Window window(problem_, blocks_, with_memory_);
    for (int end = blocks_.count; end > 0; --end) WalkFrom(end, window);
    return ReadBack();
  }

 private:
  struct Cell {
    double value = kInfinity;
    double load_ms = 0;  // of the first stage
    int end = -1;        // of the first stage
    int16_t kind = 0, level = 0;
  };
  // One more stage of some kind in front of a chain that begins at the present end.
  struct Move {
    int to;  // state
    int in_flight;
    int latest_start;  // that is of use
    double value;      // of the chain behind
  };
  // The moves of one kind: a stretch of moves_.
  struct Group {
    int kind;
    size_t begin, end;
  };

  Cell& At(int state, int block) {
    return cells_[static_cast<size_t>(block) * num_states_ + state];
  }

  // The devices not yet used in a state have to take all work before it: where it is useful at the
  // latest.
  void FindLatestStarts() {
    for (int s = 0; s < num_states_; ++s) {
      const double capacity = choices_.CapacityBefore(s, bound_, cpu_speed_) * (1 + 1e-9);
      const auto too_late = std::upper_bound(work_before_.begin(), work_before_.end(), capacity);
      latest_start_.push_back(static_cast<int>(too_late - work_before_.begin()) - 1);
    }
  }

  void FindMoves(int end) {
    states_.clear();
    for (int s = 0; s < num_states_; ++s) {
      if (At(s, end).value < kInfinity && end <= latest_start_[s]) states_.push_back(s);
    }
    groups_.clear();
    moves_.clear();
    for (size_t k = 0; k < choices_.kinds().size(); ++k) {
      const StageChoices::Kind& kind = choices_.kinds()[k];
      const size_t begin = moves_.size();
      for (const int state : states_) {
        if (!choices_.CanPrecede(kind, state)) continue;
        const int to = state + kind.step;
        if (latest_start_[to] < 0) continue;
        moves_.push_back(
            {to, choices_.InFlight(kind, state), latest_start_[to], At(state, end).value});
      }
      if (moves_.size() > begin) groups_.push_back({static_cast<int>(k), begin, moves_.size()});
    }
  }

  void WalkFrom(int end, Window& window) {
    FindMoves(end);
    window.Reset(end);
    for (int start = end - 1; start >= 0 && !groups_.empty(); --start) {
      window.Extend(start);
      for (size_t g = 0; g < groups_.size();) {
        if (IsFull(choices_.kinds()[groups_[g].kind], window.sums())) {
          groups_.erase(groups_.begin() + g);
        } else {
          OfferAll(groups_[g++], start, end, window.sums());
        }
      }
    }
  }

  // Neither this set nor a larger one will do.
  bool IsFull(const StageChoices::Kind& kind, const StageSums& sums) const {
    if (StageChoices::LeastLoadMs(kind, sums) > bound_) return true;
    return with_memory_ && options_.goal != SliceGoal::kMemory &&
           StageChoices::LeastBytes(kind, sums) > kind.memory_bytes;
  }

  void OfferAll(const Group& group, int start, int end, const StageSums& sums) {
    const StageChoices::Kind& kind = choices_.kinds()[group.kind];
    const double communication = kind.is_cpu ? 0 : sums.communication_ms();
    const bool by_memory = options_.goal == SliceGoal::kMemory;
    int level = choices_.first_level();
    // Over links as fast as any: no state makes it less.
    double load = choices_.LoadMs(kind, sums, level);
    if (load > bound_) return;
    double cost = CostOf(load, communication);
    const bool with_links = choices_.has_links() && !kind.is_cpu;
    for (size_t m = group.begin; m < group.end; ++m) {
      const Move& move = moves_[m];
      if (start > move.latest_start) continue;
      if (with_memory_) {
        const int fits = by_memory ? choices_.Smallest(kind, sums, move.in_flight)
                                   : choices_.FirstThatFits(kind, sums, move.in_flight);
        if (fits == choices_.num_levels()) continue;
        if (fits != level && !with_links) {
          load = choices_.LoadMs(kind, sums, fits);
          cost = CostOf(load, communication);
        }
        level = fits;
      }
      if (with_links) {
        load = choices_.LoadMs(kind, sums, level, choices_.LinksOf(move.to - kind.step));
        cost = CostOf(load, communication);
      }
      if (by_memory) cost = StageChoices::MemoryBytes(kind, sums, level, move.in_flight);
      if (load > bound_) continue;
      const double value = takes_maximum_ ? std::max(cost, move.value) : cost + move.value;
      Cell& cell = At(move.to, start);
      if (value < cell.value) {
        cell = {value, load, end, static_cast<int16_t>(group.kind), static_cast<int16_t>(level)};
      }
    }
  }

  // What a stage adds to the goal (kMemory knows better).
  double CostOf(double load, double communication) const {
    switch (options_.goal) {
      case SliceGoal::kEvenLoads: {
        const double x = load * inverse_bound_, x2 = x * x, x4 = x2 * x2, x8 = x4 * x4;
        return x8 * x8 * x8;
      }
      case SliceGoal::kCommunication:
        return communication + 1e-6 * load * load * inverse_bound_;
      default:
        return load;
    }
  }

  std::optional<Slicing> ReadBack() {
    int state = -1;
    for (int s = 0; s < num_states_; ++s) {
      if (choices_.MayStart(s) && (state < 0 || At(s, 0).value < At(state, 0).value)) state = s;
    }
    if (state < 0 || At(state, 0).value == kInfinity) return std::nullopt;
    Slicing slicing;
    slicing.value = At(state, 0).value;
    std::vector<int> stage_of_block(blocks_.count);
    for (int block = 0, stage = 0; block < blocks_.count; ++stage) {
      const Cell& cell = At(state, block);
      const StageChoices::Kind& kind = choices_.kinds()[cell.kind];
      slicing.assignment.is_cpu.push_back(kind.is_cpu);
      slicing.assignment.choices.push_back({kind.type, kind.replicas, cell.level});
      if (cell.load_ms > slicing.max_load_ms) {
        slicing.max_load_ms = cell.load_ms;
        slicing.heaviest_stage = stage;
      }
      state -= kind.step;
      for (; block < cell.end; ++block) stage_of_block[block] = stage;
    }
    choices_.AddEmptyStages(state, slicing.assignment);
    for (const int block : blocks_.of_node) {
      slicing.assignment.stage_of_node.push_back(stage_of_block[block]);
    }
    return slicing;
  }

  const Problem& problem_;
  const StageChoices choices_;
  const Blocks& blocks_;
  const SliceOptions& options_;
  const bool with_memory_;
  const double bound_, inverse_bound_;
  const bool takes_maximum_;
  const int num_states_;
  std::vector<Cell> cells_;          // by block, then by state
  std::vector<double> work_before_;  // of the blocks before each
  double cpu_speed_ = 0;             // most accelerator time that a millisecond of a CPU can save
  std::vector<int> latest_start_;    // by state
  // Of the present end.
  std::vector<int> states_;
  std::vector<Move> moves_;
  std::vector<Group> groups_;
};

}  // namespace

std::optional<Slicing> Slice(const Problem& problem, const Order& order,
                             const SliceOptions& options) {
  const bool with_memory = options.goal == SliceGoal::kMemory || CountsBytes(problem);
  // Cells are by state and block. Many states (replicas of many devices) leave fewer places to cut.
  constexpr int64_t kMostCells = 10'000'000;
  const int64_t num_states = StageChoices(problem).num_states();
  const int64_t places =
      std::max<int64_t>(kMostCells / num_states, 4 * int64_t{problem.num_stages});
  const int max_blocks = static_cast<int>(std::min<int64_t>(options.max_blocks, places));
  const Blocks blocks(problem, order,
                      problem.device_types.empty() ? options.max_blocks : max_blocks, with_memory);
  return SliceProgramme(problem, blocks, options, with_memory).Run();
}

}  // namespace autopart::internal
