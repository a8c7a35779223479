// Composes a CostGraph from one look at each distinct operator signature. Three passes: numbers and
// sizes are evaluated for real (they are arguments of other operators), then each node is costed,
// then values and nodes are written down under the graph's own ids.
#include "profiler/cost.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "profiler/alias.h"
#include "profiler/estimate.h"
#include "profiler/measure.h"
#include "profiler/run_node.h"
#include "profiler/saved.h"
#include "profiler/signature.h"

namespace autopart {
namespace {

at::Tensor TensorLike(const TensorMeta& meta, c10::Device device) {
  at::Tensor tensor = at::empty_strided(meta.Sizes(), meta.strides,
                                        at::TensorOptions().dtype(meta.dtype).device(device));
  if (!device.is_meta()) tensor.zero_();
  return tensor;
}

// What every value is, as far as it does not depend on data: numbers and lists for real, tensors
// only where they are small scalars computed from numbers (traces keep sizes in those). Unknown
// tensors are None.
class ScalarEvaluation {
 public:
  explicit ScalarEvaluation(const OpGraph& graph)
      : graph_(graph), values_(known_.values), stand_in_(graph.values.size()) {
    values_.resize(graph.values.size());
    for (const GraphInput& input : graph.inputs) {
      if (input.scalar) values_[input.value] = *input.scalar;
    }
    for (const ConstantTensor& constant : graph.constants) {
      if (constant.value != kNoValue && constant.tensor.defined() && constant.tensor.dim() == 0 &&
          !constant.tensor.is_meta()) {
        values_[constant.value] = constant.tensor;
      }
    }
  }

  absl::StatusOr<KnownValues> Evaluate() && {
    for (const Node& node : graph_.nodes) {
      if (!IsWanted(node)) continue;
      absl::StatusOr<CompiledNode> compiled = CompileNode(node);
      if (!compiled.ok()) return compiled.status();
      if (absl::Status status = Run(*compiled); !status.ok()) return status;
    }
    return std::move(known_);
  }

 private:
  bool IsKnown(int value) const {
    return graph_.values[value].kind != ValueKind::kTensor || !values_[value].isNone();
  }

  // Nodes that give numbers, and those that compute a scalar tensor from what is known.
  bool IsWanted(const Node& node) const {
    bool small = true;
    const std::vector<int> reads = ReadValues(node);
    if (node.effects.writes_input) {
      // A list that grows.
      for (int read : reads) {
        if (graph_.values[read].kind == ValueKind::kList) return true;
      }
    }
    for (int output : node.outputs) {
      if (output == kNoValue) continue;
      const Value& value = graph_.values[output];
      if (value.kind != ValueKind::kTensor && value.kind != ValueKind::kNone) return true;
      small = small && value.tensor.has_value() && value.tensor->sizes.empty();
    }
    if (!small || node.effects.random || node.effects.writes_input) return false;
    return std::all_of(reads.begin(), reads.end(), [this](int v) { return IsKnown(v); });
  }

  absl::Status Run(const CompiledNode& compiled) {
    const Node& node = *compiled.node;
    std::string error;
    for (c10::Device device : {c10::Device(c10::kMeta), c10::Device(c10::kCPU)}) {
      std::vector<int> stand_ins;
      try {
        const at::NoGradGuard no_grad;
        for (int read : ReadValues(node)) {
          if (IsKnown(read) || !graph_.values[read].tensor.has_value()) continue;
          values_[read] = StandIn(read, device);
          stand_ins.push_back(read);
        }
        RunContext context;
        context.device = stand_ins.empty() ? c10::Device(c10::kCPU) : device;
        RunNode(compiled, values_, context);
        error.clear();
      } catch (const c10::Error& failure) {
        error = failure.what_without_backtrace();
      } catch (const std::exception& failure) {
        error = failure.what();
      }
      for (int value : stand_ins) values_[value] = c10::IValue();
      if (!error.empty()) continue;
      for (int output : node.outputs) {
        if (output == kNoValue || !values_[output].isTensor()) continue;
        const at::Tensor& tensor = values_[output].toTensor();
        if (!tensor.defined() || tensor.is_meta() || tensor.dim() > 0 || !stand_ins.empty()) {
          values_[output] = c10::IValue();
        }
      }
      return absl::OkStatus();
    }
    return absl::InternalError(
        absl::StrCat("cannot evaluate ", node.op, " in module '", node.module_path, "': ", error));
  }

