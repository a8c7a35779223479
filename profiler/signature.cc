// Two walks over a node's arguments, its blocks included: the first gives every tensor that comes
// from outside a number, the second copies the node onto those numbers with all scalars filled in.
#include "profiler/signature.h"

#include <map>
#include <sstream>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace autopart {
namespace {

bool HoldsTensors(const c10::IValue& value) {
  if (value.isTensor() || value.isTensorList()) return true;
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (HoldsTensors(item)) return true;
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      if (HoldsTensors(item)) return true;
    }
  }
  return false;
}

// The gradient function of operands that no parameter leads to directly.
struct OperandSource : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
  std::string name() const override { return "OperandSource"; }
};

class Renumbering {
 public:
  Renumbering(const OpGraph& graph, const KnownValues& known,
              const std::vector<OperandSpec::Role>& roles, OperatorSignature& signature)
      : graph_(graph),
        values_(known.values),
        stand_ins_(known.stand_ins),
        roles_(roles),
        signature_(signature) {}

  absl::Status Collect(const Node& node) {
    for (const Argument& argument : node.args) {
      if (absl::Status status = Collect(argument); !status.ok()) return status;
    }
    for (const Block& block : node.blocks) {
      for (int input : block.inputs) inner_.emplace(input, 0);
      for (const Node& inner : block.nodes) {
        for (int output : inner.outputs) inner_.emplace(output, 0);
        if (absl::Status status = Collect(inner); !status.ok()) return status;
      }
      for (const Argument& output : block.outputs) {
        if (absl::Status status = Collect(output); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  Node Copy(const Node& node, bool top) {
    Node copy = node;
    if (top) {
      next_ = static_cast<int>(signature_.operands.size());
      inner_.clear();
    }
    for (Argument& argument : copy.args) argument = Copy(argument);
    for (Block& block : copy.blocks) {
      for (int& input : block.inputs) input = Define(input);
      for (Node& inner : block.nodes) inner = Copy(inner, false);
      for (Argument& output : block.outputs) output = Copy(output);
    }
    for (int& output : copy.outputs) {
      if (output != kNoValue) output = Define(output);
    }
    return copy;
  }

  int num_values() const { return next_; }

 private:
  absl::Status Collect(const Argument& argument) {
    absl::Status status;
    ForEachValue(argument, [&](int value) {
      if (status.ok() && inner_.count(value) == 0) status = CollectValue(value);
    });
    return status;
  }

  absl::Status CollectValue(int id) {
    const Value& value = graph_.values[id];
    if (value.kind == ValueKind::kTensor) {
      if (operand_of_.count({id, -1}) != 0) return absl::OkStatus();
      if (!value.tensor.has_value()) {
        return absl::FailedPreconditionError(
            absl::StrCat("the shape of value '", value.name, "' (%", id,
                         ") is not known: propagate shapes before costing the graph"));
      }
      OperandSpec spec;
      spec.dtype = value.tensor->dtype;
      spec.sizes = value.tensor->Sizes();
      spec.strides = value.tensor->strides;
      spec.requires_grad = value.requires_grad;
      spec.role = roles_[id];
      if (spec.role == OperandSpec::Role::kParameter) spec.requires_grad = true;
      Add(id, -1, std::move(spec));
      return absl::OkStatus();
    }
    if (!HoldsTensors(values_[id])) return absl::OkStatus();
    const auto items = Items(values_[id]);
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].isTensor() || operand_of_.count({id, static_cast<int>(i)}) != 0) continue;
      const at::Tensor& tensor = items[i].toTensor();
      if (const auto source = stand_ins_.find(tensor.unsafeGetTensorImpl());
          source != stand_ins_.end()) {
        if (absl::Status status = CollectValue(source->second); !status.ok()) return status;
        operand_of_[{id, static_cast<int>(i)}] = operand_of_[{source->second, -1}];
        continue;
      }
      OperandSpec spec;
      spec.dtype = tensor.scalar_type();
      spec.sizes = tensor.sizes().vec();
      spec.strides = tensor.strides().vec();
      spec.requires_grad = value.requires_grad && torch::autograd::isDifferentiableType(spec.dtype);
      spec.role = roles_[id];
      Add(id, static_cast<int>(i), std::move(spec));
    }
    return absl::OkStatus();
  }

  static std::vector<c10::IValue> Items(const c10::IValue& value) {
    if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      return std::vector<c10::IValue>(elements.begin(), elements.end());
    }
    return value.toListRef().vec();
  }

