// Schedules as text, their generators, and the check that a lowered schedule is complete.
//
// A generator is one short function that gives one stage replica's order of forwards and backwards
// (the orders of stages that share a rank are merged), or the orders of whole ranks, and one row in
// kGenerators. GPipe: Huang et al., NeurIPS 2019. 1F1B: Narayanan et al.,
// PipeDream, SOSP 2019, in its flushed form. ZB-H1: Qi et al., Zero Bubble Pipeline Parallelism,
// ICLR 2024, in the static form whose makespan meets the bound of one isolated step, m (F + I + W)
// + (p - 1) F, for equal stages. Backwards run in ascending order of micro-batches in every
// schedule, so that gradients are always added in the same order.
#include "pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/chunk_orders.h"
#include "pipeline/internal/compute_order.h"

namespace autopart {
namespace {

enum class Operands { kMicroBatch, kSendPeer, kRecvPeer, kNone };

struct ActionWord {
  ActionKind kind;
  std::string_view word;
  Operands operands;
};

// Longer words first where one begins another.
constexpr std::array<ActionWord, 12> kWords = {{
    {ActionKind::kSendActivation, "SEND_F", Operands::kSendPeer},
    {ActionKind::kRecvActivation, "RECV_F", Operands::kRecvPeer},
    {ActionKind::kWaitActivation, "WAIT_F", Operands::kSendPeer},
    {ActionKind::kSendGradient, "SEND_B", Operands::kSendPeer},
    {ActionKind::kRecvGradient, "RECV_B", Operands::kRecvPeer},
    {ActionKind::kWaitGradient, "WAIT_B", Operands::kSendPeer},
    {ActionKind::kReduce, "REDUCE", Operands::kNone},
    {ActionKind::kStep, "STEP", Operands::kNone},
    {ActionKind::kForward, "F", Operands::kMicroBatch},
    {ActionKind::kBackward, "B", Operands::kMicroBatch},
    {ActionKind::kBackwardInput, "I", Operands::kMicroBatch},
    {ActionKind::kBackwardWeight, "W", Operands::kMicroBatch},
}};

const ActionWord& WordOf(ActionKind kind) {
  return *std::find_if(kWords.begin(), kWords.end(),
                       [kind](const ActionWord& w) { return w.kind == kind; });
}

// Takes a non-negative number off the front of text.
bool TakeNumber(std::string_view& text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return false;
  text.remove_prefix(end - text.data());
  return true;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::vector<Action> GPipe(const StagePlacement& placement, int stage, int replica) {
  std::vector<Action> order = internal::Forwards(placement, stage, replica);
  for (const Action& f : internal::Forwards(placement, stage, replica)) {
    order.push_back({ActionKind::kBackward, stage, f.micro_batch});
  }
  return order;
}

// `warm_up` forwards first, then one backward and one forward in turn.
std::vector<Action> OneForwardOneBackward(const StagePlacement& placement, int stage, int replica) {
  const std::vector<Action> forwards = internal::Forwards(placement, stage, replica);
  const size_t warm_up = internal::InFlight(placement, stage);
  std::vector<Action> order;
  for (size_t i = 0; i < forwards.size() + warm_up; ++i) {
    if (i >= warm_up && i - warm_up < forwards.size()) {
      order.push_back({ActionKind::kBackward, stage, forwards[i - warm_up].micro_batch});
    }
    if (i < forwards.size()) order.push_back(forwards[i]);
  }
  return order;
}

// 1F1B with the backward split: a stage's gradients of weights lag behind those of its inputs by as
// many micro-batches as the first stage holds more than it, so that every stage holds as many as
// the first and the weights fill the wait for the last backwards.
std::vector<Action> ZeroBubbleH1(const StagePlacement& placement, int stage, int replica) {
  const int lag =
      std::max(0, internal::InFlight(placement, 0) - internal::InFlight(placement, stage));
  std::vector<Action> order;
  std::vector<Action> weights;  // in order; the first `ran` have run
  size_t ran = 0;
  for (const Action& action : OneForwardOneBackward(placement, stage, replica)) {
    if (action.kind == ActionKind::kForward) {
      order.push_back(action);
      continue;
    }
    order.push_back({ActionKind::kBackwardInput, stage, action.micro_batch});
    weights.push_back({ActionKind::kBackwardWeight, stage, action.micro_batch});
    if (weights.size() > ran + lag) order.push_back(weights[ran++]);
  }
  order.insert(order.end(), weights.begin() + ran, weights.end());
  return order;
}

using StageOrder = std::vector<Action>(const StagePlacement&, int stage, int replica);

template <StageOrder order>
internal::RankOrders ByStage(const StagePlacement& placement) {
  std::vector<std::vector<std::vector<Action>>> orders(placement.num_stages());
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    for (size_t replica = 0; replica < placement.ranks[stage].size(); ++replica) {
      orders[stage].push_back(order(placement, stage, replica));
    }
  }
  return internal::MergeOntoRanks(placement, orders);
}

// Placements that these have no rule for get the merged orders of 1F1B and ZB-H1.
internal::RankOrders Interleaved(const StagePlacement& placement) {
  std::optional<internal::RankOrders> orders = internal::InterleavedOrders(placement);
  return orders ? *std::move(orders) : ByStage<OneForwardOneBackward>(placement);
}

internal::RankOrders ZeroBubbleV(const StagePlacement& placement) {
  std::optional<internal::RankOrders> orders = internal::ZeroBubbleVOrders(placement);
  return orders ? *std::move(orders) : ByStage<ZeroBubbleH1>(placement);
}

struct Generator {
  std::string_view name;
  internal::RankOrders (*orders)(const StagePlacement&);
};

constexpr std::array<Generator, 6> kGenerators = {{
    {"gpipe", ByStage<GPipe>},
    {"1f1b", ByStage<OneForwardOneBackward>},
    {"interleaved", Interleaved},
    {"zb-h1", ByStage<ZeroBubbleH1>},
    {"zb-v", ZeroBubbleV},
    {"forward", ByStage<internal::Forwards>},
}};

absl::Status ValidatePlacement(const StagePlacement& placement) {
  if (placement.micro_batches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule needs at least 1 micro-batch, not ", placement.micro_batches));
  }
  if (placement.ranks.empty()) return absl::InvalidArgumentError("a schedule needs a stage");
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    std::vector<int> ranks = placement.ranks[stage];
    if (ranks.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", stage, " has no rank"));
    }
    std::sort(ranks.begin(), ranks.end());
    if (ranks.front() < 0 || ranks.back() >= placement.num_ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stage ", stage, " is on rank ", ranks.front() < 0 ? ranks.front() : ranks.back(),
          ", but ranks go from 0 to ", placement.num_ranks - 1));
    }
    if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage, " lists rank ",
                       *std::adjacent_find(ranks.begin(), ranks.end()), " twice"));
    }
  }
  return absl::OkStatus();
}

