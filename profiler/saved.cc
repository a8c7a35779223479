// Alive or not is asked of storages by weak reference, so no operator needs to be known: a saved
// operand, a saved result, a saved view of either and the view's base all keep one storage.
#include "profiler/saved.h"

#include <algorithm>
#include <exception>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "profiler/allocation_observer.h"
#include "profiler/estimate.h"
#include "profiler/internal/shrink.h"
#include "profiler/run_node.h"

namespace autopart {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Below this an operator is cheap enough to run for real: what it saves on this CPU is then exact.
constexpr double kCheapFlops = 5e6;
constexpr double kCheapBytes = 1 << 20;
// A shrunk operator has to be below this, in case that it had little to shrink.
constexpr double kSmallFlops = 4e9;
constexpr double kSmallBytes = 1 << 28;

// Operators that take another path on meta tensors than on CPU tensors.
bool DiffersOnMeta(const std::string& op) {
  for (const char* part :
       {"scaled_dot_product", "lstm", "gru", "rnn", "dropout", "conv", "prim::"}) {
    if (absl::StrContains(op, part)) return true;
  }
  return false;
}

bool IsCheap(const OperatorSignature& signature, double max_flops, double max_bytes) {
  const OperatorWork work = EstimateWork(signature);
  return work.flops <= max_flops && work.bytes <= max_bytes;
}

void ForEachTensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) ForEachTensor(item, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) ForEachTensor(item, visit);
  }
}

// Everything of one run, in the order in which it must go.
struct Run {
  std::vector<at::Tensor> operands;
  std::vector<c10::IValue> slots;
};

// Throws where the results of a small run have not the shapes that the signature says.
void CheckResultShapes(const OperatorSignature& signature, const std::vector<c10::IValue>& slots) {
  for (size_t i = 0; i < signature.node.outputs.size(); ++i) {
    const int output = signature.node.outputs[i];
    if (output == kNoValue) continue;
    TORCH_CHECK(slots[output].isTensor() && slots[output].toTensor().defined() &&
                slots[output].toTensor().sizes() == at::IntArrayRef(signature.results[i].sizes));
  }
}

