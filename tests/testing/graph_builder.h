// OpGraphs written by hand: each call is run as it is added, so shapes and gradient flags are real.
#ifndef AUTOPART_TESTS_TESTING_GRAPH_BUILDER_H_
#define AUTOPART_TESTS_TESTING_GRAPH_BUILDER_H_

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "profiler/model.h"
#include "profiler/op_graph.h"

namespace autopart::testing {

class GraphBuilder {
 public:
  // Values. `example` gives shape and dtype.
  int Input(const std::string& name, const at::Tensor& example, int batch_axis = 0);
  int Parameter(const std::string& name, const at::Tensor& tensor);  // trains
  int Buffer(const std::string& name, const at::Tensor& tensor);
  int Constant(const at::Tensor& tensor);

  // Adds "aten::linear" or "aten::add.Tensor" with its leading arguments, defaults filled in.
  // Constants are IValues, values V(id), lists Items({...}).
  static Argument V(int value);
  static Argument C(at::IValue constant);
  static Argument Items(std::vector<Argument> items);
  std::vector<int> Calls(const std::string& op, std::vector<Argument> args, int num_outputs,
                         const std::string& module_path);
  int Call(const std::string& op, std::vector<Argument> args, const std::string& module_path = "");
  // The node added last, for flags.
  Node& last() { return model_.graph.nodes.back(); }

  int Output(int value);
  void Loss(int value) { model_.graph.loss_output = Output(value); }

  Model& model() { return model_; }

 private:
  int AddParameter(const std::string& name, const at::Tensor& tensor, bool trains);
  int AddValue(const at::IValue& example, int producer, int output_index);

  Model model_;
  std::vector<at::IValue> examples_;
};

// What plain PyTorch gives: all nodes in order on one device, micro-batch by micro-batch,
// gradients accumulated. Works on copies of the model's tensors (`state`, made if empty).
struct Reference {
  at::Tensor loss;
  std::vector<std::vector<at::IValue>> outputs;
  std::map<std::string, at::Tensor> tensors;  // with gradients
};
Reference RunReference(const Model& model, const std::vector<std::vector<at::IValue>>& inputs,
                       const std::vector<double>& weights, uint64_t seed, uint64_t step);

// A deep copy of the model's tensors.
Model CopyModel(const Model& model);

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_GRAPH_BUILDER_H_