  // One meta tensor for each value, so that lists tell whose tensors they hold.
  at::Tensor StandIn(int value, c10::Device device) {
    if (!device.is_meta()) return TensorLike(*graph_.values[value].tensor, device);
    at::Tensor& tensor = stand_in_[value];
    if (!tensor.defined()) {
      tensor = TensorLike(*graph_.values[value].tensor, device);
      known_.stand_ins[tensor.unsafeGetTensorImpl()] = value;
    }
    return tensor;
  }

  const OpGraph& graph_;
  KnownValues known_;
  std::vector<c10::IValue>& values_;
  std::vector<at::Tensor> stand_in_;
};

// Nodes whose gradient function is on a way from the loss (or, without one, from a result) to a
// parameter: only those keep anything for backward once results have been let go.
std::vector<bool> FindDifferentiatedNodes(const OpGraph& graph) {
  std::vector<int> root(graph.values.size());
  for (size_t v = 0; v < root.size(); ++v) {
    const int base = graph.values[v].view_of;
    root[v] = base == kNoValue ? static_cast<int>(v) : root[base];
  }
  std::vector<bool> needed(graph.values.size()), root_needed(graph.values.size());
  const auto need = [&](int value) {
    if (!graph.values[value].requires_grad) return;
    needed[value] = true;
    root_needed[root[value]] = true;
  };
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (graph.loss_output.has_value() && *graph.loss_output != static_cast<int>(i)) continue;
    ForEachValue(graph.outputs[i], need);
  }
  std::vector<bool> nodes(graph.nodes.size());
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    bool live = false;
    for (int output : node.outputs) live = live || (output != kNoValue && needed[output]);
    if (node.effects.writes_input) {
      for (int written : WrittenValues(node)) live = live || root_needed[root[written]];
    }
    nodes[n] = live;
    if (!live) continue;
    for (int read : ReadValues(node)) need(read);
  }
  return nodes;
}

struct OperatorCost {
  OperatorTimes times;
  SavedForBackward saved;
  int64_t temporary_bytes = 0;
  int64_t forward_temporary_bytes = 0;
  bool measured = false;
};

// Costs of operators, each signature looked at once.
class OperatorCosts {
 public:
  explicit OperatorCosts(const CostOptions& options)
      : options_(options),
        cache_(options.estimate_for ? MeasurementCache::OpenFile("") : MeasurementCache::Open()) {}

  // keeps: the node's gradient function outlives its results.
  absl::StatusOr<const OperatorCost*> Of(const OperatorSignature& signature, bool keeps) {
    const auto [entry, is_new] =
        known_.try_emplace(absl::StrCat(signature.text, keeps ? "" : " | dead"));
    OperatorCost& cost = entry->second;
    if (!is_new) return &cost;
    if (keeps) {
      absl::StatusOr<SavedForBackward> saved = ObserveSaved(signature, options_.observe_on);
      if (!saved.ok()) return saved.status();
      cost.saved = *std::move(saved);
    }
    int64_t gradients = 0;
    if (keeps) {
      for (const OperandSpec& operand : signature.operands) {
        if (operand.requires_grad) gradients += operand.Bytes();
      }
      for (const OperandSpec& result : signature.results) {
        if (result.requires_grad) gradients += result.Bytes();
      }
    }
    if (options_.estimate_for.has_value()) {
      cost.times = EstimateTimes(signature, cost.saved, *options_.estimate_for);
      cost.forward_temporary_bytes = cost.saved.temporary_bytes;
      cost.temporary_bytes = std::max(cost.saved.temporary_bytes, gradients);
    } else if (HasTensors(signature)) {
      absl::StatusOr<Measurement> measurement = Measure(signature);
      if (!measurement.ok()) return measurement.status();
      cost.times = measurement->times;
      cost.forward_temporary_bytes = measurement->forward_temporary_bytes;
      cost.temporary_bytes = std::max(measurement->forward_temporary_bytes,
                                      gradients + measurement->backward_temporary_bytes);
      cost.measured = true;
    }
    if (!keeps) cost.times.backward_input_ms = cost.times.backward_weight_ms = 0;
    return &cost;
  }

  // A cache that cannot be written costs time at the next run, nothing else.
  void Save() { cache_.Save().IgnoreError(); }

