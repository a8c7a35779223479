// One node at a time, through torch's dispatcher. Cost: the operator's own plus about 0.1 us of
// boxing. If and Loop run their blocks over the same slots by recursion, since value ids are unique
// over the whole graph.
#include "profiler/run_node.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "profiler/internal/dropout_mask.h"

namespace autopart {
namespace {

using Stack = std::vector<c10::IValue>;

// The finaliser of SplitMix64: every input bit changes every output bit with probability near 1/2.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Stack TakeAll(Stack& stack) {
  Stack items(std::make_move_iterator(stack.begin()), std::make_move_iterator(stack.end()));
  stack.clear();
  return items;
}

// prim::ListConstruct stays a node only where the list is changed later; its argument is the list.
void Identity(Stack&) {}

void ListUnpack(Stack& stack) {
  const c10::IValue list = std::move(stack.back());
  stack.pop_back();
  for (const c10::IValue& item : list.toListRef()) stack.push_back(item);
}

void TupleUnpack(Stack& stack) {
  const c10::IValue tuple = std::move(stack.back());
  stack.pop_back();
  for (const c10::IValue& item : tuple.toTupleRef().elements()) stack.push_back(item);
}

void TupleIndex(Stack& stack) {
  const int64_t index = stack.back().toInt();
  stack.pop_back();
  const c10::IValue tuple = std::move(stack.back());
  stack.pop_back();
  const auto& elements = tuple.toTupleRef().elements();
  const int64_t size = static_cast<int64_t>(elements.size());
  stack.push_back(elements.at(index < 0 ? index + size : index));
}

// Arguments: an empty dictionary's keys and values in turn; typed by the first pair.
void DictConstruct(Stack& stack) {
  Stack items = TakeAll(stack);
  if (items.empty()) {
    stack.emplace_back(c10::impl::GenericDict(c10::StringType::get(), c10::TensorType::get()));
    return;
  }
  c10::impl::GenericDict dict(items[0].type(),
                              items[1].isTensor() ? c10::TensorType::get() : items[1].type());
  for (size_t i = 0; i + 1 < items.size(); i += 2) dict.insert_or_assign(items[i], items[i + 1]);
  stack.emplace_back(std::move(dict));
}

void Uninitialized(Stack& stack) { stack.emplace_back(); }

void (*FindPrimitive(const std::string& op))(Stack&) {
  if (op == "prim::ListConstruct" || op == "prim::TupleConstruct") return Identity;
  if (op == "prim::ListUnpack") return ListUnpack;
  if (op == "prim::TupleUnpack") return TupleUnpack;
  if (op == "prim::TupleIndex") return TupleIndex;
  if (op == "prim::DictConstruct") return DictConstruct;
  if (op == "prim::Uninitialized") return Uninitialized;
  return nullptr;
}

int FindTrainingArgument(const c10::FunctionSchema& schema) {
  for (const char* name : {"training", "train"}) {
    if (const auto index = schema.argumentIndexWithName(name)) {
      if (schema.arguments()[*index].type()->kind() == c10::TypeKind::BoolType) return *index;
    }
  }
  return -1;
}

// Random operators without an own key: the CPU generator is seeded for the call and then put back,
// under one lock, since threads of several stages share it.
template <typename Call>
void WithSeededGenerator(uint64_t key, Call&& call) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> hold(one_at_a_time);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor state;
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    state = generator.get_state();
    generator.set_current_seed(key);
  }
  const auto restore = [&] {
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  };
  try {
    call();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void RunBlock(const CompiledBlock& block, std::vector<c10::IValue>& slots,
              const RunContext& context) {
  for (const CompiledNode& node : block.nodes) RunNode(node, slots, context);
}

void RunIf(const CompiledNode& node, std::vector<c10::IValue>& slots, const RunContext& context) {
  const bool condition = Evaluate(node.node->args[0], slots, context).toBool();
  const CompiledBlock& taken = node.blocks[condition ? 0 : 1];
  RunBlock(taken, slots, context);
  Stack results;
  for (const Argument& output : taken.block->outputs) {
    results.push_back(Evaluate(output, slots, context));
  }
  StoreResults(node, results, slots);
}

void RunLoop(const CompiledNode& node, std::vector<c10::IValue>& slots, const RunContext& context) {
  Stack carried;
  for (const Argument& arg : node.node->args) carried.push_back(Evaluate(arg, slots, context));
  const int64_t max_trips = carried[0].toInt();
  bool go_on = carried[1].toBool();
  carried.erase(carried.begin(), carried.begin() + 2);
  const CompiledBlock& body = node.blocks[0];
  for (int64_t trip = 0; trip < max_trips && go_on; ++trip) {
    slots[body.block->inputs[0]] = trip;
    for (size_t i = 0; i < carried.size(); ++i) {
      slots[body.block->inputs[i + 1]] = std::move(carried[i]);
    }
    RunContext inner = context;
    inner.iteration = Mix(context.iteration ^ Mix(static_cast<uint64_t>(trip) + 1));
    RunBlock(body, slots, inner);
    go_on = Evaluate(body.block->outputs[0], slots, context).toBool();
    for (size_t i = 0; i < carried.size(); ++i) {
      carried[i] = Evaluate(body.block->outputs[i + 1], slots, context);
    }
  }
  StoreResults(node, carried, slots);
}

}  // namespace

