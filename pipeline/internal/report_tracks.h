// What each rank does over a simulated step, as lines of spans: what the trace and the HTML report
// draw.
#ifndef AUTOPART_PIPELINE_INTERNAL_REPORT_TRACKS_H_
#define AUTOPART_PIPELINE_INTERNAL_REPORT_TRACKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/simulate.h"

namespace autopart::internal {

enum class SpanKind {
  kForward,
  kRecompute,
  kBackward,        // or that for inputs
  kBackwardWeight,  // where it is apart
  kOptimizer,
  kSend,
  kReceive,
  kReduce,
  kWait,  // the rank stands: a receive, a send or a reduction is not through
};
const char* NameOf(SpanKind kind);  // "forward"

struct Span {
  SpanKind kind = SpanKind::kForward;
  double start_ms = 0, end_ms = 0;
  std::string name;  // the action's text, "2F5"
  int stage = 0;
  int micro_batch = -1;
  int64_t bytes = 0;  // of a message
  int transfer = -1;  // into Simulation::transfers
};

struct MemoryPoint {
  double ms = 0;
  MemoryByKind live;  // from then on
};

struct RankTracks {
  int rank = 0;
  std::vector<int> stages;
  // By start. Compute and waits never overlap: a rank does one thing after the other. Messages and
  // reductions run beside them, and beside one another where links allow it.
  std::vector<Span> compute, sends, receives, reductions, waits;
  std::vector<MemoryPoint> memory;  // by time, without scratch
};

// Of these ranks, ascending.
std::vector<RankTracks> TracksOf(const Plan& plan, const Simulation& simulation,
                                 const std::vector<int>& ranks);

// All ranks where they are at most `most`; else those of the first replica of each stage; of those
// the first `most`. Ascending.
std::vector<int> ShownRanks(const Plan& plan, int most);
// "8 of 4,096 ranks: the first replica of each stage"; empty where all are shown.
std::string ShownNote(const Plan& plan, const std::vector<int>& shown);

// For each span a line without overlaps: 0 where there is room, else the next.
std::vector<int> LanesOf(const std::vector<Span>& spans);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_REPORT_TRACKS_H_
