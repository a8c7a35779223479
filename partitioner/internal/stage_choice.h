// What a set of nodes adds up to as one stage, and which choices such a stage has. Every option
// that a stage takes for itself (type of device, replicas, recompute) is here and nowhere else: the
// slice dynamic programme, the exact search and whatever else grows sets of nodes into stages keep
// StageSums and ask StageChoices.
//
// A chain is built from its LAST stage backwards. Its state is how many devices of each type it
// uses so far (and of how many stages it is, where their number is a matter of its own), for that
// is what the memory of the next stage in front depends on: with D devices from that stage to the
// end of the chain, d of them its own replicas, it has y = ceil(D / d) micro-batches in flight
// under 1F1B (PipeDream, Narayanan et al., SOSP 2019; Piper, Tarnawski et al., NeurIPS 2021), and
// no replica ever has more than its share of a step's.
//
// A stage of a kind (device type, d replicas) and a recompute level takes for a micro-batch
//     objective((work + extra[level]) / speed, send, receive) / d + all-reduce(d)
// where the objective is the sum or the largest of the three, and a ring all-reduce of gradients
// after the m micro-batches of a step adds 2 (d - 1) / d * bytes / rate / m to each. It holds
//     resident + y * flight[level] + once[level] + temporary
// bytes. Where links are unequal, what comes from the stages before (and the gradients that go back
// there) takes as many times longer as the link before the stage is slower than the fastest one,
// what goes to the stages behind as the link behind it is. CPUs are a device type on which nodes
// have times of their own, nothing is sent, and memory has no limit.
//
// Of recompute levels a stage takes the first that fits: levels grow in time and shrink in memory.
#ifndef AUTOPART_PARTITIONER_INTERNAL_STAGE_CHOICE_H_
#define AUTOPART_PARTITIONER_INTERNAL_STAGE_CHOICE_H_

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <vector>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

struct StageSums {
  double work_ms = 0;  // on an accelerator of speed 1; of the nodes that one can run
  double cpu_ms = 0;
  bool needs_cpu = false;  // holds a node that no accelerator runs
  // Tensors from the stages before and to the stages behind, each once, and their gradients, which
  // go the other way.
  double in_forward_ms = 0, in_backward_ms = 0;
  double out_forward_ms = 0, out_backward_ms = 0;

  double resident_bytes = 0;   // parameters with their state
  double gradient_bytes = 0;   // that replicas add up
  double temporary_bytes = 0;  // the largest of a node
  struct Level {
    double extra_ms = 0;      // work that is done twice
    double flight_bytes = 0;  // for each micro-batch in flight
    double once_bytes = 0;    // of the one micro-batch whose values are being made again
  };
  std::array<Level, kMaxRecomputeLevels> levels;  // level 0 does nothing twice

  double send_ms() const { return out_forward_ms + in_backward_ms; }
  double receive_ms() const { return in_forward_ms + out_backward_ms; }
  double communication_ms() const { return send_ms() + receive_ms(); }
};

// How much slower than the fastest the links before and behind a stage are.
struct StageLinks {
  double before = 1, behind = 1;
};

// Do bytes decide anything?
bool CountsBytes(const Problem& problem);

class StageChoices {
 public:
  struct Kind {
    int type = 0;  // of device: accelerators in the problem's order, then CPUs
    int replicas = 1;
    int step = 0;  // from a state to the state with this stage in front of it
    bool is_cpu = false;
    int most_in_flight = std::numeric_limits<int>::max();  // a replica's share of a step's
    double compute_share = 1;                              // of one replica in the work of a stage
    double share = 1;                                      // and in its communication
    double all_reduce_ms_per_byte = 0;                     // for each micro-batch
    double memory_bytes = std::numeric_limits<double>::infinity();
  };

  explicit StageChoices(const Problem& problem);

  std::span<const Kind> kinds() const { return kinds_; }
  int first_level() const { return first_level_; }
  int num_levels() const { return num_levels_; }  // one past the last