uint64_t RandomKey(uint64_t seed, uint64_t step, uint64_t micro_batch) {
  return Mix(Mix(Mix(seed) ^ step) ^ micro_batch);
}

uint64_t NodeRandomKey(const RunContext& context, uint64_t random_stream) {
  return Mix(Mix(context.random_key ^ random_stream) ^ context.iteration);
}

absl::StatusOr<CompiledNode> CompileNode(const Node& node) {
  internal::RegisterDropoutMask();
  CompiledNode compiled;
  compiled.node = &node;
  for (const Block& block : node.blocks) {
    absl::StatusOr<std::vector<CompiledNode>> nodes = CompileNodes(block.nodes);
    if (!nodes.ok()) return nodes.status();
    compiled.blocks.push_back({&block, *std::move(nodes)});
  }
  if (node.op == "prim::If") {
    compiled.kind = CompiledNode::Kind::kIf;
    return compiled;
  }
  if (node.op == "prim::Loop") {
    compiled.kind = CompiledNode::Kind::kLoop;
    return compiled;
  }
  if (auto* primitive = FindPrimitive(node.op)) {
    compiled.kind = CompiledNode::Kind::kPrimitive;
    compiled.call = primitive;
    return compiled;
  }
  const c10::OperatorName name(node.op, node.overload);
  if (auto handle = c10::Dispatcher::singleton().findSchema(name)) {
    compiled.kind = node.op == "autopart::dropout_mask" ? CompiledNode::Kind::kDropoutMask
                                                        : CompiledNode::Kind::kDispatcher;
    compiled.handle = *handle;
    compiled.training_argument = FindTrainingArgument(handle->schema());
    compiled.skipped_in_eval =
        node.effects.writes_buffer && compiled.training_argument < 0 && node.op == "aten::add_";
    return compiled;
  }
  if (const auto op = torch::jit::findOperatorFor(name)) {
    compiled.kind = CompiledNode::Kind::kJitOperator;
    compiled.vararg = op->schema().is_vararg();
    compiled.call = [operation = op->getOperation(nullptr)](Stack& stack) mutable {
      operation(stack);
    };
    return compiled;
  }
  return absl::UnimplementedError(absl::StrCat(
      "operator ", node.op, node.overload.empty() ? "" : ".", node.overload, " in module '",
      node.module_path, "' is not known to this torch: load the library that defines it first"));
}

absl::StatusOr<std::vector<CompiledNode>> CompileNodes(const std::vector<Node>& nodes) {
  std::vector<CompiledNode> compiled;
  compiled.reserve(nodes.size());
  for (const Node& node : nodes) {
    absl::StatusOr<CompiledNode> one = CompileNode(node);
    if (!one.ok()) return one.status();
    compiled.push_back(*std::move(one));
  }
  return compiled;
}

