#include "pipeline/run_record.h"

#include <algorithm>
#include <cmath>

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/json_visit.h"

namespace autopart {
namespace {

constexpr std::string_view kFormat = "autopart.run";

template <typename V, typename T>
void VisitRank(V& v, T& rank) {
  v.Field("rank", rank.rank);
  v.Field("held_bytes", rank.held_bytes);
  v.Field("peak_bytes", rank.peak_bytes);
  v.Field("resident_bytes", rank.resident_bytes);
}

template <typename V, typename T>
void VisitTimes(V& v, T& action) {
  v.Field("start_s", action.start_s);
  v.Field("end_s", action.end_s);
  v.Field("p10_s", action.p10_s);
  v.Field("median_s", action.median_s);
}

template <typename V, typename T>
void VisitHead(V& v, T& record) {
  v.Field("plan_hash", record.plan_hash);
  v.Field("model_hash", record.model_hash);
  v.Field("autopart_version", record.autopart_version);
  v.Field("torch_version", record.torch_version);
  v.Field("processor", record.processor);
  v.Field("transport", record.transport);
  v.Field("pinned", record.pinned);
  v.Field("warm_up_steps", record.warm_up_steps);
  v.Field("step_s", record.step_s);
  v.Field("typical_step", record.typical_step);
}

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("run: ", what));
}

bool IsTime(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

absl::Status ValidateAction(const RunAction& action, int rank) {
  const bool times = IsTime(action.start_s) && IsTime(action.end_s) && IsTime(action.p10_s) &&
                     IsTime(action.median_s);
  if (times && action.end_s >= action.start_s) return absl::OkStatus();
  return Wrong(absl::StrCat("action ", ToString(action.action), " of rank ", rank, " runs from ",
                            action.start_s, " to ", action.end_s, " s"));
}

}  // namespace

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const size_t last = values.size() - 1;
  const size_t at = std::min(last, static_cast<size_t>(std::floor(q * last)));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

double RunRecord::StepQuantile(double q) const { return Quantile(step_s, q); }

