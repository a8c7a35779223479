// Runs the graph on meta tensors under autograd, so that shapes, strides, views and requires_grad
// come from torch itself. Operators without a Meta kernel in C++ (Python registers many) follow a
// rule here where one is exact (embedding, norms, attention, convolution: a run at a small batch),
// else run once a distinct signature on CPU zeros. Cost: about 10 us an operator.
#include "profiler/shapes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "profiler/alias.h"
#include "profiler/run_node.h"

namespace autopart {
namespace {

using Stack = std::vector<c10::IValue>;

at::Tensor MetaTensor(const TensorMeta& meta) {
  return at::empty_strided(meta.Sizes(), meta.strides,
                           at::TensorOptions().dtype(meta.dtype).device(at::kMeta));
}

// Makes a tensor look computed: in-place operators on it are then allowed, as on an activation.
at::Tensor WithHistory(at::Tensor tensor, bool requires_grad) {
  if (requires_grad && !tensor.requires_grad()) {
    torch::autograd::set_history(
        tensor, c10::make_intrusive<torch::autograd::Error>("shape propagation has no backward",
                                                            torch::autograd::edge_list()));
  }
  return tensor;
}

std::vector<int64_t> DenseStrides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (int i = static_cast<int>(sizes.size()) - 2; i >= 0; --i) {
    strides[i] = strides[i + 1] * std::max<int64_t>(sizes[i + 1], 1);
  }
  return strides;
}

// Dense strides for `sizes` in the memory order that `like` has.
std::vector<int64_t> StridesInOrderOf(const at::Tensor& like, const std::vector<int64_t>& sizes) {
  std::vector<int> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return like.stride(a) > like.stride(b); });
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    strides[*it] = stride;
    stride *= std::max<int64_t>(sizes[*it], 1);
  }
  return strides;
}

template <typename Visit>
void ForEachTensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isList()) {
    for (const c10::IValue& item : value.toListRef()) ForEachTensor(item, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) ForEachTensor(item, visit);
  }
}

c10::IValue MapTensors(const c10::IValue& value,
                       const std::function<at::Tensor(const at::Tensor&)>& map) {
  if (value.isTensor()) return value.toTensor().defined() ? map(value.toTensor()) : value;
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    const c10::List<c10::IValue> list = value.toList();
    c10::impl::GenericList items(list.elementType());
    for (const c10::IValue& item : list.vec()) items.push_back(MapTensors(item, map));
    return items;
  }
  if (value.isTuple()) {
    Stack items;
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      items.push_back(MapTensors(item, map));
    }
    return c10::ivalue::Tuple::create(std::move(items));
  }
  return value;
}

bool IsSmallScalar(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.dim() == 0; }

// A CPU tensor of zeros with the layout of a meta tensor, storage offset dropped.
at::Tensor ZerosLike(const at::Tensor& meta) {
  if (!meta.is_meta()) return meta;
  int64_t elements = 1;
  for (int64_t i = 0; i < meta.dim(); ++i) {
    if (meta.size(i) == 0) elements = 0;
    if (elements > 0) elements += (meta.size(i) - 1) * meta.stride(i);
  }
  const at::NoGradGuard no_grad;
  at::Tensor zeros = at::zeros({elements}, meta.options().device(at::kCPU).requires_grad(false));
  return WithHistory(zeros.as_strided(meta.sizes(), meta.strides()), meta.requires_grad());
}

std::string Describe(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ","),
                      "]");
}

void AppendSignature(const c10::IValue& value, std::string& out) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (!t.defined()) {
      out += "-;";
    } else {
      absl::StrAppend(&out, Describe(t), "/", absl::StrJoin(t.strides(), ","),
                      t.requires_grad() ? "g" : "", t.is_meta() ? ";" : "c;");
    }
  } else if (value.isList() || value.isTuple()) {
    out += "(";
    if (value.isList()) {
      for (const c10::IValue& item : value.toList().vec()) AppendSignature(item, out);
    } else {
      for (const c10::IValue& item : value.toTupleRef().elements()) AppendSignature(item, out);
    }
    out += ")";
  } else {
    std::ostringstream text;
    text << value;
    absl::StrAppend(&out, value.tagKind(), text.str(), ";");
  }
}

