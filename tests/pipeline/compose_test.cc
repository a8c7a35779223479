// Scratch of a stage's backward, by hand.
#include <gtest/gtest.h>

#include "pipeline/simulate.h"

namespace autopart {
namespace {

// input -> node 0 (a parameter) -> v1 -> node 1 -> v2 -> node 2 -> loss; each keeps what it reads.
// Temporary bytes are the gradients of what a node reads and makes; a forward needs 10.
CostGraph Chain() {
  CostGraph graph;
  graph.parameters = {{"weight", 10, 40, true}};
  graph.values = {{"input", kModelInput, {0}, 128, 0, kNoView, 0},
                  {"v1", 0, {1}, 128, 128, kNoView, 128},
                  {"v2", 1, {2}, 128, 128, kNoView, 128},
                  {"loss", 2, {}, 4, 4, kNoView, 4}};
  graph.nodes.resize(3);
  graph.nodes[0] = {"a", "", 1, 1, 1, {0}, {0}, 0, 168, kNoGroup, false, true, 10};
  graph.nodes[1] = {"b", "", 1, 1, 0, {}, {1}, 0, 256, kNoGroup, false, true, 10};
  graph.nodes[2] = {"c", "", 1, 1, 0, {}, {2}, 0, 132, kNoGroup, false, true, 10};
  graph.results = {3};
  graph.loss = 3;
  return graph;
}

int64_t ScratchOf(const CostGraph& graph) {
  Plan plan;
  plan.cluster = *UniformCluster("cpu", 1);
  plan.schedule = "1f1b";
  plan.micro_batches = 2;
  plan.stages.resize(1);
  plan.stages[0].ranks = {0};
  for (size_t n = 0; n < graph.nodes.size(); ++n) plan.stages[0].nodes.push_back(n);
  plan.stages[0].owned_parameters = {0};
  EXPECT_TRUE(ComposeCosts(graph, plan).ok());
  return plan.stages[0].held.temporary_bytes;
}

TEST(BackwardScratch, CountsGradientsOnceAndWhatWasFreedOnTheWay) {
  // The seed, and at node 2: 132. At node 1: 256, but v2 is gone. At node 0: 168, and v2 and v1 are
  // gone.
  EXPECT_EQ(ScratchOf(Chain()), 132 + 4);
}

TEST(BackwardScratch, IsTheForwardsWhereThatNeedsMore) {
  CostGraph graph = Chain();
  graph.nodes[1].temporary_bytes = graph.nodes[1].forward_temporary_bytes = 500;
  EXPECT_EQ(ScratchOf(graph), 500);
}

TEST(BackwardScratch, CountsAGradientThatWaitsForAnotherReader) {
  CostGraph graph = Chain();
  for (CostNode& node : graph.nodes) node.saved_values.clear();
  EXPECT_EQ(ScratchOf(graph), 128 + 128 + 10);  // nothing is kept: a forward needs most
  graph.values[1].consumers = {1, 2};
  graph.nodes[2].temporary_bytes = 132 + 128;
  // At node 1 the gradient of v1 from node 2 is there, and the sum of both is made.
  EXPECT_EQ(ScratchOf(graph), 256 + 128 + 128 + 4);
}

TEST(BackwardScratch, CountsAGradientOfAParameterThatIsUsedTwice) {
  CostGraph graph = Chain();
  for (CostNode& node : graph.nodes) node.saved_values.clear();
  graph.nodes[2].parameters = {0};
  graph.nodes[2].temporary_bytes = 132 + 40;
  // Node 1 with the parameter's first gradient waiting.
  EXPECT_EQ(ScratchOf(graph), 256 + 40 + 4);
}

}  // namespace
}  // namespace autopart
