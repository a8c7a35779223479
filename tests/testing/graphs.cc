#include "tests/testing/graphs.h"

#include <algorithm>
#include <random>

#include "tests/testing/all_dags.h"

namespace autopart::testing {

int GraphBuilder::Input(const std::string& name, int64_t bytes) {
  CostValue& value = graph_.values.emplace_back();
  value.name = name;
  value.bytes = bytes;
  return static_cast<int>(graph_.values.size()) - 1;
}

int GraphBuilder::Node(const std::string& name, double ms, const std::vector<int>& reads,
                       int64_t bytes) {
  const int id = static_cast<int>(graph_.nodes.size());
  CostNode& node = graph_.nodes.emplace_back();
  node.name = name;
  node.forward_ms = ms;
  for (const int read : reads) {
    std::vector<int>& consumers = graph_.values[read].consumers;
    if (consumers.empty() || consumers.back() != id) consumers.push_back(id);
  }
  CostValue& value = graph_.values.emplace_back();
  value.name = name;
  value.producer = id;
  value.bytes = bytes;
  value.storage_bytes = bytes;
  return static_cast<int>(graph_.values.size()) - 1;
}

int GraphBuilder::Parameter(const std::string& name, int64_t bytes, bool trains) {
  graph_.parameters.push_back({name, bytes / 4, bytes, trains});
  return static_cast<int>(graph_.parameters.size()) - 1;
}

CostGraph Chain(int num_nodes, double ms, int64_t bytes) {
  GraphBuilder builder;
  int value = builder.Input("x", bytes);
  for (int i = 0; i < num_nodes; ++i) {
    value = builder.Node("n" + std::to_string(i), ms, {value}, bytes);
  }
  CostGraph graph = builder.Build();
  graph.results = {value};
  return graph;
}

CostGraph RandomGraph(uint64_t seed, const RandomGraphOptions& options) {
  std::mt19937_64 random(seed);  // its numbers, unlike <random>'s distributions, are standard
  const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
  GraphBuilder builder;
  std::vector<int> values = {builder.Input("x", below(50)), builder.Input("y", below(50))};
  std::vector<int> parameters;
  if (options.memory) {
    for (int p = 0; p < 4; ++p) {
      parameters.push_back(builder.Parameter("p" + std::to_string(p), 4 * below(20), below(3) > 0));
    }
  }
  for (int n = 0; n < options.num_nodes; ++n) {
    std::vector<int> reads;
    if (options.edges) {
      if (below(4) == 0) reads.push_back(values[below(2)]);
      for (int from = 0; from < n; ++from) {
        if (*options.edges & EdgeBit(from, n)) reads.push_back(values[2 + from]);
      }
      if (reads.empty()) reads.push_back(values[0]);
    } else {
      for (int r = below(3); r >= 0; --r) {
        // Recent values mostly, so that the graphs are deep.
        const int size = static_cast<int>(values.size());
        reads.push_back(values[below(2) == 0 ? size - 1 - below(std::min(size, 3)) : below(size)]);
      }
      std::sort(reads.begin(), reads.end());
    }
    const int made = builder.Node("n" + std::to_string(n), below(8), reads, below(40));
    CostNode& node = builder.node_of(made);
    node.backward_input_ms = below(4);
    if (below(2) == 0) builder.value(made).gradient_bytes = below(40);
    if (options.groups && below(3) == 0) node.group = below(3);
    if (below(8) == 0) node.copyable = true;
    if (options.memory) {
      for (const int p : parameters) {
        if (below(4) == 0) node.parameters.push_back(p);
      }
      if (below(3) == 0) {
        builder.value(made).view_of = reads[0];
        builder.value(made).storage_bytes = 0;
      }
      for (const int value : {reads[0], made}) {
        const bool twice = !node.saved_values.empty() && node.saved_values.back() == value;
        if (below(2) == 0 && !twice) node.saved_values.push_back(value);
      }
      node.saved_bytes = below(10);
      node.temporary_bytes = below(30);
    }
    values.push_back(made);
  }
  CostGraph graph = builder.Build();
  // Only values that the model's inputs are not: those have no memory of their own.
  graph.results = {values.back()};
  return graph;
}

}  // namespace autopart::testing
