#include "partitioner/internal/slice.h"

#include <algorithm>
#include <cmath>

#include "partitioner/internal/blocks.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The stage of blocks [start, end) while start walks down from end.
class Window {
 public:
  Window(const Blocks& blocks, Objective objective, bool with_memory)
      : blocks_(blocks),
        objective_(objective),
        with_memory_(with_memory),
        shared_seen_(blocks.shared_bytes.size()),
        held_(blocks.saved_values.size()) {}

  void Reset(int end) {
    ++walk_;
    end_ = end;
    work_ = cpu_ = send_ = receive_ = 0;
    resident_ = flight_ = temporary_ = 0;
    needs_cpu_ = false;
  }

  // Takes in `block`, the one before those inside.
  void Extend(int block) {
    work_ += blocks_.work_ms[block];
    cpu_ += blocks_.cpu_ms[block];
    needs_cpu_ = needs_cpu_ || blocks_.needs_cpu[block];
    for (const Touch& touch : blocks_.touches[block]) ExtendTensor(touch, block);
    if (with_memory_) ExtendMemory(block);
  }

  double work_ms() const { return needs_cpu_ ? kInfinity : work_; }
  double cpu_ms() const { return cpu_; }
  double communication_ms() const { return send_ + receive_; }
  double load_ms() const {
    if (needs_cpu_) return kInfinity;
    return objective_ == Objective::kSum ? work_ + send_ + receive_
                                         : std::max({work_, send_, receive_});
  }
  double memory_bytes(int in_flight) const { return resident_ + in_flight * flight_ + temporary_; }
  double resident_bytes() const { return resident_; }

 private:
  // The first block of a tensor to come in adds its time; the block that makes the tensor whole
  // takes it off; the producer turns a receiver into a sender.
  void ExtendTensor(const Touch& touch, int block) {
    const bool was_cut = touch.next < end_;
    const bool is_cut = touch.last >= end_;
    const bool turns = touch.producer == block && objective_ == Objective::kOverlap;
    if (was_cut && is_cut && !turns) return;
    const bool after = touch.producer < end_;
    if (was_cut) Charge(touch, touch.producer > block && after, -1);
    if (is_cut) Charge(touch, touch.producer >= block && after, 1);
  }

  void Charge(const Touch& touch, bool producer_inside, double sign) {
    send_ += sign * (producer_inside ? touch.forward_ms : touch.backward_ms);
    receive_ += sign * (producer_inside ? touch.backward_ms : touch.forward_ms);
  }

  void ExtendMemory(int block) {
    resident_ += blocks_.resident_bytes[block];
    flight_ += blocks_.flight_bytes[block];
    temporary_ = std::max(temporary_, blocks_.temporary_bytes[block]);
    for (const int item : blocks_.shared[block]) {
      if (shared_seen_[item] == walk_) continue;
      shared_seen_[item] = walk_;
      resident_ += blocks_.shared_bytes[item];
    }
    // Values made here that later blocks keep were messages so far; now they are the memory that
    // they view, or their own.
    moved_.clear();
    for (const int value : blocks_.produces[block]) {
      if (held_[value] != walk_) continue;
      held_[value] = 0;
      flight_ -= blocks_.saved_values[value].bytes;
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
    flight_ += values[value].producer >= start ? values[value].storage_bytes : values[value].bytes;
  }

  const Blocks& blocks_;
  const Objective objective_;
  const bool with_memory_;
  int walk_ = 0;  // marks what this walk has seen
  int end_ = 0;

  double work_ = 0, cpu_ = 0, send_ = 0, receive_ = 0;
  bool needs_cpu_ = false;
  double resident_ = 0, flight_ = 0, temporary_ = 0;
  std::vector<int> shared_seen_, held_;
  std::vector<int> moved_;
};

// The dynamic programme. A state is (accelerators behind, CPUs behind).
class SliceProgramme {
 public:
  SliceProgramme(const Problem& problem, const Blocks& blocks, const SliceOptions& options,
                 bool with_memory)
      : problem_(problem),
        blocks_(blocks),
        options_(options),
        with_memory_(with_memory),
        bound_(options.bound_ms + 1e-12 * std::abs(options.bound_ms)),
        inverse_bound_(options.bound_ms > 0 ? 1 / options.bound_ms : 1),
        takes_maximum_(options.goal == SliceGoal::kBottleneck ||
                       options.goal == SliceGoal::kMemory),
        num_states_((problem.num_stages + 1) * (problem.num_cpus + 1)),
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
    latest_start_ = LatestStarts();
    for (int s = 0; s < num_states_; ++s) {
      if (s == 0 || problem_.allow_empty_stages) At(s, blocks_.count).value = 0;
    }
    Window window(blocks_, problem_.objective, with_memory_);
    for (int end = blocks_.count; end > 0; --end) WalkFrom(end, window);
    return ReadBack();
  }

 private:
  struct Cell {
    double value = kInfinity;
    double load_ms = 0;  // of the first stage
    int end = -1;        // of the first stage
    bool on_cpu = false;
  };
  struct State {
    int accelerators, cpus;  // behind
    double value;
    int accelerator_from, cpu_from;  // latest useful start of one more stage; -1: none left
  };

  int IdOf(int accelerators, int cpus) const {
    return accelerators * (problem_.num_cpus + 1) + cpus;
  }
  Cell& At(int state, int block) {
    return cells_[static_cast<size_t>(block) * num_states_ + state];
  }

