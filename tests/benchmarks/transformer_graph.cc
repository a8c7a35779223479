#include "tests/benchmarks/transformer_graph.h"

#include <algorithm>
#include <string>
#include <vector>

namespace autopart::testing {
namespace {

constexpr int64_t kHalf = 2;  // bytes of a number

class Builder {
 public:
  explicit Builder(const TransformerOptions& options) : options_(options) {}

  int Input(const std::string& name, int64_t bytes) {
    CostValue& value = graph_.values.emplace_back();
    value.name = name;
    value.bytes = bytes;
    return Last();
  }

  struct Operator {
    std::string name;
    double flops = 0;
    std::vector<int> reads;
    int64_t numbers = 0;              // that it makes
    std::vector<int64_t> parameters;  // numbers of each
    std::vector<int> saves;           // of what it reads
    bool saves_output = false;
    int64_t saved_bytes = 0;
  };
  int Add(const Operator& op) {
    const int n = static_cast<int>(graph_.nodes.size());
    CostNode& node = graph_.nodes.emplace_back();
    node.name = op.name;
    node.module = module_;
    double bytes = static_cast<double>(op.numbers * kHalf);
    for (const int read : op.reads) bytes += static_cast<double>(graph_.values[read].bytes);
    for (const int64_t numbers : op.parameters) {
      node.parameters.push_back(static_cast<int>(graph_.parameters.size()));
      graph_.parameters.push_back({node.module + "." + op.name, numbers, numbers * kHalf, true});
      bytes += static_cast<double>(numbers * kHalf);
    }
    node.forward_ms =
        std::max(op.flops / options_.flops_per_ms, bytes / options_.memory_bytes_per_ms);
    node.backward_input_ms = node.forward_ms;
    if (op.flops > 0) node.backward_weight_ms = node.forward_ms;
    node.saved_values = op.saves;
    node.saved_bytes = op.saved_bytes;
    std::vector<int> readers = op.reads;
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    for (const int read : readers) graph_.values[read].consumers.push_back(n);
    CostValue& made = graph_.values.emplace_back();
    made.name = node.module + "." + op.name;
    made.producer = n;
    made.bytes = made.gradient_bytes = made.storage_bytes = op.numbers * kHalf;
    if (op.saves_output) graph_.nodes[n].saved_values.push_back(Last());
    std::sort(graph_.nodes[n].saved_values.begin(), graph_.nodes[n].saved_values.end());
    return Last();
  }

  void SetModule(const std::string& module) { module_ = module; }
  CostGraph Build(int loss) {
    graph_.device = "roofline";
    graph_.results = {loss};
    graph_.loss = loss;
    return graph_;
  }

 private:
  int Last() const { return static_cast<int>(graph_.values.size()) - 1; }

  const TransformerOptions options_;
  CostGraph graph_;
  std::string module_;
};

}  // namespace

CostGraph TransformerGraph(const TransformerOptions& o) {
  Builder builder(o);
  const int64_t tokens = o.batch * o.sequence, h = o.hidden;
  const int64_t size = tokens * h, scores = o.batch * o.heads * o.sequence * o.sequence;
  const double attend = 2.0 * tokens * o.sequence * h;
  const auto norm = [&](int x) {
    return builder.Add({.name = "layer_norm",
                        .reads = {x},
                        .numbers = size,
                        .parameters = {2 * h},
                        .saves = {x},
                        .saved_bytes = 8 * tokens});
  };
  const auto dropout = [&](int x, int64_t numbers) {
    return builder.Add(
        {.name = "dropout", .reads = {x}, .numbers = numbers, .saved_bytes = numbers});
  };
  const auto linear = [&](int x, int64_t in, int64_t out) {
    return builder.Add({.name = "linear",
                        .flops = 2.0 * tokens * in * out,
                        .reads = {x},
                        .numbers = tokens * out,
                        .parameters = {in * out},
                        .saves = {x}});
  };
  const auto add = [&](int a, int b) {
    return builder.Add({.name = "add", .reads = {a, b}, .numbers = size});
  };

  const int ids = builder.Input("tokens", 8 * tokens);
  const int targets = builder.Input("targets", 8 * tokens);
  builder.SetModule("embedding");
  int x = builder.Add({.name = "embedding",
                       .reads = {ids},
                       .numbers = size,
                       .parameters = {o.vocabulary * h},
                       .saves = {ids}});
  x = dropout(x, size);
  for (int layer = 0; layer < o.layers; ++layer) {
    builder.SetModule("layers." + std::to_string(layer));
    const int y = norm(x);
    const int q = linear(y, h, h), k = linear(y, h, h), v = linear(y, h, h);
    int context;
    if (o.fused_attention) {
      context = builder.Add({.name = "attention",
                             .flops = 2 * attend,
                             .reads = {q, k, v},
                             .numbers = size,
                             .saves = {q, k, v},
                             .saves_output = true,
                             .saved_bytes = 4 * o.batch * o.heads * o.sequence});
    } else {
      const int raw = builder.Add(
          {.name = "matmul", .flops = attend, .reads = {q, k}, .numbers = scores, .saves = {q, k}});
      const int soft =
          builder.Add({.name = "softmax", .reads = {raw}, .numbers = scores, .saves_output = true});
      const int dropped = dropout(soft, scores);
      context = builder.Add({.name = "matmul",
                             .flops = attend,
                             .reads = {dropped, v},
                             .numbers = size,
                             .saves = {v, dropped}});
    }
    x = add(x, dropout(linear(context, h, h), size));
    const int wide = linear(norm(x), h, 4 * h);
    const int gelu =
        builder.Add({.name = "gelu", .reads = {wide}, .numbers = 4 * size, .saves = {wide}});
    x = add(x, dropout(linear(gelu, 4 * h, h), size));
  }
  builder.SetModule("head");
  const int logits = linear(norm(x), h, o.vocabulary);
  const int loss = builder.Add({.name = "cross_entropy",
                                .reads = {targets, logits},
                                .numbers = 2,
                                .saves = {targets},
                                .saved_bytes = kHalf * tokens * o.vocabulary});
  return builder.Build(loss);
}

}  // namespace autopart::testing