// Bookkeeping of Validate: where in its rank's list each expected action stands, -1 for not yet.
class Checklist {
 public:
  Checklist(const StagePlacement& placement, const std::vector<StageEdge>& edges)
      : placement_(placement), edges_(edges) {
    const size_t m = placement.micro_batches;
    const auto grid = [m](size_t rows) {
      return std::vector<std::vector<int>>(rows, std::vector<int>(m, -1));
    };
    for (auto* compute : {&forward_, &backward_, &input_, &weight_}) {
      *compute = grid(placement.num_stages());
    }
    for (auto* message : {&send_f_, &recv_f_, &wait_f_, &send_b_, &recv_b_, &wait_b_}) {
      *message = grid(edges.size());
    }
    for (const std::vector<int>& ranks : placement.ranks) {
      reduce_.emplace_back(ranks.size(), -1);
      step_.emplace_back(ranks.size(), -1);
    }
    edge_index_.assign(placement.num_stages() * placement.num_stages(), -1);
    for (size_t e = 0; e < edges.size(); ++e) edge_index_[Pair(edges[e].from, edges[e].to)] = e;
  }

  // Notes one action, in list order.
  absl::Status Note(int rank, int position, const Action& a) {
    const auto wrong = [&](std::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ", action ", position, " (",
                                                     ToString(a), "): ", std::string(why)));
    };
    if (a.stage < 0 || a.stage >= placement_.num_stages()) return wrong("no such stage");
    const std::vector<int>& ranks = placement_.ranks[a.stage];
    const auto replica = std::find(ranks.begin(), ranks.end(), rank);
    if (replica == ranks.end()) return wrong("the stage is not on this rank");

    int* slot = nullptr;
    bool ready = true;  // what has to stand before it in this list does
    if (a.kind == ActionKind::kReduce || a.kind == ActionKind::kStep) {
      auto& per_stage = a.kind == ActionKind::kReduce ? reduce_ : step_;
      slot = &per_stage[a.stage][replica - ranks.begin()];
      ready = a.kind == ActionKind::kReduce || reduce_[a.stage][replica - ranks.begin()] >= 0;
    } else {
      if (a.micro_batch < 0 || a.micro_batch >= placement_.micro_batches) {
        return wrong("no such micro-batch");
      }
      if (placement_.RankOf(a.stage, a.micro_batch) != rank) {
        return wrong(absl::StrCat("this micro-batch belongs to rank ",
                                  placement_.RankOf(a.stage, a.micro_batch)));
      }
      const int j = a.micro_batch;
      const int s = a.stage;
      int edge = -1;
      if (WordOf(a.kind).operands != Operands::kMicroBatch) {
        if (a.peer_stage < 0 || a.peer_stage >= placement_.num_stages()) {
          return wrong("no such peer stage");
        }
        // The edge whose forward direction this message belongs to.
        const bool outgoing = a.kind == ActionKind::kSendActivation ||
                              a.kind == ActionKind::kWaitActivation ||
                              a.kind == ActionKind::kRecvGradient;
        edge = outgoing ? edge_index_[Pair(s, a.peer_stage)] : edge_index_[Pair(a.peer_stage, s)];
        if (edge < 0) return wrong("no edge joins these stages");
      }
      const bool backward_done = backward_[s][j] >= 0 || input_[s][j] >= 0;
      switch (a.kind) {
        case ActionKind::kForward:
          slot = &forward_[s][j];
          ready = AllReceived(s, j, recv_f_, &StageEdge::to, false);
          break;
        case ActionKind::kBackward:
          if (input_[s][j] >= 0) return wrong("its backward is already split");
          slot = &backward_[s][j];
          ready = forward_[s][j] >= 0 && AllReceived(s, j, recv_b_, &StageEdge::from, true);
          break;
        case ActionKind::kBackwardInput:
          if (backward_[s][j] >= 0) return wrong("its full backward has already run");
          slot = &input_[s][j];
          ready = forward_[s][j] >= 0 && AllReceived(s, j, recv_b_, &StageEdge::from, true);
          break;
        case ActionKind::kBackwardWeight:
          slot = &weight_[s][j];
          ready = input_[s][j] >= 0;
          break;
        case ActionKind::kSendActivation:
          slot = &send_f_[edge][j];
          ready = forward_[s][j] >= 0;
          break;
        case ActionKind::kRecvActivation:
          slot = &recv_f_[edge][j];
          break;
        case ActionKind::kWaitActivation:
          slot = &wait_f_[edge][j];
          ready = send_f_[edge][j] >= 0;
          break;
        case ActionKind::kSendGradient:
          slot = &send_b_[edge][j];
          ready = backward_done;
          break;
        case ActionKind::kRecvGradient:
          slot = &recv_b_[edge][j];
          break;
        case ActionKind::kWaitGradient:
          slot = &wait_b_[edge][j];
          ready = send_b_[edge][j] >= 0;
          break;
        default:
          break;
      }
      if (a.kind != ActionKind::kForward && edge < 0) trains_ = true;
      if (edge >= 0 && IsGradient(a.kind) && !edges_[edge].has_gradient) {
        return wrong("this edge has no gradient");
      }
    }
    if (*slot >= 0) return wrong("stands twice");
    if (!ready) return wrong("stands before what it needs");
    *slot = position;
    return absl::OkStatus();
  }

  // Called when all actions are noted.
  absl::Status Complete() const {
    const auto missing = [](const Action& a) {
      return absl::InvalidArgumentError(absl::StrCat(ToString(a), " is missing"));
    };
    for (int s = 0; s < placement_.num_stages(); ++s) {
      for (int j = 0; j < placement_.micro_batches; ++j) {
        if (forward_[s][j] < 0) return missing({ActionKind::kForward, s, j});
        if (!trains_ || backward_[s][j] >= 0) continue;
        if (input_[s][j] < 0) return missing({ActionKind::kBackward, s, j});
        if (weight_[s][j] < 0) return missing({ActionKind::kBackwardWeight, s, j});
      }
      for (size_t r = 0; trains_ && r < reduce_[s].size(); ++r) {
        if (reduce_[s][r] < 0) return missing({ActionKind::kReduce, s});
        if (step_[s][r] < 0) return missing({ActionKind::kStep, s});
        for (int j = r; j < placement_.micro_batches; j += reduce_[s].size()) {
          if (std::max({backward_[s][j], weight_[s][j]}) > reduce_[s][r]) {
            return absl::InvalidArgumentError(
                absl::StrCat(ToString(Action{ActionKind::kReduce, s}), " stands before ",
                             ToString(Action{ActionKind::kBackward, s, j})));
          }
        }
      }
    }
    for (size_t e = 0; e < edges_.size(); ++e) {
      const auto [from, to] = std::pair(edges_[e].from, edges_[e].to);
      for (int j = 0; j < placement_.micro_batches; ++j) {
        if (send_f_[e][j] < 0) return missing({ActionKind::kSendActivation, from, j, to});
        if (recv_f_[e][j] < 0) return missing({ActionKind::kRecvActivation, to, j, from});
        if (wait_f_[e][j] < 0) return missing({ActionKind::kWaitActivation, from, j, to});
        if (!trains_ || !edges_[e].has_gradient) continue;
        if (send_b_[e][j] < 0) return missing({ActionKind::kSendGradient, to, j, from});
        if (recv_b_[e][j] < 0) return missing({ActionKind::kRecvGradient, from, j, to});
        if (wait_b_[e][j] < 0) return missing({ActionKind::kWaitGradient, to, j, from});
      }
    }
    return absl::OkStatus();
  }

 private:
  using Grid = std::vector<std::vector<int>>;

  static bool IsGradient(ActionKind kind) {
    return kind == ActionKind::kSendGradient || kind == ActionKind::kRecvGradient ||
           kind == ActionKind::kWaitGradient;
  }
  int Pair(int from, int to) const { return from * placement_.num_stages() + to; }

  bool AllReceived(int stage, int micro_batch, const Grid& received, int StageEdge::*end,
                   bool gradients_only) const {
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (edges_[e].*end == stage && (!gradients_only || edges_[e].has_gradient) &&
          received[e][micro_batch] < 0) {
        return false;
      }
    }
    return true;
  }

  const StagePlacement& placement_;
  const std::vector<StageEdge>& edges_;
  std::vector<int> edge_index_;
  bool trains_ = false;
  Grid forward_, backward_, input_, weight_;                  // [stage][micro-batch]
  Grid send_f_, recv_f_, wait_f_, send_b_, recv_b_, wait_b_;  // [edge][micro-batch]
  Grid reduce_, step_;                                        // [stage][replica]
};