// How a result of a CPU run looks, with where its memory comes from.
struct ResultLayout {
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool requires_grad = false;
  int same_as = -1;      // is this operand itself
  int memory_of = -1;    // views this operand
  int memory = -1;       // else: number of a fresh storage
  int64_t elements = 0;  // of that storage
};

class Propagator {
 public:
  explicit Propagator(OpGraph& graph) : graph_(graph), slots_(graph.values.size()) {
    context_.device = at::kMeta;
  }

  absl::Status Run(const std::vector<InputSpec>& inputs) {
    if (inputs.size() != graph_.inputs.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the model takes ", graph_.inputs.size(),
                                                     " inputs, ", inputs.size(), " are specified"));
    }
    const c10::AutoGradMode grad(true);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const InputSpec& spec = inputs[i];
      Define(graph_.inputs[i].value,
             spec.scalar
                 ? *graph_.inputs[i].scalar
                 : c10::IValue(at::empty(spec.sizes,
                                         at::TensorOptions().dtype(spec.dtype).device(at::kMeta))));
    }
    for (const Parameter& parameter : graph_.parameters) {
      if (parameter.value == kNoValue) continue;
      at::Tensor tensor = MetaTensor(parameter.meta);
      if (parameter.trains) tensor.requires_grad_(true);
      Define(parameter.value, tensor);
    }
    for (const ConstantTensor& constant : graph_.constants) {
      if (constant.value == kNoValue) continue;
      const bool known = constant.tensor.defined() && IsSmallScalar(constant.tensor);
      Define(constant.value, known ? constant.tensor : MetaTensor(constant.meta));
    }
    for (Node& node : graph_.nodes) {
      if (absl::Status s = RunTopLevel(node); !s.ok()) return s;
    }
    // An in-place write may have made an older value differentiable.
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].isNone()) graph_.values[i].requires_grad |= RequiresGrad(slots_[i]);
    }
    MergeAliasClasses();
    MarkCopyable(graph_);
    return absl::OkStatus();
  }

 private:
  absl::Status RunTopLevel(Node& node) {
    absl::StatusOr<CompiledNode> compiled = CompileNode(node);
    if (!compiled.ok()) return compiled.status();
    try {
      RunAny(*compiled);
    } catch (const c10::Error& error) {
      return Failure(node, error.what_without_backtrace());
    } catch (const std::exception& error) {
      return Failure(node, error.what());
    }
    for (const int output : node.outputs) Define(output, slots_[output]);
    return absl::OkStatus();
  }

  absl::Status Failure(const Node& node, const std::string& what) const {
    std::vector<std::string> operands;
    for (const int value : ReadValues(node)) {
      ForEachTensor(slots_[value], [&](const at::Tensor& t) { operands.push_back(Describe(t)); });
    }
    return absl::InvalidArgumentError(absl::StrCat(
        node.op,
        node.module_path.empty() ? "" : absl::StrCat(" in module '", node.module_path, "'"),
        " refuses its operands (", absl::StrJoin(operands, ", "), "): ", what));
  }

  static bool RequiresGrad(const c10::IValue& value) {
    bool any = false;
    ForEachTensor(value, [&](const at::Tensor& t) { any |= t.requires_grad(); });
    return any;
  }

  // ---- running ----

  void RunAny(const CompiledNode& node) {
    if (node.kind == CompiledNode::Kind::kIf) return RunIf(node);
    if (node.kind == CompiledNode::Kind::kLoop) return RunLoop(node);
    Stack stack;
    PushArguments(node, slots_, context_, stack);
    RunOperator(node, stack);
    StoreResults(node, stack, slots_);
  }

  void RunBlock(const CompiledBlock& block) {
    for (const int input : block.block->inputs) Define(input, slots_[input]);
    for (const CompiledNode& node : block.nodes) {
      RunAny(node);
      for (const int output : node.node->outputs) Define(output, slots_[output]);
    }
  }

  // The branch that zeros take; the other one where that raises.
  void RunIf(const CompiledNode& node) {
    const bool condition = Evaluate(node.node->args[0], slots_, context_).toBool();
    const CompiledBlock* taken = &node.blocks[condition ? 0 : 1];
    try {
      RunBlock(*taken);
    } catch (const std::exception&) {
      taken = &node.blocks[condition ? 1 : 0];
      RunBlock(*taken);
    }
    Stack results;
    for (const Argument& output : taken->block->outputs) {
      results.push_back(Evaluate(output, slots_, context_));
    }
    StoreResults(node, results, slots_);
  }

  void RunLoop(const CompiledNode& node) {
    Stack carried;
    for (const Argument& arg : node.node->args) {
      carried.push_back(Evaluate(arg, slots_, context_));
    }
    const int64_t max_trips = std::min<int64_t>(carried[0].toInt(), kMaxTrips);
    bool go_on = carried[1].toBool();
    carried.erase(carried.begin(), carried.begin() + 2);
    const CompiledBlock& body = node.blocks[0];
    for (int64_t trip = 0; trip < max_trips && go_on; ++trip) {
      slots_[body.block->inputs[0]] = trip;
      for (size_t i = 0; i < carried.size(); ++i) {
        slots_[body.block->inputs[i + 1]] = std::move(carried[i]);
      }
      RunBlock(body);
      go_on = Evaluate(body.block->outputs[0], slots_, context_).toBool();
      for (size_t i = 0; i < carried.size(); ++i) {
        carried[i] = Evaluate(body.block->outputs[i + 1], slots_, context_);
      }
    }
    StoreResults(node, carried, slots_);
  }

  void RunOperator(const CompiledNode& node, Stack& stack) {
    bool any_meta = false;
    for (const c10::IValue& value : stack) {
      ForEachTensor(value, [&](const at::Tensor& t) { any_meta |= t.is_meta(); });
    }
    if (!any_meta) {
      CallOperator(node, context_, stack);
      return;
    }
    if (node.kind == CompiledNode::Kind::kDispatcher) {
      // Known tensors that are no scalars lose their values beside unknown ones.
      for (c10::IValue& value : stack) {
        bool known = false;
        ForEachTensor(value,
                      [&](const at::Tensor& t) { known |= !t.is_meta() && !IsSmallScalar(t); });
        if (!known) continue;
        value = MapTensors(value, [](const at::Tensor& t) {
          return t.is_meta() || IsSmallScalar(t) ? t : t.to(at::kMeta);
        });
      }
    }
    if (ApplyRule(node, stack)) return;
    const std::string name = absl::StrCat(node.node->op, ".", node.node->overload);
    if (!without_meta_.count(name)) {
      Stack attempt = stack;
      try {
        CallOperator(node, context_, attempt);
        stack = std::move(attempt);
        return;
      } catch (const std::exception&) {
        without_meta_.insert(name);
      }
    }
    RunOnZeros(node, name, stack);
  }

  // ---- operators without a Meta kernel: exact rules ----

  bool ApplyRule(const CompiledNode& node, Stack& stack) {
    const std::string& op = node.node->op;
    if (op == "aten::embedding") {
      const at::Tensor weight = stack[0].toTensor();
      std::vector<int64_t> sizes = stack[1].toTensor().sizes().vec();
      sizes.push_back(weight.size(1));
      return Give(stack, sizes, DenseStrides(sizes), weight, weight.requires_grad());
    }
    if (op == "aten::layer_norm") {
      const at::Tensor x = stack[0].toTensor();
      return Give(stack, x.sizes().vec(), DenseStrides(x.sizes().vec()), x, AnyGrad(stack));
    }
    if (op == "aten::batch_norm") {
      const at::Tensor x = stack[0].toTensor();
      const at::Tensor like = at::empty_like(x, x.suggest_memory_format());
      return Give(stack, like.sizes().vec(), like.strides().vec(), x, AnyGrad(stack));
    }
    if (op == "aten::where" && node.node->overload == "self") return Where(stack);
    if (op == "aten::scaled_dot_product_attention") return Attention(node, stack);
    if (absl::StartsWith(op, "aten::conv") || op == "aten::_convolution") {
      return Convolution(node, stack);
    }
    return false;
  }

  static bool AnyGrad(const Stack& stack) {
    bool any = false;
    for (const c10::IValue& value : stack) any |= RequiresGrad(value);
    return any;
  }

  static bool Give(Stack& stack, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides, const at::Tensor& options,
                   bool requires_grad) {
    at::Tensor result =
        at::empty_strided(sizes, strides, options.options().device(at::kMeta).requires_grad(false));
    stack.clear();
    stack.emplace_back(WithHistory(result, requires_grad));
    return true;
  }

  // The same iterator over three operands as addcmul, which has a Meta kernel.
  static bool Where(Stack& stack) {
    const bool grad = AnyGrad(stack);
    const at::NoGradGuard no_grad;
    const at::Tensor a = stack[1].toTensor(), b = stack[2].toTensor();
    const at::ScalarType type = at::result_type(a, b);
    if (type == at::kBool) return false;
    const at::Tensor condition = stack[0].toTensor();
    const auto operand = [&](const at::Tensor& t) {
      const at::Tensor meta = t.is_meta() ? t : t.to(at::kMeta);
      return meta.scalar_type() == type ? meta : meta.to(type);
    };
    at::Tensor result = at::addcmul(operand(a), operand(b), operand(condition));
    stack.clear();
    stack.emplace_back(WithHistory(result, grad));
    return true;
  }

  // The kernel is chosen by flags, masks and types, so a run over few queries and keys tells the
  // memory order of the result.
  bool Attention(const CompiledNode& node, Stack& stack) {
    const at::Tensor q = stack[0].toTensor(), k = stack[1].toTensor(), v = stack[2].toTensor();
    if (q.dim() < 3 || k.dim() != q.dim() || v.dim() != q.dim()) return false;
    const auto cut = [&](const at::Tensor& x) {
      std::vector<int64_t> sizes = x.sizes().vec();
      for (size_t d = 0; d < sizes.size(); ++d) {
        if (d == sizes.size() - 1) continue;                      // head
        if (d == sizes.size() - 3 && sizes.size() > 3) continue;  // heads: groups share keys
        sizes[d] = std::min<int64_t>(sizes[d], 2);
      }
      return SmallZeros(x, sizes);
    };
    const bool grad = AnyGrad(stack);
    Stack small = stack;
    small[0] = cut(q);
    small[1] = cut(k);
    small[2] = cut(v);
    if (stack[3].isTensor()) {
      const at::Tensor mask = stack[3].toTensor();
      std::vector<int64_t> sizes = mask.sizes().vec();
      for (size_t d = 0; d < sizes.size(); ++d) {
        const bool heads = d + 3 == sizes.size();
        if (!heads) sizes[d] = std::min<int64_t>(sizes[d], 2);
      }
      small[3] = SmallZeros(mask, sizes);
    }
    CallOperator(node, context_, small);
    std::vector<int64_t> sizes = q.sizes().vec();
    sizes.back() = v.sizes().back();
    return Give(stack, sizes, StridesInOrderOf(small[0].toTensor(), sizes), q, grad);
  }

  static at::Tensor SmallZeros(const at::Tensor& like, const std::vector<int64_t>& sizes) {
    const at::NoGradGuard no_grad;
    const at::Tensor zeros = at::zeros(sizes, like.options().device(at::kCPU).requires_grad(false));
    const at::Tensor laid_out =
        at::empty_strided(sizes, StridesInOrderOf(like, sizes), zeros.options()).copy_(zeros);
    return WithHistory(laid_out, like.requires_grad());
  }

  // Samples are independent: two tell the shape of all.
  bool Convolution(const CompiledNode& node, Stack& stack) {
    const at::Tensor x = stack[0].toTensor();
    const at::Tensor weight = stack[1].toTensor();
    if (x.dim() != weight.dim() || x.size(0) <= 2) return false;
    Stack small = stack;
    std::vector<int64_t> sizes = x.sizes().vec();
    const int64_t batch = std::exchange(sizes[0], 2);
    small[0] = WithHistory(at::empty_strided(sizes, StridesInOrderOf(x, sizes),
                                             x.options().device(at::kMeta).requires_grad(false)),
                           x.requires_grad());
    RunOnZeros(node, absl::StrCat(node.node->op, ".", node.node->overload), small);
    const at::Tensor result = small[0].toTensor();
    sizes = result.sizes().vec();
    sizes[0] = batch;
    return Give(stack, sizes, StridesInOrderOf(result, sizes), result, result.requires_grad());
  }

  // ---- operators without a Meta kernel: a run on zeros, once a signature ----

  void RunOnZeros(const CompiledNode& node, const std::string& name, Stack& stack) {
    std::string signature = name;
    for (const c10::IValue& value : stack) AppendSignature(value, signature);
    std::vector<at::Tensor> operands;
    for (const c10::IValue& value : stack) {
      ForEachTensor(value, [&](const at::Tensor& t) { operands.push_back(t); });
    }
    auto it = results_.find(signature);
    if (it == results_.end()) {
      it = results_.emplace(signature, MeasureLayout(node, stack)).first;
    }
    stack = Rebuild(it->second, operands);
  }

  // Results whose tensors are placeholders: 0-d int64 CPU tensors holding the index of a layout.
  struct Outcome {
    Stack results;
    std::vector<ResultLayout> layouts;
  };

  Outcome MeasureLayout(const CompiledNode& node, const Stack& stack) {
    std::vector<at::Tensor> operands;
    std::unordered_map<const void*, at::Tensor> made;  // one twin for an operand given twice
    Stack real;
    for (const c10::IValue& value : stack) {
      real.push_back(MapTensors(value, [&](const at::Tensor& t) {
        auto [it, is_new] = made.try_emplace(t.unsafeGetTensorImpl());
        if (is_new) it->second = ZerosLike(t);
        operands.push_back(it->second);
        return it->second;
      }));
    }
    RunContext on_cpu = context_;
    on_cpu.device = at::kCPU;
    for (c10::IValue& value : real) {
      if (value.isDevice()) value = c10::Device(at::kCPU);
    }
    CallOperator(node, on_cpu, real);
    Outcome outcome;
    std::vector<const void*> storages;
    for (const c10::IValue& value : real) {
      outcome.results.push_back(MapTensors(value, [&](const at::Tensor& t) {
        ResultLayout layout;
        layout.dtype = t.scalar_type();
        layout.sizes = t.sizes().vec();
        layout.strides = t.strides().vec();
        layout.offset = t.storage_offset();
        layout.requires_grad = t.requires_grad();
        for (size_t k = 0; k < operands.size(); ++k) {
          if (operands[k].is_same(t)) layout.same_as = static_cast<int>(k);
          if (operands[k].is_alias_of(t) && layout.memory_of < 0) {
            layout.memory_of = static_cast<int>(k);
          }
        }
        if (layout.memory_of < 0) {
          const void* storage = t.storage().unsafeGetStorageImpl();
          const auto found = std::find(storages.begin(), storages.end(), storage);
          layout.memory = static_cast<int>(found - storages.begin());
          if (found == storages.end()) storages.push_back(storage);
          layout.elements =
              static_cast<int64_t>(t.storage().nbytes() / std::max<size_t>(t.element_size(), 1));
        }
        outcome.layouts.push_back(std::move(layout));
        return at::scalar_tensor(static_cast<int64_t>(outcome.layouts.size()) - 1,
                                 at::TensorOptions().dtype(at::kLong));
      }));
    }
    return outcome;
  }

  static Stack Rebuild(const Outcome& outcome, const std::vector<at::Tensor>& operands) {
    std::map<int, at::Tensor> memory;
    Stack stack;
    const at::NoGradGuard no_grad;
    for (const c10::IValue& value : outcome.results) {
      stack.push_back(MapTensors(value, [&](const at::Tensor& index) {
        const ResultLayout& layout = outcome.layouts[index.item<int64_t>()];
        if (layout.same_as >= 0) {
          return WithHistory(operands[layout.same_as], layout.requires_grad);
        }
        if (layout.memory_of >= 0) {
          const at::Tensor base = operands[layout.memory_of].detach();
          return WithHistory(
              base.as_strided(layout.sizes, layout.strides, layout.offset + base.storage_offset()),
              layout.requires_grad);
        }
        at::Tensor& base = memory[layout.memory];
        if (!base.defined()) {
          base = at::empty({layout.elements},
                           at::TensorOptions().dtype(layout.dtype).device(at::kMeta));
        }
        return WithHistory(base.as_strided(layout.sizes, layout.strides, layout.offset),
                           layout.requires_grad);
      }));
    }
    return stack;
  }

  // ---- what a value turned out to be ----

  void Define(int id, const c10::IValue& result) {
    if (id == kNoValue) return;
    slots_[id] = result;
    Value& value = graph_.values[id];
    value.view_of = kNoValue;
    if (result.isTensor() && result.toTensor().defined()) {
      const at::Tensor& tensor = result.toTensor();
      value.kind = ValueKind::kTensor;
      TensorMeta meta;
      meta.dtype = tensor.scalar_type();
      for (const int64_t size : tensor.sizes()) meta.sizes.push_back({size, ""});
      meta.strides = tensor.strides().vec();
      value.tensor = std::move(meta);
    } else if (result.isInt()) {
      value.kind = ValueKind::kInt;
    } else if (result.isDouble()) {
      value.kind = ValueKind::kFloat;
    } else if (result.isBool()) {
      value.kind = ValueKind::kBool;
    } else if (result.isString()) {
      value.kind = ValueKind::kString;
    } else if (result.isNone() || result.isTensor()) {
      value.kind = value.in_block ? value.kind : ValueKind::kNone;
    } else if (result.isList()) {
      value.kind = ValueKind::kList;
    } else if (result.isTuple()) {
      value.kind = ValueKind::kTuple;
    }
    value.requires_grad = RequiresGrad(result);
    if (value.in_block) return;
    ForEachTensor(result, [&](const at::Tensor& t) {
      if (!t.has_storage()) return;
      const void* storage = t.storage().unsafeGetStorageImpl();
      const auto [it, is_new] = owner_of_.try_emplace(storage, id);
      keep_alive_.push_back(t);
      if (!is_new && it->second != id && value.view_of == kNoValue) value.view_of = it->second;
    });
  }

  void MergeAliasClasses() {
    // Views point to lower ids, so one pass in order is enough for a forest; classes are small.
    std::map<int, int> renamed;
    const auto find = [&](int alias_class) {
      while (renamed.count(alias_class)) alias_class = renamed[alias_class];
      return alias_class;
    };
    for (Value& value : graph_.values) {
      if (value.view_of == kNoValue || value.alias_class < 0) continue;
      const int a = find(value.alias_class);
      const int b = find(graph_.values[value.view_of].alias_class);
      if (a != b) renamed[std::max(a, b)] = std::min(a, b);
    }
    for (Value& value : graph_.values) {
      if (value.alias_class >= 0) value.alias_class = find(value.alias_class);
    }
  }

  static constexpr int64_t kMaxTrips = 10000;

  OpGraph& graph_;
  Stack slots_;
  RunContext context_;
  std::set<std::string> without_meta_;
  std::unordered_map<std::string, Outcome> results_;
  std::unordered_map<const void*, int> owner_of_;  // storage -> first value in it
  std::vector<at::Tensor> keep_alive_;             // so that no address is used twice
};

}  // namespace

absl::Status PropagateShapes(OpGraph& graph, const std::vector<InputSpec>& inputs) {
  try {
    return Propagator(graph).Run(inputs);
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("shapes cannot be found: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("shapes cannot be found: ", error.what()));
  }
}

}  // namespace autopart
