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
        live_(blocks.tensors.size()),
        shared_seen_(blocks.shared_bytes.size()),
        held_(blocks.saved_values.size()) {}

  void Reset() {
    ++walk_;
    work_ = cpu_ = send_ = receive_ = 0;
    resident_ = flight_ = temporary_ = 0;
    needs_cpu_ = false;
  }

  // Takes in `block`, the one before those inside.
  void Extend(int block) {
    work_ += blocks_.work_ms[block];
    cpu_ += blocks_.cpu_ms[block];
    needs_cpu_ = needs_cpu_ || blocks_.needs_cpu[block];
    for (const Touch touch : blocks_.touches[block]) ExtendTensor(touch);
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
  struct Live {
    int walk = 0;
    int inside = 0;  // of the blocks that touch it
    bool producer_inside = false;
  };

  void ExtendTensor(Touch touch) {
    const BlockTensor& tensor = blocks_.tensors[touch.tensor];
    Live& live = live_[touch.tensor];
    if (live.walk != walk_) live = {walk_, 0, false};
    const bool was_cut = live.inside > 0;  // never all: this block was missing
    ++live.inside;
    const bool is_cut = live.inside < tensor.blocks;
    if (was_cut && is_cut && !touch.as_producer) return;
    if (was_cut) Charge(tensor, live.producer_inside, -1);
    live.producer_inside = live.producer_inside || touch.as_producer;
    if (is_cut) Charge(tensor, live.producer_inside, 1);
  }

  void Charge(const BlockTensor& tensor, bool producer_inside, double sign) {
    send_ += sign * (producer_inside ? tensor.forward_ms : tensor.backward_ms);
    receive_ += sign * (producer_inside ? tensor.backward_ms : tensor.forward_ms);
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

  double work_ = 0, cpu_ = 0, send_ = 0, receive_ = 0;
  bool needs_cpu_ = false;
  double resident_ = 0, flight_ = 0, temporary_ = 0;
  std::vector<Live> live_;
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
    int end = -1;  // of the first stage
    bool on_cpu = false;
  };
  struct State {
    int accelerators, cpus;  // behind
    double value;
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
    return capacity * (1 + 1e-9) + 1e-12;
  }

  void FindStates(int end) {
    states_.clear();
    for (int a = 0; a <= problem_.num_stages; ++a) {
      for (int c = 0; c <= problem_.num_cpus; ++c) {
        const Cell& cell = At(IdOf(a, c), end);
        const bool none_left = a == problem_.num_stages && c == problem_.num_cpus;
        if (cell.value == kInfinity || none_left) continue;
        const double capacity = Capacity(problem_.num_stages - a, problem_.num_cpus - c);
        if (work_before_[end] <= capacity) states_.push_back({a, c, cell.value});
      }
    }
  }

  void WalkFrom(int end, Window& window) {
    FindStates(end);
    if (states_.empty()) return;
    bool cpu_left = false;
    for (const State& state : states_) cpu_left = cpu_left || state.cpus < problem_.num_cpus;
    const bool by_memory = options_.goal == SliceGoal::kMemory;

    window.Reset();
    for (int start = end - 1; start >= 0; --start) {
      window.Extend(start);
      const bool accelerator_full =
          window.work_ms() > bound_ ||
          (with_memory_ && !by_memory && window.resident_bytes() > problem_.memory_bytes);
      const bool cpu_full = !cpu_left || window.cpu_ms() > bound_;
      if (accelerator_full && cpu_full) break;
      const double load = window.load_ms();
      const bool fits = !accelerator_full && load <= bound_;
      for (const State& state : states_) {
        if (fits && state.accelerators < problem_.num_stages) {
          OfferAccelerator(state, start, end, load, window);
        }
        if (!cpu_full && state.cpus < problem_.num_cpus) OfferCpu(state, start, end, window);
      }
    }
  }

  void OfferAccelerator(const State& state, int start, int end, double load, const Window& window) {
    double value = options_.goal == SliceGoal::kBottleneck
                       ? std::max(load, state.value)
                       : state.value + window.communication_ms();
    Cell& cell = At(IdOf(state.accelerators + 1, state.cpus), start);
    if (with_memory_) {
      const double memory = window.memory_bytes(problem_.InFlight(state.accelerators));
      if (options_.goal == SliceGoal::kMemory) {
        value = std::max(memory, state.value);
      } else if (memory > problem_.memory_bytes) {
        return;
      }
    }
    if (value < cell.value) cell = {value, end, false};
  }

  void OfferCpu(const State& state, int start, int end, const Window& window) {
    const double value = options_.goal == SliceGoal::kBottleneck
                             ? std::max(window.cpu_ms(), state.value)
                             : state.value;
    Cell& cell = At(IdOf(state.accelerators, state.cpus + 1), start);
    if (value < cell.value) cell = {value, end, true};
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
  const double bound_;
  const int num_states_;
  std::vector<Cell> cells_;          // by block, then by state
  std::vector<double> work_before_;  // of the blocks before each
  double cpu_speed_ = 0;             // most accelerator time that a millisecond of a CPU can save
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
