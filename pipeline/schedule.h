// A schedule is text: for each rank a list of actions, executed literally and in order.
//
//   2F5          stage 2, forward of micro-batch 5
//   2B5          full backward            2I5  backward for inputs     2W5  backward for weights
//   2SEND_F5>3   start sending micro-batch 5's activations to stage 3 (does not wait)
//   3RECV_F5<2   receive them: waits until they are here
//   2WAIT_F5>3   wait until that send is over; its buffers may go
//   3SEND_B5>2, 2RECV_B5<3, 3WAIT_B5>2   the same for gradients
//   2REDUCE      sum gradients over the ranks that hold the same parameters
//   2STEP        end of the step for this stage
//
// The compute letters are those of torch.distributed.pipelining. Micro-batches are global, 0..M-1;
// stage i with d_i replicas does micro-batch j on its replica j mod d_i (the one placement rule).
// A schedule is generated as compute only; Lower() adds communication; Simulate() proves it ends.
#ifndef AUTOPART_PIPELINE_SCHEDULE_H_
#define AUTOPART_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace autopart {

enum class ActionKind {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kSendActivation,
  kRecvActivation,
  kWaitActivation,
  kSendGradient,
  kRecvGradient,
  kWaitGradient,
  kReduce,
  kStep,
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int micro_batch = -1;  // -1 for kReduce and kStep
  int peer_stage = -1;   // the other end of a send, receive or wait

  bool operator==(const Action&) const = default;
};

std::string ToString(const Action& action);
absl::StatusOr<Action> ParseAction(std::string_view text);

// What a generator needs to know. ranks[i] are the global ranks of stage i, one per replica.
struct StagePlacement {
  std::vector<std::vector<int>> ranks;
  int num_ranks = 0;
  int micro_batches = 1;

  int num_stages() const { return static_cast<int>(ranks.size()); }
  // The rank that does micro-batch j of a stage.
  int RankOf(int stage, int micro_batch) const {
    return ranks[stage][micro_batch % ranks[stage].size()];
  }
};

// Values that flow from one stage to a later one, in one message a micro-batch.
struct StageEdge {
  int from = 0;
  int to = 0;
  std::vector<int> values;    // value ids, ascending
  bool has_gradient = false;  // a gradient message flows back
  int64_t bytes = 0;          // of one activation message, and of one gradient message
  int64_t gradient_bytes = 0;

  bool operator==(const StageEdge&) const = default;
};

struct Schedule {
  std::string name;
  std::vector<std::vector<Action>> ranks;  // actions of each global rank, in order

  bool operator==(const Schedule&) const = default;
};

// The names that GenerateSchedule accepts, in the order to show them: "gpipe", "1f1b",
// "interleaved" (1F1B of several stages a rank, stage s on the rank of stage s mod p), "zb-h1"
// (backward split into inputs and weights), "zb-v" (the same with stages s and 2 p - 1 - s on one
// rank), "forward" (forward only: inference).
std::vector<std::string> ScheduleNames();
// Those of them that the runtime executes today: with one stage a rank and without a split
// backward. The planner chooses among these by itself; the others only when asked for.
std::vector<std::string> ExecutableScheduleNames();

// Compute actions only. INVALID_ARGUMENT for an unknown name (lists the known ones).
absl::StatusOr<Schedule> GenerateSchedule(std::string_view name, const StagePlacement& placement);

// Inserts SEND, RECV and WAIT for every edge, then REDUCE and STEP where the schedule trains.
// Any edge from a lower to a higher stage is possible, skips included. Sends go out right after the
// compute that makes the value, receives stand right before the compute that needs it. Two stages
// on one rank exchange by the same actions (the runtime hands the tensors over).
// A WAIT for an activation stands right before the stage's own backward of that micro-batch where a
// gradient comes back; elsewhere before the forward that would put more than (receiver's lag + 1)
// messages under way: two between neighbours. A WAIT for a gradient stands before the next-but-one
// gradient send on that edge. What is left is waited for before REDUCE, or at the end.
absl::StatusOr<Schedule> Lower(const Schedule& compute, const StagePlacement& placement,
                               const std::vector<StageEdge>& edges);

// Every compute action once on the right rank, sends match receives, waits follow sends.
absl::Status Validate(const Schedule& schedule, const StagePlacement& placement,
                      const std::vector<StageEdge>& edges);

// One line a rank, for people.
std::string ToString(const Schedule& schedule);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_SCHEDULE_H_