 private:
  static bool HasTensors(const OperatorSignature& signature) {
    return !signature.operands.empty() ||
           std::count(signature.result_is_tensor.begin(), signature.result_is_tensor.end(), true);
  }

  absl::StatusOr<Measurement> Measure(const OperatorSignature& signature) {
    if (const auto found = cache_.Find(signature.text)) return *found;
    absl::StatusOr<Measurement> measurement = MeasureOperator(signature, options_.repeats);
    if (measurement.ok()) cache_.Add(signature.text, *measurement);
    return measurement;
  }

  const CostOptions& options_;
  MeasurementCache cache_;
  std::unordered_map<std::string, OperatorCost> known_;
};

int64_t ListBytes(const c10::IValue& value) {
  int64_t bytes = 0;
  if (value.isTensor()) {
    if (value.toTensor().defined()) bytes += static_cast<int64_t>(value.toTensor().nbytes());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) bytes += ListBytes(item);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) bytes += ListBytes(item);
  }
  return bytes;
}

CostValue ValueOf(const Value& value, const c10::IValue& known) {
  CostValue cost;
  cost.name = value.name;
  if (value.in_block) return cost;
  cost.producer = value.producer == kNoNode ? kModelInput : value.producer;
  cost.view_of = value.view_of == kNoValue ? kNoView : value.view_of;
  if (value.tensor.has_value()) {
    cost.bytes = value.tensor->Bytes();
    cost.storage_bytes =
        StorageBytes(value.tensor->dtype, value.tensor->Sizes(), value.tensor->strides);
  } else {
    cost.bytes = cost.storage_bytes = ListBytes(known);
  }
  if (value.requires_grad) cost.gradient_bytes = cost.bytes;
  if (cost.view_of != kNoView || cost.producer == kModelInput) cost.storage_bytes = 0;
  return cost;
}

std::vector<CostParameter> ParametersOf(const OpGraph& graph) {
  std::vector<CostParameter> parameters;
  for (const Parameter& parameter : graph.parameters) {
    parameters.push_back({parameter.name, parameter.is_buffer ? 0 : parameter.meta.NumElements(),
                          parameter.meta.Bytes(), parameter.trains});
  }
  return parameters;
}

// What the operator's run showed of its results' memory, which has the last word.
void SetResultMemory(const OperatorSignature& signature, const SavedForBackward& saved,
                     const Node& node, std::vector<CostValue>& values) {
  for (size_t i = 0; i < saved.memory.size(); ++i) {
    const ResultMemory& memory = saved.memory[i];
    if (!memory.known || node.outputs[i] == kNoValue) continue;
    CostValue& value = values[node.outputs[i]];
    value.storage_bytes = 0;
    if (memory.shares_operand >= 0) {
      value.view_of = signature.operand_values[memory.shares_operand];
    } else if (memory.shares_result >= 0) {
      value.view_of = node.outputs[memory.shares_result];
    } else {
      value.view_of = kNoView;
      value.storage_bytes = memory.storage_bytes;
    }
    if (value.view_of == node.outputs[i]) value.view_of = kNoView;
  }
}

// A view becomes a view of the operand that its operator read, where it was one of the memory's
// first owner: where the operand has crossed a cut, its copy there is the memory that is shared.
void ChainViews(const OpGraph& graph, std::vector<CostValue>& values) {
  const auto root = [&](int v) {
    while (values[v].view_of != kNoView) v = values[v].view_of;
    return v;
  };
  for (const Node& node : graph.nodes) {
    const std::vector<int> read = ReadValues(node);
    for (const int output : node.outputs) {
      if (output == kNoValue || values[output].view_of == kNoView) continue;
      const int owner = root(output);
      for (const int operand : read) {
        if (operand < output && root(operand) == owner) values[output].view_of = operand;
      }
    }
  }
}

void SetTimesInOrder(const ProgramTimes& times, size_t node, CostNode& cost) {
  const double alone = cost.backward_input_ms + cost.backward_weight_ms;
  const double weight_share = alone > 0 ? cost.backward_weight_ms / alone : 0;
  cost.forward_ms = times.forward_ms[node];
  cost.backward_weight_ms = weight_share * times.backward_ms[node];
  cost.backward_input_ms = times.backward_ms[node] - cost.backward_weight_ms;
}