  void Add(int value, int item, OperandSpec spec) {
    operand_of_[{value, item}] = static_cast<int>(signature_.operands.size());
    signature_.operands.push_back(std::move(spec));
    signature_.operand_values.push_back(value);
  }

  int Define(int value) { return inner_[value] = next_++; }

  Argument Copy(const Argument& argument) {
    if (const auto* ref = std::get_if<ValueRef>(&argument.is)) return CopyRef(ref->value);
    if (const auto* list = std::get_if<ArgumentList>(&argument.is)) {
      ArgumentList copy;
      copy.is_tuple = list->is_tuple;
      copy.element_type = list->element_type;
      for (const Argument& item : list->items) copy.items.push_back(Copy(item));
      return {std::move(copy)};
    }
    return argument;
  }

  Argument CopyRef(int value) {
    if (const auto inner = inner_.find(value); inner != inner_.end()) {
      return {ValueRef{inner->second}};
    }
    if (const auto operand = operand_of_.find({value, -1}); operand != operand_of_.end()) {
      return {ValueRef{operand->second}};
    }
    if (!HoldsTensors(values_[value])) return {values_[value]};
    ArgumentList list;
    list.is_tuple = values_[value].isTuple();
    const auto items = Items(values_[value]);
    for (size_t i = 0; i < items.size(); ++i) {
      const auto operand = operand_of_.find({value, static_cast<int>(i)});
      if (operand == operand_of_.end()) {
        list.items.push_back({items[i]});
      } else {
        list.items.push_back({ValueRef{operand->second}});
      }
    }
    return {std::move(list)};
  }

  const OpGraph& graph_;
  const std::vector<c10::IValue>& values_;
  const std::unordered_map<const c10::TensorImpl*, int>& stand_ins_;
  const std::vector<OperandSpec::Role>& roles_;
  OperatorSignature& signature_;
  std::map<std::pair<int, int>, int> operand_of_;  // (value, item of a list or -1)
  std::map<int, int> inner_;                       // values that the node defines
  int next_ = 0;
};

void Print(std::ostream& out, const Argument& argument) {
  if (const auto* ref = std::get_if<ValueRef>(&argument.is)) {
    out << '%' << ref->value;
  } else if (const auto* constant = std::get_if<c10::IValue>(&argument.is)) {
    out << *constant;
  } else if (std::holds_alternative<StageDevice>(argument.is)) {
    out << "device";
  } else {
    const auto& list = std::get<ArgumentList>(argument.is);
    out << (list.is_tuple ? '(' : '[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out << ", ";
      Print(out, list.items[i]);
    }
    out << (list.is_tuple ? ')' : ']');
  }
}

void Print(std::ostream& out, const Node& node) {
  out << node.op;
  if (!node.overload.empty()) out << '.' << node.overload;
  out << '(';
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (i > 0) out << ", ";
    Print(out, node.args[i]);
  }
  out << ")->";
  for (int output : node.outputs) out << (output == kNoValue ? '_' : '*');
  if (node.unpacks_list) out << " of list";
  for (const Block& block : node.blocks) {
    out << " {";
    for (const Node& inner : block.nodes) {
      Print(out, inner);
      out << "; ";
    }
    for (const Argument& output : block.outputs) {
      Print(out, output);
      out << ' ';
    }
    out << '}';
  }
}

bool IsContiguous(const OperandSpec& spec) {
  int64_t expected = 1;
  for (size_t i = spec.sizes.size(); i-- > 0;) {
    if (spec.sizes[i] != 1 && spec.strides[i] != expected) return false;
    expected *= spec.sizes[i];
  }
  return true;
}

