// Backward of a product is two products of the forward's size, one for each operand that needs a
// gradient; backward of the rest moves what the forward moves, plus the incoming gradient.
#include "profiler/estimate.h"

#include <algorithm>
#include <string>

#include <absl/strings/match.h>

namespace autopart {
namespace {

double Elements(const OperandSpec& spec) {
  double count = 1;
  for (int64_t size : spec.sizes) count *= static_cast<double>(size);
  return count;
}

double Size(const OperandSpec& spec, int axis) {
  const int rank = static_cast<int>(spec.sizes.size());
  if (axis < 0) axis += rank;
  return axis >= 0 && axis < rank ? static_cast<double>(spec.sizes[axis]) : 1.0;
}

// The operand that argument `index` of the node is, or null.
const OperandSpec* OperandAt(const OperatorSignature& signature, size_t index) {
  if (index >= signature.node.args.size()) return nullptr;
  const auto* ref = std::get_if<ValueRef>(&signature.node.args[index].is);
  if (ref == nullptr || ref->value >= static_cast<int>(signature.operands.size())) return nullptr;
  return &signature.operands[ref->value];
}

double ResultElements(const OperatorSignature& signature) {
  return signature.results.empty() || !signature.result_is_tensor[0]
             ? 0.0
             : Elements(signature.results[0]);
}

enum class Kind { kProduct, kConvolution, kAttention, kRecurrent, kLookup, kTraffic };

Kind KindOf(const std::string& op) {
  for (const char* name :
       {"aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm",
        "aten::addbmm", "aten::mv", "aten::addmv", "aten::dot", "aten::__rmatmul__"}) {
    if (op == name) return Kind::kProduct;
  }
  if (absl::StrContains(op, "conv")) return Kind::kConvolution;
  if (absl::StrContains(op, "scaled_dot_product")) return Kind::kAttention;
  if (op == "aten::lstm" || op == "aten::gru" || op == "aten::rnn_tanh" || op == "aten::rnn_relu") {
    return Kind::kRecurrent;
  }
  for (const char* name : {"aten::embedding", "aten::index_select", "aten::gather", "aten::index",
                           "aten::embedding_bag"}) {
    if (op == name) return Kind::kLookup;
  }
  return Kind::kTraffic;
}

double Flops(const OperatorSignature& signature, Kind kind) {
  const std::string& op = signature.node.op;
  switch (kind) {
    case Kind::kProduct: {
      const bool adds = absl::StartsWith(op, "aten::add") || op == "aten::baddbmm";
      const OperandSpec* left = OperandAt(signature, adds ? 1 : 0);
      if (left == nullptr) return 0;
      double flops = 2 * ResultElements(signature) * Size(*left, -1);
      if (op == "aten::addbmm") flops *= Size(*left, 0);
      return flops;
    }
    case Kind::kConvolution: {
      const OperandSpec* input = OperandAt(signature, 0);
      const OperandSpec* weight = OperandAt(signature, 1);
      if (input == nullptr || weight == nullptr) return 0;
      // A weight is [out, in / groups, kernel...]; transposed: [in, out / groups, kernel...].
      bool transposed = absl::StrContains(op, "transpose");
      if (op == "aten::_convolution" || op == "aten::convolution") {
        const auto* flag = signature.node.args.size() > 6
                               ? std::get_if<c10::IValue>(&signature.node.args[6].is)
                               : nullptr;
        transposed = flag != nullptr && flag->isBool() && flag->toBool();
      }
      const double positions = transposed ? Elements(*input) : ResultElements(signature);
      return 2 * positions * Elements(*weight) / std::max(1.0, Size(*weight, 0));
    }
    case Kind::kAttention: {
      const OperandSpec* query = OperandAt(signature, 0);
      const OperandSpec* key = OperandAt(signature, 1);
      const OperandSpec* value = OperandAt(signature, 2);
      if (query == nullptr || key == nullptr || value == nullptr) return 0;
      const double rows = Elements(*query) / std::max(1.0, Size(*query, -1));
      return 2 * rows * Size(*key, -2) * (Size(*query, -1) + Size(*value, -1));
    }
    case Kind::kRecurrent: {
      double weights = 0;
      for (const OperandSpec& operand : signature.operands) {
        if (operand.role != OperandSpec::Role::kActivation) weights += Elements(operand);
      }
      const OperandSpec* input = OperandAt(signature, 0);
      if (input == nullptr) return 0;
      return 2 * weights * Elements(*input) / std::max(1.0, Size(*input, -1));
    }
    default:
      return 0;
  }
}

bool IsHalf(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

bool IsWeight(const OperandSpec& spec) { return spec.role != OperandSpec::Role::kActivation; }

// All results share operands' memory and nothing is written: only metadata changes.
bool IsView(const OperatorSignature& signature, const SavedForBackward& saved) {
  bool any = false;
  for (size_t i = 0; i < signature.result_is_tensor.size(); ++i) {
    if (!signature.result_is_tensor[i]) continue;
    any = true;
    if (saved.memory.size() <= i || saved.memory[i].shares_operand < 0) return false;
  }
  return any && !signature.node.effects.writes_input && !signature.node.effects.writes_buffer;
}

double Milliseconds(double flops, double bytes, bool half, const DeviceSpec& device) {
  const double rate = half ? device.half_flops_per_ms : device.fp32_flops_per_ms;
  const double compute = flops / (rate * device.matrix_efficiency);
  const double traffic = bytes / (device.memory_bytes_per_ms * device.memory_efficiency);
  return device.launch_ms + std::max(compute, traffic);
}

}  // namespace

OperatorWork EstimateWork(const OperatorSignature& signature) {
  OperatorWork work;
  const Kind kind = KindOf(signature.node.op);
  work.flops = Flops(signature, kind);
  double results = 0;
  for (size_t i = 0; i < signature.results.size(); ++i) {
    if (!signature.result_is_tensor[i]) continue;
    results += static_cast<double>(signature.results[i].Bytes());
    work.half = work.half || IsHalf(signature.results[i].dtype);
  }
  work.bytes = results;
  bool first = true;
  for (const OperandSpec& operand : signature.operands) {
    // A lookup reads as much of its table as it gives.
    const double bytes = static_cast<double>(operand.StorageBytes());
    work.bytes += kind == Kind::kLookup && first ? std::min(bytes, results) : bytes;
    first = false;
  }
  return work;
}

OperatorTimes EstimateTimes(const OperatorSignature& signature, const SavedForBackward& saved,
                            const DeviceSpec& device) {
  OperatorTimes times;
  bool any_tensor = signature.node.effects.writes_input;
  for (bool is_tensor : signature.result_is_tensor) any_tensor = any_tensor || is_tensor;
  // Scalars are computed on the host; a list of tensors is as a rule a view.
  if (!any_tensor || IsView(signature, saved)) return times;
  const OperatorWork work = EstimateWork(signature);
  times.forward_ms = Milliseconds(work.flops, work.bytes, work.half, device);
  if (!signature.grad) return times;

  double result_bytes = 0;
  bool differentiable = false;
  for (size_t i = 0; i < signature.results.size(); ++i) {
    if (!signature.result_is_tensor[i] || !signature.results[i].requires_grad) continue;
    differentiable = true;
    result_bytes += static_cast<double>(signature.results[i].Bytes());
  }
  if (!differentiable) return times;
  double saved_bytes = static_cast<double>(saved.private_bytes);
  for (int operand : saved.operands) {
    saved_bytes += static_cast<double>(signature.operands[operand].Bytes());
  }
  const bool products = work.flops > 0;
  double input_flops = 0, weight_flops = 0, input_bytes = 0, weight_bytes = 0;
  bool any_input = false, any_weight = false;
  for (const OperandSpec& operand : signature.operands) {
    if (!operand.requires_grad) continue;
    const double bytes = static_cast<double>(operand.Bytes());
    // A vector among the operands of a product is a bias: a sum over the incoming gradient.
    const bool is_factor = products && operand.sizes.size() > 1;
    if (IsWeight(operand)) {
      any_weight = true;
      weight_bytes += bytes;
      if (is_factor) weight_flops = work.flops;
    } else {
      any_input = true;
      input_bytes += bytes;
      if (is_factor) input_flops += work.flops;
    }
  }
  if (any_input) {
    times.backward_input_ms =
        Milliseconds(input_flops, input_bytes + result_bytes + saved_bytes, work.half, device);
  }
  if (any_weight) {
    times.backward_weight_ms =
        Milliseconds(weight_flops, weight_bytes + result_bytes + saved_bytes, work.half, device);
  }
  return times;
}

}  // namespace autopart
