#include "pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;

// replicas[s] ranks for stage s, numbered in order.
StagePlacement Place(const std::vector<int>& replicas, int micro_batches) {
  StagePlacement placement;
  placement.micro_batches = micro_batches;
  for (const int d : replicas) {
    placement.ranks.emplace_back();
    for (int r = 0; r < d; ++r) placement.ranks.back().push_back(placement.num_ranks++);
  }
  return placement;
}

// The compute letters of every rank, a line each.
std::string Draw(std::string_view name, const StagePlacement& placement) {
  absl::StatusOr<Schedule> schedule = GenerateSchedule(name, placement);
  if (!schedule.ok()) return std::string(schedule.status().message());
  return absl::StrCat("\n", ToString(*schedule));
}

std::string DrawLowered(std::string_view name, const StagePlacement& placement,
                        const std::vector<StageEdge>& edges) {
  absl::StatusOr<Schedule> schedule = GenerateSchedule(name, placement);
  if (!schedule.ok()) return std::string(schedule.status().message());
  absl::StatusOr<Schedule> lowered = Lower(*schedule, placement, edges);
  if (!lowered.ok()) return std::string(lowered.status().message());
  return absl::StrCat("\n", ToString(*lowered));
}

TEST(ActionText, GoesBothWays) {
  for (const char* text : {"2F5", "0B12", "3I0", "11W7", "2SEND_F5>3", "3RECV_F5<2", "2WAIT_F5>3",
                           "3SEND_B5>2", "2RECV_B5<3", "3WAIT_B5>2", "2REDUCE", "2STEP"}) {
    const absl::StatusOr<Action> action = ParseAction(text);
    ASSERT_TRUE(action.ok()) << action.status();
    EXPECT_EQ(ToString(*action), text);
  }
}

TEST(ActionText, ThatIsWrongIsNamedInTheError) {
  for (const char* text : {"", "F5", "2X5", "2F", "2F5>3", "2SEND_F5", "2SEND_F5<3", "2RECV_F5>3",
                           "2WAIT_F>3", "2REDUCE1", "-1F2", "2F-3", "2f5", "2F99999999999"}) {
    const absl::StatusOr<Action> action = ParseAction(text);
    EXPECT_EQ(action.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(action.status().message()), HasSubstr(absl::StrCat("'", text, "'")));
  }
}

TEST(GPipe, RunsAllForwardsThenAllBackwards) {
  EXPECT_EQ(Draw("gpipe", Place({1, 1}, 3)), R"(
0: 0F0 0F1 0F2 0B0 0B1 0B2
1: 1F0 1F1 1F2 1B0 1B1 1B2
)");
}

TEST(OneForwardOneBackward, WarmsUpWithOneForwardMoreAStageBefore) {
  EXPECT_EQ(Draw("1f1b", Place({1, 1, 1}, 4)), R"(
0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
)");
}

TEST(OneForwardOneBackward, TakesFewerMicroBatchesThanStages) {
  EXPECT_EQ(Draw("1f1b", Place({1, 1, 1}, 1)), R"(
0: 0F0 0B0
1: 1F0 1B0
2: 2F0 2B0
)");
}

TEST(ZeroBubbleH1, IsOneFOneBWithWeightsThatLagByTheStage) {
  EXPECT_EQ(Draw("zb-h1", Place({1, 1, 1}, 4)), R"(
0: 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
1: 1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
2: 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
)");
}

TEST(ZeroBubbleH1, RunsWeightsAtTheEndWhereMicroBatchesAreFew) {
  EXPECT_EQ(Draw("zb-h1", Place({1, 2}, 3)), R"(
0: 0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2
1: 1F0 1I0 1F2 1I2 1W0 1W2
2: 1F1 1I1 1W1
)");
}

TEST(ExecutableSchedules, AreThoseWithoutASplitBackward) {
  EXPECT_THAT(ExecutableScheduleNames(), ::testing::ElementsAre("gpipe", "1f1b", "forward"));
}

TEST(ForwardOnly, HasNoBackward) {
  EXPECT_EQ(Draw("forward", Place({1, 1}, 2)), R"(
0: 0F0 0F1
1: 1F0 1F1
)");
}

TEST(Replicas, TakeMicroBatchesInTurn) {
  EXPECT_EQ(Draw("1f1b", Place({2, 2}, 5)), R"(
0: 0F0 0F2 0B0 0F4 0B2 0B4
1: 0F1 0F3 0B1 0B3
2: 1F0 1B0 1F2 1B2 1F4 1B4
3: 1F1 1B1 1F3 1B3
)");
}