void Print(std::ostream& out, const OperandSpec& spec) {
  out << c10::toString(spec.dtype) << '[' << absl::StrJoin(spec.sizes, ",") << ']';
  if (!IsContiguous(spec)) out << '{' << absl::StrJoin(spec.strides, ",") << '}';
  if (spec.requires_grad) out << "+g";
  if (spec.role == OperandSpec::Role::kParameter) out << ":parameter";
  if (spec.role == OperandSpec::Role::kWeight) out << ":weight";
}

std::string TextOf(const OperatorSignature& signature) {
  std::ostringstream out;
  Print(out, signature.node);
  for (size_t i = 0; i < signature.operands.size(); ++i) {
    out << " %" << i << '=';
    Print(out, signature.operands[i]);
  }
  out << (signature.grad ? " | grad" : " | no grad") << ", cpu, 1 thread";
  return out.str();
}

}  // namespace

int64_t StorageBytes(at::ScalarType dtype, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return (last + 1) * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t OperandSpec::Bytes() const {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t OperandSpec::StorageBytes() const { return autopart::StorageBytes(dtype, sizes, strides); }

Signatures::Signatures(const OpGraph& graph, const KnownValues& known)
    : graph_(graph), known_(known) {
  using Role = OperandSpec::Role;
  roles_.assign(graph.values.size(), Role::kActivation);
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.value == kNoValue) continue;
    roles_[parameter.value] = parameter.trains ? Role::kParameter : Role::kWeight;
  }
  for (const ConstantTensor& constant : graph.constants) {
    if (constant.value != kNoValue) roles_[constant.value] = Role::kWeight;
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const int base = graph.values[v].view_of;
    if (base != kNoValue && roles_[base] != Role::kActivation) roles_[v] = Role::kWeight;
  }
}

absl::StatusOr<OperatorSignature> Signatures::Of(const Node& node, bool grad) const {
  OperatorSignature signature;
  signature.grad = grad;
  Renumbering renumbering(graph_, known_, roles_, signature);
  if (absl::Status status = renumbering.Collect(node); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(node.op, " in module '", node.module_path,
                                                      "': ", std::string(status.message())));
  }
  signature.node = renumbering.Copy(node, true);
  signature.num_values = renumbering.num_values();
  for (int output : node.outputs) {
    OperandSpec result;
    const bool is_tensor = output != kNoValue && graph_.values[output].tensor.has_value();
    if (is_tensor) {
      const Value& value = graph_.values[output];
      result.dtype = value.tensor->dtype;
      result.sizes = value.tensor->Sizes();
      result.strides = value.tensor->strides;
      result.requires_grad = value.requires_grad;
    }
    signature.results.push_back(std::move(result));
    signature.result_is_tensor.push_back(is_tensor);
  }
  signature.text = TextOf(signature);
  return signature;
}

std::vector<at::Tensor> MakeOperands(const OperatorSignature& signature, at::Device device,
                                     int integer_fill) {
  std::vector<at::Tensor> operands;
  for (const OperandSpec& spec : signature.operands) {
    at::Tensor tensor = at::empty_strided(spec.sizes, spec.strides,
                                          at::TensorOptions().dtype(spec.dtype).device(device));
    if (!device.is_meta()) {
      const bool is_float = at::isFloatingType(spec.dtype) || at::isComplexType(spec.dtype);
      if (is_float) {
        tensor.fill_(0.5);
      } else {
        tensor.fill_(spec.dtype == at::kBool ? 1 : integer_fill);
      }
    }
    if (spec.requires_grad && signature.grad) {
      if (spec.role == OperandSpec::Role::kParameter) {
        tensor.set_requires_grad(true);
      } else {
        torch::autograd::set_history(tensor, c10::make_intrusive<OperandSource>());
      }
    }
    operands.push_back(std::move(tensor));
  }
  return operands;
}

}  // namespace autopart