c10::IValue Evaluate(const Argument& argument, const std::vector<c10::IValue>& slots,
                     const RunContext& context) {
  if (const auto* ref = std::get_if<ValueRef>(&argument.is)) return slots[ref->value];
  if (const auto* constant = std::get_if<c10::IValue>(&argument.is)) return *constant;
  if (std::holds_alternative<StageDevice>(argument.is)) return context.device;
  const auto& list = std::get<ArgumentList>(argument.is);
  if (list.is_tuple) {
    std::vector<c10::IValue> items;
    items.reserve(list.items.size());
    for (const Argument& item : list.items) items.push_back(Evaluate(item, slots, context));
    return c10::ivalue::Tuple::create(std::move(items));
  }
  c10::impl::GenericList items(list.element_type ? list.element_type : c10::TensorType::get());
  items.reserve(list.items.size());
  for (const Argument& item : list.items) items.push_back(Evaluate(item, slots, context));
  return items;
}

void PushArguments(const CompiledNode& node, const std::vector<c10::IValue>& slots,
                   const RunContext& context, Stack& stack) {
  const size_t begin = stack.size();
  for (const Argument& arg : node.node->args) stack.push_back(Evaluate(arg, slots, context));
  if (node.kind == CompiledNode::Kind::kDropoutMask) {
    stack.emplace_back(static_cast<int64_t>(NodeRandomKey(context, node.node->random_stream)));
  }
  if (node.training_argument >= 0 && !context.training) {
    stack[begin + node.training_argument] = false;
  }
  if (node.vararg) stack.emplace_back(static_cast<int64_t>(node.node->args.size()));
}

void CallOperator(const CompiledNode& node, const RunContext& context, Stack& stack) {
  switch (node.kind) {
    case CompiledNode::Kind::kDropoutMask:
      if (!context.training) {
        at::Tensor like = stack[0].toTensor().detach();
        stack.clear();
        stack.emplace_back(at::ones_like(like));
        return;
      }
      node.handle->callBoxed(stack);
      return;
    case CompiledNode::Kind::kDispatcher:
      if (node.skipped_in_eval && !context.training) {
        stack.resize(1);
      } else if (node.node->effects.random) {
        WithSeededGenerator(NodeRandomKey(context, node.node->random_stream),
                            [&] { node.handle->callBoxed(stack); });
      } else {
        node.handle->callBoxed(stack);
      }
      return;
    case CompiledNode::Kind::kJitOperator:
    case CompiledNode::Kind::kPrimitive:
      node.call(stack);
      return;
    case CompiledNode::Kind::kIf:
    case CompiledNode::Kind::kLoop:
      TORCH_INTERNAL_ASSERT(false, "control flow has no operator");
  }
}

void StoreResults(const CompiledNode& node, Stack& stack, std::vector<c10::IValue>& slots) {
  const std::vector<int>& outputs = node.node->outputs;
  if (node.node->unpacks_list) {
    const c10::IValue list = std::move(stack.back());
    const c10::List<c10::IValue> items = list.toList();
    TORCH_CHECK(items.size() == outputs.size(), node.node->op, " in module '",
                node.node->module_path, "' gave a list of ", items.size(), " where ",
                outputs.size(), " are unpacked");
    for (size_t i = 0; i < outputs.size(); ++i) slots[outputs[i]] = items.get(i);
    return;
  }
  TORCH_CHECK(stack.size() >= outputs.size(), node.node->op, " in module '", node.node->module_path,
              "' gave ", stack.size(), " results where ", outputs.size(), " are used");
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] != kNoValue) slots[outputs[i]] = std::move(stack[i]);
  }
}

void RunNode(const CompiledNode& node, std::vector<c10::IValue>& slots, const RunContext& context) {
  if (node.kind == CompiledNode::Kind::kIf) return RunIf(node, slots, context);
  if (node.kind == CompiledNode::Kind::kLoop) return RunLoop(node, slots, context);
  Stack stack;
  stack.reserve(node.node->args.size() + 2);
  PushArguments(node, slots, context, stack);
  CallOperator(node, context, stack);
  StoreResults(node, stack, slots);
}

}  // namespace autopart