std::string PlanHash(const Plan& plan) {
  std::string text =
      absl::StrCat(plan.model.hash, "|", plan.optimizer, "|", plan.shard_optimizer, "|",
                   plan.schedule, "|", plan.micro_batches, "|", plan.reduce_bucket_bytes);
  const auto add = [&](const std::vector<int>& ids) {
    absl::StrAppend(&text, "|", absl::StrJoin(ids, ","));
  };
  for (const PlanStage& stage : plan.stages) {
    text += "\nstage";
    for (const auto* ids :
         {&stage.ranks, &stage.nodes, &stage.copied_nodes, &stage.owned_parameters,
          &stage.copied_parameters, &stage.recomputed_nodes}) {
      add(*ids);
    }
  }
  for (const StageEdge& edge : plan.edges) {
    absl::StrAppend(&text, "\nedge ", edge.from, ">", edge.to, " ", edge.has_gradient);
    add(edge.values);
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

absl::Status Validate(const RunRecord& record) {
  if (record.step_s.empty()) return Wrong("it has no steps");
  for (const double step : record.step_s) {
    if (!IsTime(step)) return Wrong(absl::StrCat("a step took ", step, " s"));
  }
  if (record.typical_step < 0 || record.typical_step >= static_cast<int>(record.step_s.size())) {
    return Wrong(absl::StrCat("typical_step is ", record.typical_step, ", there are ",
                              record.step_s.size(), " steps"));
  }
  if (!record.losses.empty() && record.losses.size() != record.step_s.size()) {
    return Wrong(absl::StrCat(record.losses.size(), " losses of ", record.step_s.size(), " steps"));
  }
  if (record.ranks.empty()) return Wrong("it has no ranks");
  for (size_t r = 0; r < record.ranks.size(); ++r) {
    const RunRank& rank = record.ranks[r];
    if (rank.rank != static_cast<int>(r)) {
      return Wrong(absl::StrCat("ranks[", r, "].rank is ", rank.rank));
    }
    for (const RunAction& action : rank.actions) {
      if (absl::Status status = ValidateAction(action, rank.rank); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const RunRecord& record, const Plan& plan) {
  if (absl::Status status = Validate(record); !status.ok()) return status;
  if (record.model_hash != plan.model.hash) {
    return absl::FailedPreconditionError(absl::StrCat("the run is of another model: its hash is ",
                                                      record.model_hash, ", the plan's is ",
                                                      plan.model.hash));
  }
  if (const std::string hash = PlanHash(plan); record.plan_hash != hash) {
    return absl::FailedPreconditionError(absl::StrCat("the run is of another plan: its hash is ",
                                                      record.plan_hash, ", this plan's is ", hash,
                                                      ". Run this plan: autopart run"));
  }
  const absl::StatusOr<Schedule> schedule = BuildSchedule(plan);
  if (!schedule.ok()) return schedule.status();
  if (schedule->ranks.size() != record.ranks.size()) {
    return absl::FailedPreconditionError(absl::StrCat("the run has ", record.ranks.size(),
                                                      " ranks, the plan ", schedule->ranks.size()));
  }
  for (const RunRank& rank : record.ranks) {
    const std::vector<Action>& planned = schedule->ranks[rank.rank];
    const bool same =
        std::equal(planned.begin(), planned.end(), rank.actions.begin(), rank.actions.end(),
                   [](const Action& a, const RunAction& b) { return a == b.action; });
    if (!same) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the actions of rank ", rank.rank, " are not the plan's: another version ran it?"));
    }
  }
  return absl::OkStatus();
}

std::string ToJson(const RunRecord& record) {
  using internal::Json;
  Json json = Json::object();
  json["format"] = std::string(kFormat);
  json["version"] = record.version;
  internal::JsonWriter writer(json);
  VisitHead(writer, record);
  json["losses"] = record.losses;
  Json ranks = Json::array();
  for (const RunRank& rank : record.ranks) {
    Json rank_json = Json::object();
    internal::JsonWriter rank_writer(rank_json);
    VisitRank(rank_writer, rank);
    Json actions = Json::array();
    for (const RunAction& action : rank.actions) {
      Json action_json = Json::object();
      action_json["action"] = ToString(action.action);
      internal::JsonWriter action_writer(action_json);
      VisitTimes(action_writer, action);
      actions.push_back(std::move(action_json));
    }
    rank_json["actions"] = std::move(actions);
    ranks.push_back(std::move(rank_json));
  }
  json["ranks"] = std::move(ranks);
  return internal::Layout(json);
}

absl::StatusOr<RunRecord> RunRecordFromJson(std::string_view text) {
  using internal::Json;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Wrong("the text is not JSON (cut off, or another file?)");
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    return Wrong("the text is no record of a run, as autopart run writes it");
  }
  if (const Json version = json.value("version", Json()); version != kRunVersion) {
    return Wrong(absl::StrCat("it has version ", version.dump(), ", and this autopart reads ",
                              "version ", kRunVersion, ": run the plan again"));
  }
  RunRecord record;
  absl::Status status;
  internal::JsonReader reader(json, "run", "", status);
  VisitHead(reader, record);
  // A loss may be negative, and null where it was not finite.
  const Json losses = json.value("losses", Json::array());
  for (const Json& loss : losses) {
    record.losses.push_back(loss.is_number() ? loss.get<double>() : std::nan(""));
  }
  if (status.ok() && !json.value("ranks", Json()).is_array())
    return Wrong("ranks should be a list");
  if (!status.ok()) return status;
  for (const Json& rank_json : json.at("ranks")) {
    const std::string path = absl::StrCat("ranks[", record.ranks.size(), "].");
    RunRank& rank = record.ranks.emplace_back();
    if (!rank_json.is_object() || !rank_json.value("actions", Json()).is_array()) {
      return Wrong(absl::StrCat(path, "actions should be a list"));
    }
    internal::JsonReader rank_reader(rank_json, "run", path, status);
    VisitRank(rank_reader, rank);
    for (const Json& action_json : rank_json.at("actions")) {
      const std::string action_path = absl::StrCat(path, "actions[", rank.actions.size(), "].");
      if (!action_json.is_object() || !action_json.value("action", Json()).is_string()) {
        return Wrong(absl::StrCat(action_path, "action should be a text"));
      }
      const absl::StatusOr<Action> action =
          ParseAction(action_json.at("action").get<std::string>());
      if (!action.ok()) return Wrong(absl::StrCat(action_path, " ", action.status().message()));
      rank.actions.push_back({*action, 0, 0, 0, 0});
      internal::JsonReader action_reader(action_json, "run", action_path, status);
      VisitTimes(action_reader, rank.actions.back());
    }
  }
  if (!status.ok()) return status;
  if (status = Validate(record); !status.ok()) return status;
  return record;
}

}  // namespace autopart