void SortUnique(std::vector<int>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

absl::StatusOr<CostGraph> BuildCostGraph(const OpGraph& graph, const CostOptions& options) {
  const OneThread one_thread;
  if (options.in_order && options.in_order->forward_ms.size() != graph.nodes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("times of ", options.in_order->forward_ms.size(),
                                                   " operators for ", graph.nodes.size()));
  }
  absl::StatusOr<KnownValues> known = ScalarEvaluation(graph).Evaluate();
  if (!known.ok()) return known.status();

  CostGraph cost;
  cost.model_hash = ModelHash(graph);
  cost.device = options.estimate_for ? options.estimate_for->name : "cpu";
  for (const GraphInput& input : graph.inputs) {
    const Value& value = graph.values[input.value];
    if (input.batch_axis < 0 || !value.tensor || value.tensor->sizes.empty()) continue;
    cost.samples = value.tensor->Sizes().at(input.batch_axis);
    break;
  }
  cost.parameters = ParametersOf(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    cost.values.push_back(ValueOf(graph.values[v], known->values[v]));
    if (!options.training) cost.values.back().gradient_bytes = 0;
  }
  constexpr int kConstant = -1;
  std::map<int, int> parameter_of_value;
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    if (graph.parameters[p].value == kNoValue) continue;
    parameter_of_value[graph.parameters[p].value] = static_cast<int>(p);
  }
  for (const ConstantTensor& constant : graph.constants) {
    if (constant.value != kNoValue) parameter_of_value[constant.value] = kConstant;
  }
  for (const auto& [value, parameter] : parameter_of_value) cost.values[value].gradient_bytes = 0;

  const Signatures signatures(graph, *known);
  const std::vector<bool> differentiated =
      options.training ? FindDifferentiatedNodes(graph) : std::vector<bool>(graph.nodes.size());
  const std::vector<int> groups = WriteGroups(graph);
  OperatorCosts costs(options);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    absl::StatusOr<OperatorSignature> signature = signatures.Of(node, options.training);
    if (!signature.ok()) return signature.status();
    absl::StatusOr<const OperatorCost*> found = costs.Of(*signature, differentiated[n]);
    if (!found.ok()) return found.status();
    const OperatorCost& operator_cost = **found;

    CostNode out;
    out.name = node.blocks.empty() ? node.op : absl::StrCat(node.op, " (data dependent)");
    out.module = node.module_path;
    out.forward_ms = operator_cost.times.forward_ms;
    out.backward_input_ms = operator_cost.times.backward_input_ms;
    out.backward_weight_ms = operator_cost.times.backward_weight_ms;
    if (options.in_order) SetTimesInOrder(*options.in_order, n, out);
    out.saved_bytes = operator_cost.saved.private_bytes;
    out.temporary_bytes = operator_cost.temporary_bytes;
    out.forward_temporary_bytes = operator_cost.forward_temporary_bytes;
    out.group = groups[n];
    out.copyable = node.copyable;
    out.measured = operator_cost.measured || options.in_order.has_value();
    for (int read : ReadValues(node)) {
      const auto parameter = parameter_of_value.find(read);
      if (parameter != parameter_of_value.end()) {
        if (parameter->second != kConstant) out.parameters.push_back(parameter->second);
      } else if (!graph.values[read].in_block) {
        cost.values[read].consumers.push_back(static_cast<int>(n));
      }
    }
    SortUnique(out.parameters);
    for (int operand : operator_cost.saved.operands) {
      out.saved_values.push_back(signature->operand_values[operand]);
    }
    for (int result : operator_cost.saved.results) {
      out.saved_values.push_back(node.outputs[result]);
    }
    SortUnique(out.saved_values);
    SetResultMemory(*signature, operator_cost.saved, node, cost.values);
    cost.nodes.push_back(std::move(out));
  }
  costs.Save();
  ChainViews(graph, cost.values);

  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    ForEachValue(graph.outputs[i], [&](int value) {
      if (parameter_of_value.count(value) == 0) cost.results.push_back(value);
      if (graph.loss_output == static_cast<int>(i)) cost.loss = value;
    });
  }
  SortUnique(cost.results);
  if (absl::Status status = Validate(cost); !status.ok()) {
    return absl::InternalError(
        absl::StrCat("the cost graph is inconsistent: ", std::string(status.message())));
  }
  return cost;
}

}  // namespace autopart
