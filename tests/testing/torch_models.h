// The model files that tests/testing/make_models.py writes, and running a graph by hand.
#ifndef AUTOPART_TESTS_TESTING_TORCH_MODELS_H_
#define AUTOPART_TESTS_TESTING_TORCH_MODELS_H_

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "profiler/model.h"
#include "profiler/run_node.h"

namespace autopart::testing {

inline std::string ModelPath(const std::string& name) {
  return std::string(AUTOPART_TEST_MODELS) + "/" + name + ".pt";
}

struct Example {
  std::vector<at::Tensor> inputs, outputs;
};

inline Example LoadExample(const std::string& name) {
  torch::jit::Module holder =
      torch::jit::load(std::string(AUTOPART_TEST_MODELS) + "/" + name + ".io.pt");
  const c10::IValue both = holder.forward({});
  Example example;
  for (const c10::IValue& t : both.toTupleRef().elements()[0].toListRef()) {
    example.inputs.push_back(t.toTensor());
  }
  for (const c10::IValue& t : both.toTupleRef().elements()[1].toListRef()) {
    example.outputs.push_back(t.toTensor());
  }
  return example;
}

// All nodes in order; throws what they throw.
inline std::vector<c10::IValue> RunGraph(const OpGraph& graph,
                                         const std::map<std::string, at::Tensor>& tensors,
                                         const std::vector<at::Tensor>& inputs,
                                         const RunContext& context = {}) {
  std::vector<c10::IValue> slots(graph.values.size());
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    slots[graph.inputs[i].value] =
        graph.inputs[i].scalar ? *graph.inputs[i].scalar : c10::IValue(inputs.at(i));
  }
  for (const Parameter& p : graph.parameters) {
    if (p.value != kNoValue) slots[p.value] = tensors.at(p.name);
  }
  for (const ConstantTensor& c : graph.constants) {
    if (c.value != kNoValue) slots[c.value] = c.tensor;
  }
  const auto nodes = CompileNodes(graph.nodes);
  TORCH_CHECK(nodes.ok(), std::string(nodes.status().message()));
  for (const CompiledNode& node : *nodes) RunNode(node, slots, context);
  std::vector<c10::IValue> outputs;
  for (const Argument& output : graph.outputs) outputs.push_back(Evaluate(output, slots, context));
  return outputs;
}

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_TORCH_MODELS_H_