absl::Status ValidateEdges(const StagePlacement& placement, const std::vector<StageEdge>& edges) {
  std::vector<std::pair<int, int>> seen;
  for (const StageEdge& edge : edges) {
    if (edge.from < 0 || edge.from >= edge.to || edge.to >= placement.num_stages()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "edge from stage ", edge.from, " to stage ", edge.to,
          ": edges go from a lower to a higher of the ", placement.num_stages(), " stages"));
    }
    seen.emplace_back(edge.from, edge.to);
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("two edges from stage ", twice->first, " to stage ", twice->second));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const Action& action) {
  const ActionWord& word = WordOf(action.kind);
  std::string text = absl::StrCat(action.stage, std::string(word.word));
  if (word.operands != Operands::kNone) absl::StrAppend(&text, action.micro_batch);
  if (word.operands == Operands::kSendPeer) absl::StrAppend(&text, ">", action.peer_stage);
  if (word.operands == Operands::kRecvPeer) absl::StrAppend(&text, "<", action.peer_stage);
  return text;
}

absl::StatusOr<Action> ParseAction(std::string_view text) {
  const auto wrong = [text] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text),
                     "' is no action: actions look like 2F5, 2B5, 2I5, 2W5, "
                     "2SEND_F5>3, 3RECV_F5<2, 2WAIT_F5>3 (and _B for gradients), 2REDUCE, 2STEP"));
  };
  Action action;
  std::string_view rest = text;
  if (!TakeNumber(rest, action.stage)) return wrong();
  const auto word = std::find_if(kWords.begin(), kWords.end(),
                                 [&](const ActionWord& w) { return TakePrefix(rest, w.word); });
  if (word == kWords.end()) return wrong();
  action.kind = word->kind;
  if (word->operands != Operands::kNone && !TakeNumber(rest, action.micro_batch)) return wrong();
  if (word->operands == Operands::kSendPeer || word->operands == Operands::kRecvPeer) {
    const bool sends = word->operands == Operands::kSendPeer;
    if (!TakePrefix(rest, sends ? ">" : "<") || !TakeNumber(rest, action.peer_stage)) {
      return wrong();
    }
  }
  if (!rest.empty()) return wrong();
  return action;
}

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names;
  for (const Generator& generator : kGenerators) names.emplace_back(generator.name);
  return names;
}

