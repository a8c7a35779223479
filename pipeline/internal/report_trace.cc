// The simulated step in the trace event format of Chrome, which Perfetto opens: a process a rank, a
// thread a stream, an arrow a message, a counter of memory by kind.
//
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/renderers.h"
#include "pipeline/internal/report_facts.h"
#include "pipeline/internal/report_tracks.h"
#include "pipeline/simulate.h"

namespace autopart::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostRanks = 64;
constexpr int kMostEvents = 200000;  // some 30 MB, which a browser opens in seconds

// Thread ids: a stream has so many, for spans that overlap.
constexpr int kLanes = 1000;
enum Thread { kCompute = 1, kSend, kReceive, kReduce, kWaiting };

// Whole nanoseconds as microseconds: rounding then never lets one span reach into the next.
int64_t Nanoseconds(double ms) { return std::llround(ms * 1e6); }
double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

class TraceWriter {
 public:
  void Add(const Json& event) {
    absl::StrAppend(&events_, events_.empty() ? "" : ",\n", event.dump());
  }

  void NameProcess(const Plan& plan, const RankTracks& track) {
    const std::string name =
        absl::StrCat("rank ", track.rank, " · ", track.stages.size() == 1 ? "stage " : "stages ",
                     absl::StrJoin(track.stages, ", "), " · ", DeviceNameOf(plan, track.rank));
    AddMetadata(track.rank, 0, "process_name", {{"name", name}});
    AddMetadata(track.rank, 0, "process_sort_index", {{"sort_index", track.rank}});
  }

