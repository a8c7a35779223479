#include "pipeline/internal/advice.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/wishes.h"

namespace autopart::internal {
namespace {

bool IsSearched(const PlannerOptions& o) { return o.search == SearchSpace::kAll; }

// False: there is no such wish.
template <typename T>
bool Drop(std::optional<T>& wish) {
  const bool had = wish.has_value();
  wish.reset();
  return had;
}

struct Change {
  const char* words;
  bool (*make)(PlannerOptions&);  // false: is so already
};
constexpr Change kChanges[] = {
    {"With --shard-optimizer",
     [](PlannerOptions& o) {
       if (!o.training || o.shard_optimizer.value_or(IsSearched(o))) return false;
       o.shard_optimizer = true;
       return true;
     }},
    {"With --recompute auto",
     [](PlannerOptions& o) {
       if (!o.training || o.recompute.value_or(IsSearched(o) ? "auto" : "none") != "none")
         return false;
       o.recompute = "auto";
       return true;
     }},
    {"With --recompute auto --shard-optimizer",
     [](PlannerOptions& o) {
       if (!o.training || (o.recompute && o.shard_optimizer) || IsSearched(o)) return false;
       o.recompute = "auto";
       o.shard_optimizer = true;
       return true;
     }},
    {"With --optimizer sgd",
     [](PlannerOptions& o) {
       if (!o.training || o.optimizer == "sgd") return false;
       o.optimizer = "sgd";
       return true;
     }},
    // What the user fixed.
    {"Without --schedule", [](PlannerOptions& o) { return Drop(o.schedule); }},
    {"Without --replicas", [](PlannerOptions& o) { return Drop(o.replicas); }},
    {"Without --stages",
     [](PlannerOptions& o) {
       const bool had = Drop(o.stages);
       return Drop(o.replicas) || had;
     }},
    {"Without --pin",
     [](PlannerOptions& o) {
       const bool had = !o.pins.empty();
       o.pins.clear();
       return had;
     }},
};

}  // namespace

std::string Advice(const Cluster& cluster, const PlannerOptions& options, const FitsWith& fits) {
  for (const Change& change : kChanges) {
    PlannerOptions wish = options;
    if (!change.make(wish)) continue;
    if (const auto found = fits(cluster, wish)) {
      return absl::StrCat(change.words, " it ", *found, ".");
    }
  }
  // More hosts, or devices in the one host, of the same kinds.
  for (int factor = 2; factor <= 64 && cluster.num_devices() * factor <= kMostDevices;
       factor *= 2) {
    Cluster more = cluster;
    for (HostGroup& hosts : more.hosts) {
      if (cluster.num_hosts() > 1) {
        hosts.count *= factor;
      } else {
        for (DeviceGroup& group : hosts.devices) group.count *= factor;
      }
    }
    PlannerOptions wish = options;
    if (wish.stages && wish.replicas) wish.replicas.reset();
    if (const auto found = fits(more, wish)) {
      return absl::StrCat("With ", more.num_devices(), " such devices it ", *found, ".");
    }
  }
  return "Neither recomputation, nor a sharded optimizer, nor up to 64 times the devices would "
         "fit: "
         "try a smaller micro-batch";
}

}  // namespace autopart::internal
