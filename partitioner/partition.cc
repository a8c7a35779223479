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
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"num_stages", partition.num_stages},
                     {"value", partition.value},
                     {"bound", partition.bound},
                     {"bound_kind", partition.bound_kind},
                     {"optimal", partition.optimal},
                     {"stage_of_node", partition.stage_of_node}};
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
  fields.Read("stage_of_node", partition.stage_of_node);
  if (partition.num_stages < 1) fields.Fail("num_stages", "want at least 1");
  for (size_t i = 0; i < partition.stage_of_node.size(); ++i) {
    const int stage = partition.stage_of_node[i];
    if (stage < 0 || stage >= partition.num_stages) {
      fields.Fail("stage_of_node",
                  absl::StrCat("node ", i, " is on stage ", stage, " of ", partition.num_stages));
    }
  }
  if (!fields.status().ok()) return fields.status();
  return partition;
}

}  // namespace autopart