// small: `signature` is the shrunk one, and blocks count as what they have at full size.
SavedForBackward Observe(const CompiledNode& compiled, const OperatorSignature& signature,
                         c10::Device device, int integer_fill,
                         const internal::ShrunkSignature* small = nullptr) {
  const auto size_of = [small](int64_t bytes) { return small ? small->FullBytes(bytes) : bytes; };
  at::AutoGradMode grad_mode(signature.grad);
  AllocationObserver observer(size_of);
  Run run;
  run.operands = MakeOperands(signature, device, integer_fill);
  run.slots.resize(signature.num_values);
  std::vector<WeakStorage> operand_storages;
  std::vector<const c10::StorageImpl*> operand_ids;
  for (size_t i = 0; i < run.operands.size(); ++i) {
    operand_storages.push_back(run.operands[i].storage().getWeakStorageImpl());
    operand_ids.push_back(run.operands[i].storage().unsafeGetStorageImpl());
    run.slots[i] = run.operands[i];
  }
  RunContext context;
  context.device = device;
  observer.ResetPeak();
  RunNode(compiled, run.slots, context);
  if (small != nullptr) CheckResultShapes(signature, run.slots);
  const int64_t live_after = observer.live_bytes();

  SavedForBackward saved;
  saved.temporary_bytes = observer.peak_bytes() - live_after;
  saved.memory.resize(signature.node.outputs.size());
  std::vector<WeakStorage> result_storages;
  std::vector<std::pair<const c10::StorageImpl*, int>> result_ids;
  std::vector<int> result_of_storage;
  std::vector<torch::autograd::Edge> edges;
  for (size_t i = 0; i < signature.node.outputs.size(); ++i) {
    const int output = signature.node.outputs[i];
    if (output == kNoValue) continue;
    ForEachTensor(run.slots[output], [&](const at::Tensor& tensor) {
      if (tensor.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
      const c10::StorageImpl* id = tensor.storage().unsafeGetStorageImpl();
      ResultMemory& memory = saved.memory[i];
      const auto operand = std::find(operand_ids.begin(), operand_ids.end(), id);
      if (operand != operand_ids.end()) {
        memory.shares_operand = static_cast<int>(operand - operand_ids.begin());
      } else {
        const auto earlier = std::find_if(result_ids.begin(), result_ids.end(),
                                          [id](const auto& entry) { return entry.first == id; });
        if (earlier == result_ids.end()) {
          result_ids.emplace_back(id, static_cast<int>(i));
          result_storages.push_back(tensor.storage().getWeakStorageImpl());
          result_of_storage.push_back(static_cast<int>(i));
          memory.storage_bytes += size_of(static_cast<int64_t>(tensor.storage().nbytes()));
        } else if (earlier->second != static_cast<int>(i)) {
          memory.shares_result = earlier->second;
        }
      }
      memory.known = true;
    });
  }
  // An operator in place gives its operand a new gradient function.
  for (const at::Tensor& operand : run.operands) {
    if (operand.requires_grad() && !operand.is_leaf()) {
      edges.push_back(torch::autograd::impl::gradient_edge(operand));
    }
  }
  run.slots.clear();
  run.operands.clear();

  int64_t named = 0;
  const auto keep = [&](const WeakStorage& weak) {
    const auto storage = weak.lock();
    if (!storage) return false;
    named += size_of(static_cast<int64_t>(storage->nbytes()));
    return true;
  };
  for (size_t i = 0; i < operand_storages.size(); ++i) {
    if (!keep(operand_storages[i])) continue;
    if (signature.operands[i].role == OperandSpec::Role::kActivation) {
      saved.operands.push_back(static_cast<int>(i));
    }
  }
  for (size_t i = 0; i < result_storages.size(); ++i) {
    if (keep(result_storages[i])) saved.results.push_back(result_of_storage[i]);
  }
  std::sort(saved.results.begin(), saved.results.end());
  saved.results.erase(std::unique(saved.results.begin(), saved.results.end()), saved.results.end());
  saved.private_bytes = observer.live_bytes() - named;
  return saved;
}

// On fewer elements; empty where that is no guide to the full size.
std::optional<SavedForBackward> ObserveSmall(const OperatorSignature& signature) {
  for (const internal::ShrunkSignature& small : internal::WaysToShrink(signature)) {
    if (!IsCheap(small.signature, kSmallFlops, kSmallBytes)) continue;
    const absl::StatusOr<CompiledNode> compiled = CompileNode(small.signature.node);
    if (!compiled.ok()) continue;
    try {
      return Observe(*compiled, small.signature, c10::kCPU, 0, &small);
    } catch (const std::exception&) {
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<SavedForBackward> ObserveSaved(const OperatorSignature& signature, ObserveOn where) {
  absl::StatusOr<CompiledNode> compiled = CompileNode(signature.node);
  if (!compiled.ok()) return compiled.status();
  const bool exact = where == ObserveOn::kCpu || (where == ObserveOn::kAutomatic &&
                                                  IsCheap(signature, kCheapFlops, kCheapBytes));
  if (!exact) {
    if (std::optional<SavedForBackward> saved = ObserveSmall(signature)) return *std::move(saved);
  }
  struct Attempt {
    c10::Device device;
    int integer_fill;
  };
  const Attempt meta{c10::kMeta, 0}, zeros{c10::kCPU, 0}, ones{c10::kCPU, 1};
  std::vector<Attempt> attempts;
  if (exact || DiffersOnMeta(signature.node.op)) {
    attempts = {zeros, ones};
  } else {
    attempts = {meta, zeros, ones};
  }
  std::string error;
  for (const Attempt& attempt : attempts) {
    try {
      return Observe(*compiled, signature, attempt.device, attempt.integer_fill);
    } catch (const c10::Error& failure) {
      error = failure.what_without_backtrace();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  return absl::InternalError(absl::StrCat(
      "cannot run ", signature.node.op, " in module '", signature.node.module_path,
      "' on tensors of its shapes to see what it keeps: ", error, "\n  ", signature.text));
}

}  // namespace autopart
