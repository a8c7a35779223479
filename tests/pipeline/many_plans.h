// Plans of many shapes, for what every report must hold to.
#ifndef AUTOPART_TESTS_PIPELINE_MANY_PLANS_H_
#define AUTOPART_TESTS_PIPELINE_MANY_PLANS_H_

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "pipeline/planner.h"
#include "tests/pipeline/random_graph.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {

struct NamedPlan {
  std::string name;
  Plan plan;
};

// Two hosts with fast devices, one with slow ones.
inline Cluster MixedCluster() {
  Cluster cluster = *UniformCluster("h100", 2);
  cluster.hosts[0].name = "fast";
  cluster.hosts[0].count = 2;
  cluster.hosts[0].network = {12500, 0.02, true};
  cluster.hosts.push_back(UniformCluster("v100", 4)->hosts[0]);
  cluster.hosts[1].name = "slow";
  cluster.hosts[1].network = {1250, 0.05, false};
  return cluster;
}

inline std::vector<NamedPlan> ManyPlans() {
  std::mt19937 random(7);
  const CostGraph graph = RandomGraph(random, 40);
  std::vector<NamedPlan> plans = {{"small", SmallPlan()}};
  const auto add = [&](const std::string& name, const Cluster& cluster,
                       const PlannerOptions& options) {
    const absl::StatusOr<Plan> plan = MakePlan(graph, cluster, options);
    if (!plan.ok()) {
      std::cerr << name << ": " << plan.status() << "\n";
      std::abort();
    }
    plans.push_back({name, *plan});
  };
  const Cluster eight = *UniformCluster("h100", 8);
  for (const std::string& schedule : ScheduleNames()) {
    PlannerOptions options;
    options.schedule = schedule;
    options.training = schedule != "forward";
    if (schedule != "interleaved" && schedule != "zb-v") options.stages = 4;
    options.micro_batches = 16;
    add(schedule, eight, options);
  }
  PlannerOptions options;
  options.micro_batches = 24;
  add("free", eight, options);
  add("mixed", MixedCluster(), options);
  options.recompute = "all";
  options.shard_optimizer = true;
  options.replicas = 2;
  options.search = SearchSpace::kAll;
  add("recompute", eight, options);
  options = {};
  options.replicas = 40;
  options.micro_batches = 80;
  add("replicas", *UniformCluster("h100", 120), options);
  return plans;
}

}  // namespace autopart

#endif  // AUTOPART_TESTS_PIPELINE_MANY_PLANS_H_
