#include "tests/testing/graph_builder.h"

#include <stdexcept>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include "profiler/run_node.h"

namespace autopart::testing {
namespace {

TensorMeta MetaOf(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.dtype = tensor.scalar_type();
  for (const int64_t size : tensor.sizes()) meta.sizes.push_back({size, ""});
  meta.strides = tensor.strides().vec();
  return meta;
}

ValueKind KindOf(const at::IValue& value) {
  if (value.isTensor()) return ValueKind::kTensor;
  if (value.isInt()) return ValueKind::kInt;
  if (value.isDouble()) return ValueKind::kFloat;
  if (value.isBool()) return ValueKind::kBool;
  if (value.isString()) return ValueKind::kString;
  if (value.isNone()) return ValueKind::kNone;
  if (value.isTuple()) return ValueKind::kTuple;
  return value.isList() ? ValueKind::kList : ValueKind::kOther;
}

}  // namespace

int GraphBuilder::AddValue(const at::IValue& example, int producer, int output_index) {
  Value value;
  value.kind = KindOf(example);
  value.producer = producer;
  value.output_index = output_index;
  if (example.isTensor()) {
    value.tensor = MetaOf(example.toTensor());
    value.requires_grad = example.toTensor().requires_grad();
  } else if (example.isTuple()) {
    for (const at::IValue& item : example.toTupleRef().elements()) {
      value.requires_grad |= item.isTensor() && item.toTensor().requires_grad();
    }
  }
  examples_.push_back(example);
  model_.graph.values.push_back(std::move(value));
  return static_cast<int>(model_.graph.values.size()) - 1;
}

int GraphBuilder::Input(const std::string& name, const at::Tensor& example, int batch_axis) {
  const int value = AddValue(example, kNoNode, 0);
  model_.graph.inputs.push_back({name, value, std::nullopt, batch_axis});
  return value;
}

int GraphBuilder::AddParameter(const std::string& name, const at::Tensor& tensor, bool trains) {
  struct autopart::Parameter parameter;
  parameter.name = name;
  parameter.meta = MetaOf(tensor);
  parameter.is_buffer = !trains;
  parameter.trains = trains;
  parameter.value = AddValue(trains ? tensor : tensor.clone(), kNoNode, 0);
  model_.tensors[name] = tensor;
  model_.graph.parameters.push_back(parameter);
  return parameter.value;
}

int GraphBuilder::Parameter(const std::string& name, const at::Tensor& tensor) {
  return AddParameter(name, tensor.detach().requires_grad_(true), true);
}

int GraphBuilder::Buffer(const std::string& name, const at::Tensor& tensor) {
  return AddParameter(name, tensor, false);
}

int GraphBuilder::Constant(const at::Tensor& tensor) {
  const int value = AddValue(tensor, kNoNode, 0);
  model_.graph.constants.push_back(
      {"constant" + std::to_string(model_.graph.constants.size()), MetaOf(tensor), value, tensor});
  return value;
}

Argument GraphBuilder::V(int value) { return {ValueRef{value}}; }
Argument GraphBuilder::C(at::IValue constant) { return {std::move(constant)}; }
Argument GraphBuilder::Items(std::vector<Argument> items) {
  return {ArgumentList{std::move(items), false, c10::TensorType::get()}};
}

std::vector<int> GraphBuilder::Calls(const std::string& op, std::vector<Argument> args,
                                     int num_outputs, const std::string& module_path) {
  Node node;
  const size_t dot = op.find('.');
  node.op = op.substr(0, dot);
  node.overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  node.module_path = module_path;
  node.args = std::move(args);
  node.random_stream = model_.graph.nodes.size() + 1;
  const auto handle = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
  if (handle.has_value() && node.op != "autopart::dropout_mask") {
    const auto& arguments = handle->schema().arguments();
    for (size_t i = node.args.size(); i < arguments.size(); ++i) {
      node.args.push_back(C(arguments[i].default_value().value()));
    }
  }
  const int index = static_cast<int>(model_.graph.nodes.size());
  std::vector<int> outputs;
  for (int i = 0; i < num_outputs; ++i) {
    outputs.push_back(static_cast<int>(model_.graph.values.size()) + i);
  }
  node.outputs = outputs;
  const CompiledNode compiled = CompileNode(node).value();
  examples_.resize(model_.graph.values.size() + num_outputs);
  RunNode(compiled, examples_, {});
  std::vector<at::IValue> results(examples_.end() - num_outputs, examples_.end());
  examples_.resize(model_.graph.values.size());
  for (int i = 0; i < num_outputs; ++i) AddValue(results[i], index, i);
  model_.graph.nodes.push_back(std::move(node));
  return outputs;
}

int GraphBuilder::Call(const std::string& op, std::vector<Argument> args,
                       const std::string& module_path) {
  return Calls(op, std::move(args), 1, module_path)[0];
}

int GraphBuilder::Output(int value) {
  model_.graph.outputs.push_back(V(value));
  return static_cast<int>(model_.graph.outputs.size()) - 1;
}

Model CopyModel(const Model& model) {
  Model copy = model;
  for (auto& [name, tensor] : copy.tensors) {
    const bool requires_grad = tensor.requires_grad();
    tensor = tensor.detach().clone().requires_grad_(requires_grad);
  }
  return copy;
}

Reference RunReference(const Model& model, const std::vector<std::vector<at::IValue>>& inputs,
                       const std::vector<double>& weights, uint64_t seed, uint64_t step) {
  Reference reference;
  reference.tensors = CopyModel(model).tensors;
  const OpGraph& graph = model.graph;
  const std::vector<CompiledNode> nodes = CompileNodes(graph.nodes).value();
  for (size_t j = 0; j < inputs.size(); ++j) {
    std::vector<at::IValue> slots(graph.values.size());
    for (const struct Parameter& parameter : graph.parameters) {
      if (parameter.value != kNoValue) {
        slots[parameter.value] = reference.tensors.at(parameter.name);
      }
    }
    for (const ConstantTensor& constant : graph.constants) slots[constant.value] = constant.tensor;
    for (size_t i = 0; i < inputs[j].size(); ++i) {
      if (graph.inputs[i].value != kNoValue) slots[graph.inputs[i].value] = inputs[j][i];
    }
    RunContext context;
    context.random_key = RandomKey(seed, step, j);
    for (const CompiledNode& node : nodes) RunNode(node, slots, context);
    std::vector<at::IValue>& outputs = reference.outputs.emplace_back();
    for (const Argument& output : graph.outputs) {
      outputs.push_back(Evaluate(output, slots, context));
    }
    const at::Tensor loss = outputs.at(graph.loss_output.value()).toTensor();
    const at::Tensor weighted = loss.mul(weights[j]);
    weighted.backward();
    reference.loss =
        reference.loss.defined() ? reference.loss.add(weighted.detach()) : weighted.detach();
  }
  return reference;
}

}  // namespace autopart::testing