std::vector<std::string> ExecutableScheduleNames() { return {"gpipe", "1f1b", "forward"}; }

absl::StatusOr<Schedule> GenerateSchedule(std::string_view name, const StagePlacement& placement) {
  const auto generator = std::find_if(kGenerators.begin(), kGenerators.end(),
                                      [name](const Generator& g) { return g.name == name; });
  if (generator == kGenerators.end()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown schedule '", std::string(name),
                                                   "': known are ",
                                                   absl::StrJoin(ScheduleNames(), ", ")));
  }
  if (absl::Status status = ValidatePlacement(placement); !status.ok()) return status;

  return Schedule{std::string(name), generator->orders(placement)};
}

absl::Status Validate(const Schedule& schedule, const StagePlacement& placement,
                      const std::vector<StageEdge>& edges) {
  if (absl::Status status = ValidatePlacement(placement); !status.ok()) return status;
  if (absl::Status status = ValidateEdges(placement, edges); !status.ok()) return status;
  if (schedule.ranks.size() != static_cast<size_t>(placement.num_ranks)) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", schedule.ranks.size(),
                                                   " ranks, the placement ", placement.num_ranks));
  }
  Checklist checklist(placement, edges);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      if (absl::Status s = checklist.Note(rank, i, schedule.ranks[rank][i]); !s.ok()) return s;
    }
  }
  return checklist.Complete();
}

std::string ToString(const Schedule& schedule) {
  std::string text;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    absl::StrAppend(&text, rank, ":");
    for (const Action& action : schedule.ranks[rank]) absl::StrAppend(&text, " ", ToString(action));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace autopart
