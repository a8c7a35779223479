#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pipeline/report.h"
#include "tests/pipeline/many_plans.h"

namespace autopart {
namespace {

using Json = nlohmann::json;

Json Trace(const Plan& plan) { return Json::parse(*RenderPlan(plan, "trace", {})); }

std::vector<Json> EventsOf(const Json& trace, const char* kind) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == kind) events.push_back(event);
  }
  return events;
}

class TraceReport : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { plans_ = new std::vector<NamedPlan>(ManyPlans()); }
  static void TearDownTestSuite() { delete plans_; }

  static std::vector<NamedPlan>* plans_;
};
std::vector<NamedPlan>* TraceReport::plans_ = nullptr;

TEST_F(TraceReport, HasNoOverlapsOnAThread) {
  for (const auto& [name, plan] : *plans_) {
    std::map<std::pair<int, int>, std::vector<std::pair<int64_t, int64_t>>> spans;
    for (const Json& e : EventsOf(Trace(plan), "X")) {
      const int64_t start = std::llround(e["ts"].get<double>() * 1000);
      const int64_t length = std::llround(e["dur"].get<double>() * 1000);
      EXPECT_GE(start, 0) << name;
      EXPECT_GE(length, 0) << name;
      spans[{e["pid"], e["tid"]}].emplace_back(start, start + length);
    }
    EXPECT_FALSE(spans.empty()) << name;
    for (auto& [thread, list] : spans) {
      std::sort(list.begin(), list.end());
      for (size_t i = 1; i < list.size(); ++i) {
        EXPECT_GE(list[i].first, list[i - 1].second)
            << name << " rank " << thread.first << " thread " << thread.second;
      }
    }
  }
}

TEST_F(TraceReport, HasAnEndToEveryArrowAndASpanAtBothEnds) {
  for (const auto& [name, plan] : *plans_) {
    const Json trace = Trace(plan);
    std::set<std::tuple<int, int, double>> spans;
    for (const Json& e : EventsOf(trace, "X")) spans.emplace(e["pid"], e["tid"], e["ts"]);
    std::set<int> starts, ends;
    for (const Json& e : EventsOf(trace, "s")) {
      EXPECT_TRUE(starts.insert(e["id"].get<int>()).second) << name;
      EXPECT_TRUE(spans.count({e["pid"], e["tid"], e["ts"]})) << name << e;
    }
    for (const Json& e : EventsOf(trace, "f")) {
      EXPECT_TRUE(ends.insert(e["id"].get<int>()).second) << name;
      EXPECT_TRUE(spans.count({e["pid"], e["tid"], e["ts"]})) << name << e;
    }
    EXPECT_EQ(starts, ends) << name;
    EXPECT_EQ(starts.empty(), plan.edges.empty()) << name;
  }
}

TEST_F(TraceReport, CountsMemoryThatIsNeverNegativeNorAbovePeak) {
  for (const auto& [name, plan] : *plans_) {
    std::map<int, int64_t> cap;
    const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
    ASSERT_TRUE(simulation.ok());
    std::map<int, double> last;
    for (const Json& e : EventsOf(Trace(plan), "C")) {
      int64_t total = 0;
      for (const auto& [kind, bytes] : e["args"].items()) {
        EXPECT_GE(bytes.get<int64_t>(), 0) << name << e;
        total += bytes.get<int64_t>();
      }
      const int rank = e["pid"];
      EXPECT_LE(total, simulation->ranks[rank].peak_bytes) << name << e;
      EXPECT_GT(e["ts"].get<double>(), last.count(rank) ? last[rank] : -1) << name;
      last[rank] = e["ts"];
    }
    EXPECT_FALSE(last.empty()) << name;
  }
}

TEST_F(TraceReport, NamesEveryProcessAndThread) {
  for (const auto& [name, plan] : *plans_) {
    const Json trace = Trace(plan);
    std::set<int> processes;
    std::set<std::pair<int, int>> threads;
    for (const Json& e : EventsOf(trace, "M")) {
      if (e["name"] == "process_name") processes.insert(e["pid"].get<int>());
      if (e["name"] == "thread_name") threads.emplace(e["pid"], e["tid"]);
    }
    for (const Json& e : EventsOf(trace, "X")) {
      EXPECT_TRUE(processes.count(e["pid"])) << name;
      EXPECT_TRUE(threads.count({e["pid"], e["tid"]})) << name;
    }
    EXPECT_EQ(trace["otherData"]["devices"], plan.num_devices());
  }
}

TEST_F(TraceReport, HasEveryComputeActionOnceAndTakesAsLongAsTheStep) {
  for (const auto& [name, plan] : *plans_) {
    if (plan.num_devices() > 64) continue;
    const absl::StatusOr<Schedule> schedule = BuildSchedule(plan);
    std::multiset<std::string> expected, found;
    for (const std::vector<Action>& actions : schedule->ranks) {
      for (const Action& action : actions) {
        if (action.kind <= ActionKind::kBackwardWeight) expected.insert(ToString(action));
      }
    }
    double end = 0;
    for (const Json& e : EventsOf(Trace(plan), "X")) {
      end = std::max(end, e["ts"].get<double>() + e["dur"].get<double>());
      for (const char* kind : {"forward", "backward", "backward of weights"}) {
        if (e["cat"] == kind) found.insert(e["name"].get<std::string>());
      }
    }
    EXPECT_EQ(found, expected) << name;
    EXPECT_NEAR(end, 1000 * plan.predicted_step_ms, 0.01) << name;
  }
}

TEST_F(TraceReport, ShowsOneReplicaOfEachStageOfALargePlanAndSaysSo) {
  const Plan& plan = plans_->back().plan;
  ASSERT_EQ(plan.num_devices(), 120);
  const Json trace = Trace(plan);
  std::set<int> ranks;
  for (const Json& e : EventsOf(trace, "X")) ranks.insert(e["pid"].get<int>());
  EXPECT_EQ(ranks.size(), plan.stages.size());
  EXPECT_EQ(trace["otherData"]["ranks_shown"],
            std::to_string(plan.stages.size()) + " of 120 ranks: the first replica of each stage");
}

}  // namespace
}  // namespace autopart