  void AddStream(int rank, Thread stream, const char* name, const std::vector<Span>& spans) {
    const std::vector<int> lanes = LanesOf(spans);
    int named = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      const int thread = stream * kLanes + lanes[i];
      for (; named <= lanes[i]; ++named) {
        AddMetadata(rank, stream * kLanes + named, "thread_name",
                    {{"name", named == 0 ? name : absl::StrCat(name, " ", named + 1)}});
        AddMetadata(rank, stream * kLanes + named, "thread_sort_index",
                    {{"sort_index", stream * kLanes + named}});
      }
      AddSpan(rank, thread, spans[i]);
    }
  }

  void AddMemory(const RankTracks& track) {
    for (const MemoryPoint& point : track.memory) {
      const MemoryByKind& live = point.live;
      Add({{"ph", "C"},
           {"name", "memory"},
           {"pid", track.rank},
           {"ts", Microseconds(Nanoseconds(point.ms))},
           {"args",
            {{"weights", live.weights},
             {"gradients", live.gradients},
             {"optimizer", live.optimizer},
             {"activations", live.activations},
             {"buffers", live.buffers}}}});
    }
  }

  const std::string& events() const { return events_; }

 private:
  static std::string DeviceNameOf(const Plan& plan, int rank) {
    return DeviceTypes(plan.cluster)[PlacesOf(plan.cluster)[rank].device_type].name;
  }

  void AddMetadata(int rank, int thread, const char* name, Json args) {
    Add({{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", thread}, {"args", std::move(args)}});
  }

  void AddSpan(int rank, int thread, const Span& span) {
    const int64_t start = Nanoseconds(span.start_ms);
    Json event = {{"ph", "X"},
                  {"name", span.name},
                  {"cat", NameOf(span.kind)},
                  {"pid", rank},
                  {"tid", thread},
                  {"ts", Microseconds(start)},
                  {"dur", Microseconds(Nanoseconds(span.end_ms) - start)},
                  {"args", {{"stage", span.stage}}}};
    if (span.micro_batch >= 0) event["args"]["micro_batch"] = span.micro_batch;
    if (span.bytes > 0) event["args"]["bytes"] = span.bytes;
    Add(event);
  }

  std::string events_;
};

// An arrow from a message's span at the sender to that at the receiver, where both are shown.
void AddArrows(const std::vector<RankTracks>& tracks, TraceWriter& writer) {
  struct End {
    int rank = 0, thread = 0;
    double ms = 0;
  };
  std::map<int, End> senders;
  for (const RankTracks& track : tracks) {
    const std::vector<int> lanes = LanesOf(track.sends);
    for (size_t i = 0; i < lanes.size(); ++i) {
      senders[track.sends[i].transfer] = {track.rank, kSend * kLanes + lanes[i],
                                          track.sends[i].start_ms};
    }
  }
  for (const RankTracks& track : tracks) {
    const std::vector<int> lanes = LanesOf(track.receives);
    for (size_t i = 0; i < lanes.size(); ++i) {
      const int id = track.receives[i].transfer;
      const auto sender = senders.find(id);
      if (sender == senders.end()) continue;
      const double ts = Microseconds(Nanoseconds(sender->second.ms));
      writer.Add({{"ph", "s"},
                  {"name", "message"},
                  {"cat", "message"},
                  {"id", id},
                  {"pid", sender->second.rank},
                  {"tid", sender->second.thread},
                  {"ts", ts}});
      writer.Add({{"ph", "f"},
                  {"bp", "e"},
                  {"name", "message"},
                  {"cat", "message"},
                  {"id", id},
                  {"pid", track.rank},
                  {"tid", kReceive * kLanes + lanes[i]},
                  {"ts", ts}});
    }
  }
}

// What the step was predicted for, and what is left out.
Json OtherData(const Plan& plan, const Simulation& simulation, const std::vector<int>& shown) {
  Json data = {
      {"model", plan.model.name},
      {"model_hash", plan.model.hash},
      {"operators", plan.model.operators},
      {"parameters", plan.model.parameters},
      {"devices", plan.num_devices()},
      {"hosts", plan.cluster.num_hosts()},
      {"device", DeviceName(plan)},
      {"dtype", plan.dtype},
      {"optimizer", Trains(plan) ? plan.optimizer : "none: inference"},
      {"schedule", plan.schedule},
      {"stages", plan.stages.size()},
      {"micro_batches", plan.micro_batches},
      {"micro_batch_samples", plan.micro_batch_samples},
      {"seed", plan.seed},
      {"predicted_step_ms", plan.predicted_step_ms},
      {"simulated_step_ms", simulation.makespan_ms},
      {"bound_ms", plan.bound_ms},
      {"bound_kind", plan.bound_kind},
      {"trust", TrustOf(plan)},
      {"memory", "bytes after each action; scratch of operators comes on top"},
  };
  const std::string note = ShownNote(plan, shown);
  data["ranks_shown"] = note.empty() ? "all" : note;
  return data;
}

}  // namespace

absl::StatusOr<std::string> RenderTrace(const Plan& plan, const ReportContext&) {
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
  if (!simulation.ok()) return simulation.status();
  const int events_a_rank = 3 * simulation->events.size() / plan.num_devices() + 1;
  const std::vector<int> shown =
      ShownRanks(plan, std::clamp(kMostEvents / events_a_rank, 1, kMostRanks));
  const std::vector<RankTracks> tracks = TracksOf(plan, *simulation, shown);

  TraceWriter writer;
  for (const RankTracks& track : tracks) {
    writer.NameProcess(plan, track);
    writer.AddStream(track.rank, kCompute, "compute", track.compute);
    writer.AddStream(track.rank, kSend, "send", track.sends);
    writer.AddStream(track.rank, kReceive, "receive", track.receives);
    writer.AddStream(track.rank, kReduce, "reduce", track.reductions);
    writer.AddStream(track.rank, kWaiting, "waiting", track.waits);
    writer.AddMemory(track);
  }
  AddArrows(tracks, writer);
  // A line an event, for people and for diff.
  return absl::StrCat(
      "{\"displayTimeUnit\":\"ms\",\n\"otherData\":", OtherData(plan, *simulation, shown).dump(1),
      ",\n\"traceEvents\":[\n", writer.events(), "\n]}\n");
}

}  // namespace autopart::internal
