#include "pipeline/run_trace.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/json_visit.h"

namespace autopart {
namespace {

using internal::Json;

const char* CategoryOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return "backward";
    case ActionKind::kSendActivation:
    case ActionKind::kSendGradient:
      return "send";
    case ActionKind::kRecvActivation:
    case ActionKind::kRecvGradient:
      return "receive";
    case ActionKind::kWaitActivation:
    case ActionKind::kWaitGradient:
      return "wait";
    case ActionKind::kReduce:
      return "reduce";
    case ActionKind::kStep:
      return "optimizer";
  }
  return "";
}

// Whole nanoseconds: rounding then never lets one span reach into the next.
double Microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

}  // namespace

std::string RunTrace(const RunRecord& record) {
  std::string events;
  const auto add = [&](const Json& event) {
    absl::StrAppend(&events, events.empty() ? "" : ",\n", event.dump());
  };
  for (const RunRank& rank : record.ranks) {
    add({{"ph", "M"},
         {"name", "process_name"},
         {"pid", rank.rank},
         {"args", {{"name", absl::StrCat("rank ", rank.rank)}}}});
    for (const RunAction& action : rank.actions) {
      const double start = Microseconds(action.start_s);
      Json args = {{"stage", action.action.stage}};
      if (action.action.micro_batch >= 0) args["micro_batch"] = action.action.micro_batch;
      add({{"ph", "X"},
           {"name", ToString(action.action)},
           {"cat", CategoryOf(action.action.kind)},
           {"pid", rank.rank},
           {"tid", 1},
           {"ts", start},
           {"dur", Microseconds(action.end_s) - start},
           {"args", std::move(args)}});
    }
  }
  return absl::StrCat("{\"traceEvents\": [\n", events, "\n]}\n");
}

}  // namespace autopart
