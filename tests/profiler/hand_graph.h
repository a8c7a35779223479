// Small OpGraphs written by hand, for tests that do without a front end.
#ifndef AUTOPART_TESTS_PROFILER_HAND_GRAPH_H_
#define AUTOPART_TESTS_PROFILER_HAND_GRAPH_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "profiler/op_graph.h"
#include "profiler/run_node.h"

namespace autopart::testing {

struct HandGraph {
  OpGraph graph;

  int NewValue(const std::string& name, const std::vector<int64_t>& sizes, bool requires_grad,
               at::ScalarType dtype = at::kFloat) {
    Value value;
    value.name = name;
    value.tensor.emplace();
    value.tensor->dtype = dtype;
    for (int64_t size : sizes) value.tensor->sizes.push_back({size, ""});
    value.tensor->strides.assign(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) {
      value.tensor->strides[i - 1] = value.tensor->strides[i] * std::max<int64_t>(1, sizes[i]);
    }
    value.requires_grad = requires_grad;
    graph.values.push_back(value);
    return static_cast<int>(graph.values.size()) - 1;
  }

  int Input(const std::string& name, const std::vector<int64_t>& sizes,
            at::ScalarType dtype = at::kFloat) {
    const int value = NewValue(name, sizes, false, dtype);
    graph.inputs.push_back({name, value, {}, 0});
    return value;
  }

  int Param(const std::string& name, const std::vector<int64_t>& sizes, bool is_buffer = false) {
    const int value = NewValue(name, sizes, !is_buffer);
    Parameter parameter;
    parameter.name = name;
    parameter.meta = *graph.values[value].tensor;
    parameter.is_buffer = is_buffer;
    parameter.trains = !is_buffer;
    parameter.value = value;
    graph.parameters.push_back(parameter);
    return value;
  }

  // Runs the operator on meta tensors (on CPU where `cpu`) to find its one result's shape.
  int Op(const std::string& op, const std::string& overload, std::vector<Argument> args) {
    Node node;
    node.op = op;
    node.overload = overload;
    node.args = std::move(args);
    node.module_path = "hand";
    bool requires_grad = false;
    std::vector<c10::IValue> slots(graph.values.size() + 1);
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (!graph.values[v].tensor) continue;
      slots[v] = at::empty_strided(graph.values[v].tensor->Sizes(), graph.values[v].tensor->strides,
                                   at::TensorOptions().dtype(graph.values[v].tensor->dtype))
                     .zero_();
    }
    for (const Argument& argument : node.args) {
      ForEachValue(argument,
                   [&](int v) { requires_grad = requires_grad || graph.values[v].requires_grad; });
    }
    const int output = static_cast<int>(graph.values.size());
    node.outputs = {output};
    const absl::StatusOr<CompiledNode> compiled = CompileNode(node);
    if (!compiled.ok()) throw std::runtime_error(std::string(compiled.status().message()));
    RunNode(*compiled, slots, {});
    const at::Tensor result = slots[output].toTensor();
    NewValue(op, result.sizes().vec(), requires_grad && result.is_floating_point(),
             result.scalar_type());
    Value& value = graph.values[output];
    value.tensor->strides = result.strides().vec();
    value.producer = static_cast<int>(graph.nodes.size());
    for (int v = 0; v < output; ++v) {
      if (value.view_of == kNoValue && slots[v].isTensor() &&
          slots[v].toTensor().is_alias_of(result)) {
        value.view_of = v;
      }
    }
    graph.nodes.push_back(std::move(node));
    return output;
  }
};

inline Argument Ref(int value) { return {ValueRef{value}}; }
inline Argument Const(c10::IValue value) { return {std::move(value)}; }

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_PROFILER_HAND_GRAPH_H_
