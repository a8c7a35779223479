// Small cost graphs, drawn, and seeded random ones.
#ifndef AUTOPART_TESTS_TESTING_GRAPHS_H_
#define AUTOPART_TESTS_TESTING_GRAPHS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "partitioner/cost_graph.h"

namespace autopart::testing {

// Adds node by node; values and nodes get the ids in which they are added, and a node's output is
// the value of the same name.
//
//   GraphBuilder builder;
//   const int x = builder.Input("x", 400);
//   const int h = builder.Node("linear", 2.0, {x}, 400);   // 2 ms, reads x, makes 400 bytes
//   CostGraph graph = builder.Build();
class GraphBuilder {
 public:
  int Input(const std::string& name, int64_t bytes);
  // Returns the value that it makes. The time is all forward.
  int Node(const std::string& name, double ms, const std::vector<int>& reads, int64_t bytes);
  int Parameter(const std::string& name, int64_t bytes, bool trains = true);

  CostNode& node_of(int value) { return graph_.nodes[graph_.values[value].producer]; }
  CostValue& value(int value) { return graph_.values[value]; }
  CostGraph Build() const { return graph_; }

 private:
  CostGraph graph_;
};

// x -> 0 -> 1 -> .. -> n-1, each `ms` and `bytes`.
CostGraph Chain(int num_nodes, double ms = 1, int64_t bytes = 0);

struct RandomGraphOptions {
  int num_nodes = 8;
  bool groups = false;
  bool memory = false;  // parameters, saved values, views, temporaries
  // Which node reads which (EdgeBit of all_dags.h), for at most 7 nodes; otherwise random.
  std::optional<uint32_t> edges;
};

// The same for a seed on every machine.
CostGraph RandomGraph(uint64_t seed, const RandomGraphOptions& options);

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_GRAPHS_H_