  // Work that the given devices can take at most within the bound.
  double Capacity(int accelerators, int cpus) const {
    double capacity = accelerators > 0 ? accelerators * bound_ : 0;
    if (cpus > 0 && cpu_speed_ > 0) capacity += cpus * bound_ * cpu_speed_;
    return capacity * (1 + 1e-9);
  }

  // The devices before a state have to take all work before it: where it is useful at the latest.
  std::vector<int> LatestStarts() const {
    std::vector<int> latest(num_states_);
    for (int a = 0; a <= problem_.num_stages; ++a) {
      for (int c = 0; c <= problem_.num_cpus; ++c) {
        const double capacity = Capacity(problem_.num_stages - a, problem_.num_cpus - c);
        const auto too_late = std::upper_bound(work_before_.begin(), work_before_.end(), capacity);
        latest[IdOf(a, c)] = static_cast<int>(too_late - work_before_.begin()) - 1;
      }
    }
    return latest;
  }

  void FindStates(int end) {
    states_.clear();
    for (int a = 0; a <= problem_.num_stages; ++a) {
      for (int c = 0; c <= problem_.num_cpus; ++c) {
        const Cell& cell = At(IdOf(a, c), end);
        const bool none_left = a == problem_.num_stages && c == problem_.num_cpus;
        if (cell.value == kInfinity || none_left || end > latest_start_[IdOf(a, c)]) continue;
        State& state = states_.emplace_back();
        state = {a, c, cell.value, -1, -1};
        if (a < problem_.num_stages) state.accelerator_from = latest_start_[IdOf(a + 1, c)];
        if (c < problem_.num_cpus) state.cpu_from = latest_start_[IdOf(a, c + 1)];
      }
    }
  }

  void WalkFrom(int end, Window& window) {
    FindStates(end);
    if (states_.empty()) return;
    bool cpu_left = false;
    for (const State& state : states_) cpu_left = cpu_left || state.cpu_from >= 0;
    const bool by_memory = options_.goal == SliceGoal::kMemory;

    window.Reset(end);
    for (int start = end - 1; start >= 0; --start) {
      window.Extend(start);
      const bool accelerator_full =
          window.work_ms() > bound_ ||
          (with_memory_ && !by_memory && window.resident_bytes() > problem_.memory_bytes);
      const bool cpu_full = !cpu_left || window.cpu_ms() > bound_;
      if (accelerator_full && cpu_full) break;
      const double load = window.load_ms();
      const bool fits = !accelerator_full && load <= bound_;
      const double cost = CostOf(load, window.communication_ms());
      const double cpu_cost = CostOf(window.cpu_ms(), 0);
      for (const State& state : states_) {
        if (fits && start <= state.accelerator_from) {
          const double memory =
              with_memory_ ? window.memory_bytes(problem_.InFlight(state.accelerators)) : 0;
          if (by_memory || memory <= problem_.memory_bytes) {
            Cell& cell = At(IdOf(state.accelerators + 1, state.cpus), start);
            Offer(cell, by_memory ? memory : cost, state, {0, load, end, false});
          }
        }
        if (!cpu_full && start <= state.cpu_from) {
          Cell& cell = At(IdOf(state.accelerators, state.cpus + 1), start);
          Offer(cell, by_memory ? 0 : cpu_cost, state, {0, window.cpu_ms(), end, true});
        }
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

  void Offer(Cell& cell, double cost, const State& state, Cell candidate) const {
    candidate.value = takes_maximum_ ? std::max(cost, state.value) : cost + state.value;
    if (candidate.value < cell.value) cell = candidate;
  }

  std::optional<Slicing> ReadBack() {
    int accelerators = problem_.num_stages, cpus = problem_.num_cpus;
    if (At(IdOf(accelerators, cpus), 0).value == kInfinity) return std::nullopt;
    Slicing slicing;
    slicing.value = At(IdOf(accelerators, cpus), 0).value;
    std::vector<int> stage_of_block(blocks_.count);
    for (int block = 0, stage = 0; block < blocks_.count; ++stage) {
      const Cell& cell = At(IdOf(accelerators, cpus), block);
      slicing.assignment.is_cpu.push_back(cell.on_cpu);
      slicing.max_load_ms = std::max(slicing.max_load_ms, cell.load_ms);
      --(cell.on_cpu ? cpus : accelerators);
      for (; block < cell.end; ++block) stage_of_block[block] = stage;
    }
    // Places that stay empty.
    slicing.assignment.is_cpu.insert(slicing.assignment.is_cpu.end(), accelerators, false);
    slicing.assignment.is_cpu.insert(slicing.assignment.is_cpu.end(), cpus, true);
    for (const int block : blocks_.of_node) {
      slicing.assignment.stage_of_node.push_back(stage_of_block[block]);
    }
    return slicing;
  }

  const Problem& problem_;
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
  std::vector<State> states_;        // that can begin at the present end
};

}  // namespace

std::optional<Slicing> Slice(const Problem& problem, const Order& order,
                             const SliceOptions& options) {
  const bool with_memory = options.goal == SliceGoal::kMemory || !std::isinf(problem.memory_bytes);
  const Blocks blocks(problem, order, options.max_blocks, with_memory);
  return SliceProgramme(problem, blocks, options, with_memory).Run();
}

}  // namespace autopart::internal
