#include "partitioner/partition.h"

#include <cmath>

#include "partitioner/internal/json_fields.h"

namespace autopart {
namespace {

using internal::Json;
using internal::JsonFields;

constexpr char kFormat[] = "autopart.partition";
constexpr int kVersion = 1;

}  // namespace

std::string ToJson(const Partition& partition) {
  Json stages = Json::array();
  for (const StageConfiguration& stage : partition.stages) {
    stages.push_back({{"replicas", stage.replicas},
                      {"device_type", stage.device_type},
                      {"recomputed", stage.recomputed}});
  }
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"num_stages", partition.num_stages},
                     {"value", partition.value},
                     {"bound", partition.bound},
                     {"bound_kind", partition.bound_kind},
                     {"optimal", partition.optimal},
                     {"time_limit_hit", partition.time_limit_hit},
                     {"stage_of_node", partition.stage_of_node},
                     {"stages", std::move(stages)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Partition> PartitionFromJson(std::string_view text) {
  absl::StatusOr<Json> json = internal::ParseJson(text);
  if (!json.ok()) return json.status();
  JsonFields fields(*json, "");
  if (auto status = internal::CheckFormat(fields, kFormat, kVersion); !status.ok()) return status;

  Partition partition;
  fields.Read("num_stages", partition.num_stages);
  fields.Read("value", partition.value);
  fields.Read("bound", partition.bound);
  fields.Read("bound_kind", partition.bound_kind);
  fields.Read("optimal", partition.optimal);
  fields.Read("time_limit_hit", partition.time_limit_hit, false);
  fields.Read("stage_of_node", partition.stage_of_node);
  if (json->contains("stages")) {  // files from before replicas have none
    fields.Each("stages", [&](JsonFields& f) {
      StageConfiguration& stage = partition.stages.emplace_back();
      f.Read("replicas", stage.replicas);
      f.Read("device_type", stage.device_type, 0);
      f.Read("recomputed", stage.recomputed, {});
      if (stage.replicas < 1) f.Fail("replicas", "want at least 1");
      if (stage.device_type < 0) f.Fail("device_type", "negative");
    });
  }
  if (!partition.stages.empty() &&
      static_cast<int>(partition.stages.size()) != partition.num_stages) {
    fields.Fail("stages", absl::StrCat("there are ", partition.stages.size(), ", num_stages is ",
                                       partition.num_stages));
  }
  if (partition.num_stages < 1) fields.Fail("num_stages", "want at least 1");
  for (size_t i = 0; i < partition.stage_of_node.size(); ++i) {
    const int stage = partition.stage_of_node[i];
    if (stage < 0 || stage >= partition.num_stages) {
      fields.Fail("stage_of_node",
                  absl::StrCat("node ", i, " is on stage ", stage, " of ", partition.num_stages));
    }
  }
  for (size_t s = 0; s < partition.stages.size(); ++s) {
    for (const int node : partition.stages[s].recomputed) {
      const bool here = node >= 0 && static_cast<size_t>(node) < partition.stage_of_node.size() &&
                        partition.stage_of_node[node] == static_cast<int>(s);
      if (!here) {
        fields.Fail("stages",
                    absl::StrCat("stage ", s, " recomputes node ", node, ", which is not on it"));
      }
    }
  }
  if (!fields.status().ok()) return fields.status();
  return partition;
}

}  // namespace autopart
