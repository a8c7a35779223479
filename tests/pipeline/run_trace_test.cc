#include "pipeline/run_trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace autopart {
namespace {

TEST(RunTrace, HasASpanForEveryActionOfEveryRank) {
  RunRecord record;
  record.ranks.resize(2);
  record.ranks[0].actions = {{*ParseAction("0F3"), 0, 0.5, 0, 0},
                             {*ParseAction("0STEP"), 0.5, 1, 0, 0}};
  record.ranks[1].rank = 1;
  record.ranks[1].actions = {{*ParseAction("1RECV_F3<0"), 0.25, 0.75, 0, 0}};
  const nlohmann::json trace = nlohmann::json::parse(RunTrace(record));
  std::vector<std::string> spans;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    spans.push_back(event["name"].get<std::string>() + " " + event["cat"].get<std::string>() +
                    " on " + event["pid"].dump() + " at " + event["ts"].dump() + " for " +
                    event["dur"].dump());
  }
  EXPECT_EQ(spans, (std::vector<std::string>{"0F3 forward on 0 at 0.0 for 500000.0",
                                             "0STEP optimizer on 0 at 500000.0 for 500000.0",
                                             "1RECV_F3<0 receive on 1 at 250000.0 for 500000.0"}));
}

}  // namespace
}  // namespace autopart