TEST(Replicas, MayBeUnequal) {
  // Stage 0 alone has to keep ceil((1 + 2) / 1) = 3 micro-batches under way.
  EXPECT_EQ(Draw("1f1b", Place({1, 2}, 4)), R"(
0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
1: 1F0 1B0 1F2 1B2
2: 1F1 1B1 1F3 1B3
)");
}

TEST(Replicas, WithoutMicroBatchesDoNothing) {
  EXPECT_EQ(Draw("gpipe", Place({3}, 2)), R"(
0: 0F0 0B0
1: 0F1 0B1
2:
)");
}

TEST(StagesOnOneRank, AreMerged) {
  StagePlacement placement;
  placement.num_ranks = 2;
  placement.micro_batches = 3;
  placement.ranks = {{0}, {1}, {0}};  // rank 0 has the first and the last stage
  EXPECT_EQ(Draw("1f1b", placement), R"(
0: 0F0 0F1 2F0 2B0 2F1 2B1 0F2 0B0 2F2 2B2 0B1 0B2
1: 1F0 1F1 1B0 1F2 1B1 1B2
)");
}

TEST(GenerateSchedule, ListsTheNamesItKnows) {
  EXPECT_EQ(Draw("zigzag", Place({1}, 1)),
            "unknown schedule 'zigzag': known are gpipe, 1f1b, interleaved, zb-h1, zb-v, forward");
}

TEST(GenerateSchedule, RefusesImpossiblePlacements) {
  EXPECT_THAT(Draw("1f1b", Place({1}, 0)), HasSubstr("at least 1 micro-batch, not 0"));
  StagePlacement placement = Place({1, 1}, 1);
  placement.ranks[1] = {5};
  EXPECT_THAT(Draw("1f1b", placement), HasSubstr("stage 1 is on rank 5"));
  placement.ranks[1] = {1, 1};
  EXPECT_THAT(Draw("1f1b", placement), HasSubstr("stage 1 lists rank 1 twice"));
  placement.ranks[1] = {};
  EXPECT_THAT(Draw("1f1b", placement), HasSubstr("stage 1 has no rank"));
}

TEST(Lower, PutsReceivesBeforeAndSendsAfterTheCompute) {
  EXPECT_EQ(DrawLowered("1f1b", Place({1, 1}, 3), {{0, 1, {0}, true}}), R"(
0: 0F0 0SEND_F0>1 0F1 0SEND_F1>1 0WAIT_F0>1 0RECV_B0<1 0B0 0F2 0SEND_F2>1 0WAIT_F1>1 0RECV_B1<1 0B1 0WAIT_F2>1 0RECV_B2<1 0B2 0REDUCE 0STEP
1: 1RECV_F0<0 1F0 1B0 1SEND_B0>0 1RECV_F1<0 1F1 1B1 1SEND_B1>0 1RECV_F2<0 1F2 1B2 1WAIT_B0>0 1SEND_B2>0 1WAIT_B1>0 1WAIT_B2>0 1REDUCE 1STEP
)");
}

TEST(Lower, KeepsTwoForwardOnlyMessagesUnderWay) {
  EXPECT_EQ(DrawLowered("forward", Place({1, 1}, 4), {{0, 1, {0}, true}}), R"(
0: 0F0 0SEND_F0>1 0F1 0SEND_F1>1 0WAIT_F0>1 0F2 0SEND_F2>1 0WAIT_F1>1 0F3 0SEND_F3>1 0WAIT_F2>1 0WAIT_F3>1
1: 1RECV_F0<0 1F0 1RECV_F1<0 1F1 1RECV_F2<0 1F2 1RECV_F3<0 1F3
)");
}

TEST(Lower, LetsASkipOverStagesRunFurtherAhead) {
  // Stage 2 does micro-batch 0 when stage 0 has done 0, 1 and 2.
  EXPECT_EQ(DrawLowered("forward", Place({1, 1, 1}, 4),
                        {{0, 1, {0}, false}, {0, 2, {1}, false}, {1, 2, {2}, false}}),
            R"(
0: 0F0 0SEND_F0>1 0SEND_F0>2 0F1 0SEND_F1>1 0SEND_F1>2 0WAIT_F0>1 0F2 0SEND_F2>1 0SEND_F2>2 0WAIT_F1>1 0WAIT_F0>2 0F3 0SEND_F3>1 0SEND_F3>2 0WAIT_F1>2 0WAIT_F2>1 0WAIT_F2>2 0WAIT_F3>1 0WAIT_F3>2
1: 1RECV_F0<0 1F0 1SEND_F0>2 1RECV_F1<0 1F1 1SEND_F1>2 1WAIT_F0>2 1RECV_F2<0 1F2 1SEND_F2>2 1WAIT_F1>2 1RECV_F3<0 1F3 1SEND_F3>2 1WAIT_F2>2 1WAIT_F3>2
2: 2RECV_F0<1 2RECV_F0<0 2F0 2RECV_F1<1 2RECV_F1<0 2F1 2RECV_F2<1 2RECV_F2<0 2F2 2RECV_F3<1 2RECV_F3<0 2F3
)");
}