  // States are 0 .. num_states() - 1. In state 0 no device is used.
  int num_states() const { return num_states_; }
  // Can a chain have nothing behind, and yet count these devices as used?
  bool MayEnd(int state) const {
    if (state == 0 || pads_) return true;
    // Stages that are left out still count, for the links are numbered from the front.
    return counts_devices_ && allow_empty_stages_ && has_links() && state % stage_stride_ == 0;
  }
  // Where a chain of that many stages, empty ones that keep their place counted, ends.
  int EndState(int num_places) const {
    return counts_devices_ && has_links() ? (num_stages_ - num_places) * stage_stride_ : 0;
  }
  // Can a chain that holds every node have used these devices and stages?
  bool MayStart(int state) const {
    if (!counts_devices_) return state == num_states_ - 1;
    return state > 0 && (stage_stride_ == 0 || (allow_empty_stages_ && !has_links()) ||
                         state / stage_stride_ == num_stages_);
  }
  // Are there devices left for one more stage of that kind?
  bool CanPrecede(const Kind& kind, int state) const {
    if (stage_stride_ > 0 && state / stage_stride_ == num_stages_) return false;
    return Used(state, kind.type) + kind.replicas <= types_[kind.type].count;
  }
  int Used(int state, int type) const { return used_[state * types_.size() + type]; }
  // Micro-batches in flight on a stage of that kind in front of that state.
  int InFlight(const Kind& kind, int state) const {
    const int used = accelerators_used_[state];
    const int behind = kind.replicas == 1 ? used : (used + kind.replicas - 1) / kind.replicas;
    const int in_flight = in_flight_[std::min(behind, static_cast<int>(in_flight_.size()) - 1)];
    return std::min(in_flight, kind.most_in_flight);
  }

  // The most accelerator time of work that the devices not yet used in a state take within bound_ms
  // each. A millisecond of a CPU stands for at most cpu_speed of them.
  double CapacityBefore(int state, double bound_ms, double cpu_speed) const;

  // A part of every load, whatever the level, that only grows with the set: once it is over a
  // bound, or LeastBytes over the memory, so it is for every larger set.
  static double LeastLoadMs(const Kind& kind, const StageSums& sums) {
    if (kind.is_cpu) return sums.cpu_ms;
    return sums.needs_cpu ? std::numeric_limits<double>::infinity()
                          : sums.work_ms * kind.compute_share;
  }
  static double LeastBytes(const Kind& kind, const StageSums& sums) {
    return kind.is_cpu ? 0 : sums.resident_bytes;
  }

  bool has_links() const { return !links_.empty(); }
  // Of a stage in front of that state.
  StageLinks LinksOf(int state) const { return links_.empty() ? StageLinks() : links_[state]; }

  double LoadMs(const Kind& kind, const StageSums& sums, int level, StageLinks links = {}) const {
    if (kind.is_cpu) return sums.cpu_ms;
    if (sums.needs_cpu) return std::numeric_limits<double>::infinity();
    const double work = (sums.work_ms + sums.levels[level].extra_ms) * kind.compute_share;
    const double send =
        (sums.out_forward_ms * links.behind + sums.in_backward_ms * links.before) * kind.share;
    const double receive =
        (sums.in_forward_ms * links.before + sums.out_backward_ms * links.behind) * kind.share;
    const double load = adds_up_ ? work + send + receive : std::max({work, send, receive});
    return load + sums.gradient_bytes * kind.all_reduce_ms_per_byte;
  }
  static double MemoryBytes(const Kind& kind, const StageSums& sums, int level, int in_flight) {
    if (kind.is_cpu) return 0;
    const StageSums::Level& at = sums.levels[level];
    return sums.resident_bytes + in_flight * at.flight_bytes + at.once_bytes + sums.temporary_bytes;
  }
  // The first level whose memory fits; num_levels() where none does.
  int FirstThatFits(const Kind& kind, const StageSums& sums, int in_flight) const {
    int level = first_level_;
    while (level < num_levels_ && MemoryBytes(kind, sums, level, in_flight) > kind.memory_bytes) {
      ++level;
    }
    return level;
  }
  // Puts the devices that a state counts as used, but no stage has, at the end of the chain.
  void AddEmptyStages(int state, Assignment& assignment) const;
  // The level that needs least memory.
  int Smallest(const Kind& kind, const StageSums& sums, int in_flight) const {
    int smallest = first_level_;
    for (int level = first_level_ + 1; level < num_levels_; ++level) {
      if (MemoryBytes(kind, sums, level, in_flight) <
          MemoryBytes(kind, sums, smallest, in_flight)) {
        smallest = level;
      }
    }
    return smallest;
  }

 private:
  struct Type {
    int count = 0;
    int stride = 1;
    double speed = 1;
    bool is_cpu = false;
  };

  void FindLinks(const std::vector<double>& slowness);

  const bool adds_up_;             // the objective
  const bool allow_empty_stages_;  // fewer stages than asked for will do
  const bool counts_devices_;      // apart from stages
  const bool pads_;                // stages may stay empty, and keep their place
  const int num_stages_;
  const int first_level_, num_levels_;
  std::vector<int> in_flight_;
  std::vector<Type> types_;
  std::vector<Kind> kinds_;
  int stage_stride_ = 0;  // 0: the state does not hold the number of stages
  int num_states_ = 1;
  std::vector<int> used_;               // by state, then by type
  std::vector<int> accelerators_used_;  // by state
  std::vector<StageLinks> links_;       // by state; empty where all are equal
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_STAGE_CHOICE_H_
