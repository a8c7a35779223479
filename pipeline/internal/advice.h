// The smallest change with which something fits.
#ifndef AUTOPART_PIPELINE_INTERNAL_ADVICE_H_
#define AUTOPART_PIPELINE_INTERNAL_ADVICE_H_

#include <functional>
#include <optional>
#include <string>

#include "pipeline/cluster.h"
#include "pipeline/planner.h"

namespace autopart::internal {

// What fits with these devices and wishes, in words; empty where nothing does.
using FitsWith = std::function<std::optional<std::string>(const Cluster&, const PlannerOptions&)>;

// A sentence: the first change with which something fits, from what costs least to more devices.
// One search a change tried.
std::string Advice(const Cluster& cluster, const PlannerOptions& options, const FitsWith& fits);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_ADVICE_H_