TEST(Lower, GivesOneStageOnlyReduceAndStep) {
  EXPECT_EQ(DrawLowered("1f1b", Place({1}, 2), {}), R"(
0: 0F0 0B0 0F1 0B1 0REDUCE 0STEP
)");
}

TEST(Lower, SendsNoGradientWhereNoneFlows) {
  EXPECT_EQ(DrawLowered("gpipe", Place({1, 1}, 1), {{0, 1, {0}, false}}), R"(
0: 0F0 0SEND_F0>1 0B0 0WAIT_F0>1 0REDUCE 0STEP
1: 1RECV_F0<0 1F0 1B0 1REDUCE 1STEP
)");
}

TEST(Lower, RefusesEdgesThatGoBack) {
  EXPECT_THAT(DrawLowered("gpipe", Place({1, 1}, 1), {{1, 0, {0}, true}}),
              HasSubstr("edge from stage 1 to stage 0"));
}

TEST(Lower, TakesSplitBackwards) {
  Schedule compute{"by hand", {}};
  for (const char* list : {"0F0 0I0 0W0", "1F0 1I0 1W0"}) {
    compute.ranks.emplace_back();
    for (const std::string& text : std::vector<std::string>(absl::StrSplit(list, ' '))) {
      compute.ranks.back().push_back(*ParseAction(text));
    }
  }
  const absl::StatusOr<Schedule> lowered = Lower(compute, Place({1, 1}, 1), {{0, 1, {0}, true}});
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_EQ(absl::StrCat("\n", ToString(*lowered)), R"(
0: 0F0 0SEND_F0>1 0WAIT_F0>1 0RECV_B0<1 0I0 0W0 0REDUCE 0STEP
1: 1RECV_F0<0 1F0 1I0 1SEND_B0>0 1W0 1WAIT_B0>0 1REDUCE 1STEP
)");
}

// Each row spoils a good schedule of two stages and says what the check must find.
TEST(ValidateSchedule, FindsWhatIsWrong) {
  const StagePlacement placement = Place({1, 1}, 2);
  const std::vector<StageEdge> edges = {{0, 1, {0}, true}};
  const Schedule good = *Lower(*GenerateSchedule("1f1b", placement), placement, edges);
  ASSERT_TRUE(Validate(good, placement, edges).ok());
  const auto position = [&](int rank, std::string_view text) {
    const std::vector<Action>& list = good.ranks[rank];
    return std::find(list.begin(), list.end(), *ParseAction(text)) - list.begin();
  };
  struct Row {
    const char* name;
    int rank;
    const char* action;
    const char* instead;  // "" removes it
    const char* expected;
  };
  for (const Row& row : {
           Row{"forward lost", 0, "0F1", "", "0SEND_F1>1): stands before what it needs"},
           Row{"backward lost", 1, "1B1", "", "1SEND_B1>0): stands before what it needs"},
           Row{"twice", 0, "0F1", "0F0", "0F0): stands twice"},
           Row{"send lost", 0, "0SEND_F1>1", "", "0WAIT_F1>1): stands before what it needs"},
           Row{"wait lost", 0, "0WAIT_F1>1", "", "0WAIT_F1>1 is missing"},
           Row{"receive lost", 1, "1RECV_F1<0", "", "1F1): stands before what it needs"},
           Row{"gradient not received", 0, "0RECV_B1<1", "", "0B1): stands before"},
           Row{"wrong rank", 0, "0F1", "1F1", "1F1): the stage is not on this rank"},
           Row{"no such micro-batch", 0, "0F1", "0F7", "0F7): no such micro-batch"},
           Row{"no such stage", 0, "0F1", "4F1", "4F1): no such stage"},
           Row{"no such edge", 0, "0SEND_F1>1", "0SEND_F1>0", "no edge joins these stages"},
           Row{"no reduction", 0, "0REDUCE", "", "0STEP): stands before what it needs"},
           Row{"no end", 1, "1STEP", "", "1STEP is missing"},
       }) {
    Schedule spoiled = good;
    auto& list = spoiled.ranks[row.rank];
    const auto it = list.begin() + position(row.rank, row.action);
    if (*row.instead == '\0') {
      list.erase(it);
    } else {
      *it = *ParseAction(row.instead);
    }
    EXPECT_THAT(std::string(Validate(spoiled, placement, edges).message()), HasSubstr(row.expected))
        << row.name;
  }
}

}  // namespace
}  // namespace autopart
