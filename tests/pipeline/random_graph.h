// Random costs, for the properties that plans have.
#ifndef AUTOPART_TESTS_PIPELINE_RANDOM_GRAPH_H_
#define AUTOPART_TESTS_PIPELINE_RANDOM_GRAPH_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "partitioner/cost_graph.h"

namespace autopart {

// A random graph with skips, ties, views, groups and copyable nodes.
inline CostGraph RandomGraph(std::mt19937& random, int n) {
  CostGraph graph;
  graph.model_hash = "random";
  std::uniform_real_distribution<double> time(0, 1);
  for (int q = 0; q < n / 2 + 1; ++q) {
    const int64_t elements = 1 + random() % 100;
    graph.parameters.push_back({absl::StrCat("p", q), elements, 4 * elements, random() % 5 != 0});
  }
  graph.values.push_back({"input", kModelInput, {}, 100, 0, kNoView, 0});
  graph.values.push_back({"labels", kModelInput, {n - 1}, 50, 0, kNoView, 0});
  for (int i = 0; i < n; ++i) {
    CostNode node;
    node.name = "op";
    node.module = absl::StrCat("m.", i / 3);
    node.copyable = i > 0 && random() % 8 == 0;
    if (!node.copyable) {
      node.forward_ms = time(random);
      node.backward_input_ms = time(random);
      node.backward_weight_ms = time(random) / 2;
      node.temporary_bytes = random() % 50;
      node.saved_bytes = random() % 20;
      if (random() % 2 == 0)
        node.parameters = {static_cast<int>(random() % graph.parameters.size())};
      // Reads one or two older values.
      for (int k = 0; k < 2; ++k) {
        const int span = std::min<int>(graph.values.size(), 12);
        const int v = random() % 6 == 0 ? random() % graph.values.size()
                                        : graph.values.size() - 1 - random() % span;
        std::vector<int>& readers = graph.values[v].consumers;
        if (readers.empty() || readers.back() < i) {
          readers.push_back(i);
          if (random() % 2 == 0) node.saved_values.push_back(v);
        }
      }
      std::sort(node.saved_values.begin(), node.saved_values.end());
    }
    graph.nodes.push_back(node);
    CostValue value{absl::StrCat("v", i), i, {}, 0, 0, kNoView, 0};
    if (!node.copyable) {
      value.bytes = value.storage_bytes = 10 + random() % 100;
      if (random() % 4 != 0) value.gradient_bytes = value.bytes;
    }
    graph.values.push_back(value);
  }
  for (CostValue& value : graph.values) {
    std::sort(value.consumers.begin(), value.consumers.end());
    value.consumers.erase(std::unique(value.consumers.begin(), value.consumers.end()),
                          value.consumers.end());
  }
  graph.results = {static_cast<int>(graph.values.size()) - 1};
  graph.loss = graph.results[0];
  return graph;
}

}  // namespace autopart

#endif  // AUTOPART_TESTS_PIPELINE_RANDOM_GRAPH_H_
