#include "runtime/stage_program.h"

#include <algorithm>
#include <stdexcept>

#include "profiler/alias.h"
#include "runtime/internal/error_text.h"
#include "runtime/message.h"

namespace autopart {

Plan WithoutConstants(Plan plan, const OpGraph& graph) {
  for (PlanStage& stage : plan.stages) {
    for (std::vector<int>* held : {&stage.owned_parameters, &stage.copied_parameters}) {
      std::erase_if(*held, [&](int p) { return p >= static_cast<int>(graph.parameters.size()); });
    }
  }
  return plan;
}
namespace {

// Where an operand of a call comes from.
struct Operand {
  enum class Kind : uint8_t {
    kSlot,
    kLastUse,   // the slot's last reader: moved out
    kConstant,  // index into Call::constants
    kList,      // index into Call::lists
  };
  Kind kind = Kind::kConstant;
  int index = 0;
};

struct ListOperand {
  bool is_tuple = false;
  c10::TypePtr element_type;
  std::vector<Operand> items;
};

at::IValue Load(const Operand& operand, const std::vector<at::IValue>& constants,
                const std::vector<ListOperand>& lists, std::vector<at::IValue>& frame) {
  switch (operand.kind) {
    case Operand::Kind::kSlot:
      return frame[operand.index];
    case Operand::Kind::kLastUse:
      return std::move(frame[operand.index]);
    case Operand::Kind::kConstant:
      return constants[operand.index];
    case Operand::Kind::kList:
      break;
  }
  const ListOperand& list = lists[operand.index];
  if (list.is_tuple) {
    std::vector<at::IValue> items;
    items.reserve(list.items.size());
    for (const Operand& item : list.items) items.push_back(Load(item, constants, lists, frame));
    return c10::ivalue::Tuple::create(std::move(items));
  }
  c10::impl::GenericList built(list.element_type);
  built.reserve(list.items.size());
  for (const Operand& item : list.items) built.push_back(Load(item, constants, lists, frame));
  return built;
}

// What the graph's arguments do not have: key, mode, count.
void AddHiddenArguments(const CompiledNode& node, const RunContext& context,
                        std::vector<at::IValue>& stack) {
  const int64_t num_args = static_cast<int64_t>(stack.size());
  if (node.kind == CompiledNode::Kind::kDropoutMask) {
    stack.emplace_back(static_cast<int64_t>(NodeRandomKey(context, node.node->random_stream)));
  }
  if (node.training_argument >= 0 && !context.training) stack[node.training_argument] = false;
  if (node.vararg) stack.emplace_back(num_args);
}

void UnpackList(const CompiledNode& node, std::vector<at::IValue>& stack) {
  const at::IValue list = std::move(stack.back());
  stack.clear();
  for (const at::IValue& item : list.toListRef()) stack.push_back(item);
  TORCH_CHECK(stack.size() == node.node->outputs.size(), "gave a list of ", stack.size(), " where ",
              node.node->outputs.size(), " are unpacked");
}

bool Contains(const std::vector<int>& sorted, int value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

std::vector<int> SortedUnion(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  a.erase(std::unique(a.begin(), a.end()), a.end());
  return a;
}

void CollectBlockValues(const std::vector<Block>& blocks, std::vector<int>& values) {
  for (const Block& block : blocks) {
    values.insert(values.end(), block.inputs.begin(), block.inputs.end());
    for (const Node& node : block.nodes) {
      values.insert(values.end(), node.outputs.begin(), node.outputs.end());
      CollectBlockValues(node.blocks, values);
    }
  }
}

}  // namespace

struct StageProgram::Call {
  CompiledNode node;
  bool is_control_flow = false;
  std::vector<Operand> operands;
  std::vector<at::IValue> constants;
  std::vector<ListOperand> lists;
  std::vector<int> outputs;  // kNoValue for results that nobody reads
  std::vector<int> frees;    // slots that end here and were not moved out
  // (value, slot): copied before the call, which writes into the value's memory.
  std::vector<std::pair<int, int>> copies;
};

struct StageProgram::Builder {
  StageProgram& program;
  const OpGraph& graph;
  const Plan& plan;
  const int stage;
  const bool is_host;
  std::vector<char> present;     // the value has a slot that is filled when it is read
  std::vector<char> persistent;  // parameters and constants: never freed
  std::vector<char> kept;        // freed by Clear

  void Build() {
    const PlanStage& mine = plan.stages[stage];
    program.num_slots_ = static_cast<int>(graph.values.size());
    present.assign(graph.values.size(), 0);
    persistent = kept = present;
    AddParameters(mine);
    AddIncoming();
    AddInputs();
    const std::vector<int> nodes = SortedUnion(mine.nodes, mine.copied_nodes);
    CheckReads(nodes);
    AddOutgoing();
    AddResults(mine);
    for (const int node : nodes) program.calls_.push_back(MakeCall(graph.nodes[node]));
    FindLastUses(nodes);
    AddCopies(nodes);
  }

  void AddParameters(const PlanStage& mine) {
    for (const int index : SortedUnion(mine.owned_parameters, mine.copied_parameters)) {
      const int value = graph.parameters[index].value;
      if (value == kNoValue) continue;
      program.parameters_.push_back({index, value});
      present[value] = persistent[value] = 1;
    }
    for (const ConstantTensor& constant : graph.constants) {
      if (constant.value == kNoValue) continue;
      program.constants_.emplace_back(constant.value, constant.tensor);
      present[constant.value] = persistent[constant.value] = 1;
    }
  }

  void AddIncoming() {
    for (const StageEdge& edge : plan.edges) {
      if (edge.to != stage) continue;
      program.incoming_.push_back({edge.from, edge.has_gradient, edge.values});
      for (const int value : edge.values) present[value] = 1;
    }
    SortEdges(program.incoming_);
  }

  static void SortEdges(std::vector<ProgramEdge>& edges) {
    std::sort(edges.begin(), edges.end(),
              [](const auto& a, const auto& b) { return a.peer_stage < b.peer_stage; });
  }

  // The caller feeds stage 0; later stages get the model's inputs by edges, and so does stage 0
  // where a host stage comes first.
  void AddInputs() {
    if (stage != 0 || is_host) return;
    for (int i = 0; i < static_cast<int>(graph.inputs.size()); ++i) {
      const int value = graph.inputs[i].value;
      if (value == kNoValue || present[value]) continue;
      program.inputs_.push_back({i, value});
      present[value] = 1;
    }
  }

  void CheckReads(const std::vector<int>& nodes) {
    for (const int node : nodes) {
      for (const int value : ReadValues(graph.nodes[node])) CheckPresent(value);
      for (const int value : graph.nodes[node].outputs) present[value] = 1;
    }
  }

  void CheckPresent(int value) const {
    if (present[value]) return;
    const Value& v = graph.values[value];
    std::string text = "value %" + std::to_string(value);
    if (v.producer != kNoNode) {
      text += " of " + graph.nodes[v.producer].op + " in module '" +
              graph.nodes[v.producer].module_path + "'";
    }
    throw std::invalid_argument("stage " + std::to_string(stage) + " needs " + text +
                                ", which it neither computes nor receives: the plan was not made "
                                "for this model");
  }

  void AddOutgoing() {
    for (const StageEdge& edge : plan.edges) {
      if (edge.from != stage) continue;
      for (const int value : edge.values) {
        if (!is_host) CheckPresent(value);
        Keep(value);
      }
      program.outgoing_.push_back({edge.to, edge.has_gradient, edge.values});
      program.sent_ = SortedUnion(std::move(program.sent_), edge.values);
    }
    SortEdges(program.outgoing_);
  }

  void Keep(int value) {
    if (persistent[value] || kept[value]) return;
    kept[value] = 1;
    program.kept_.push_back(value);
  }

  // A result belongs to the stage that owns its producer (an input: stage 0, a parameter: its
  // owner, a constant: the last stage).
  void AddResults(const PlanStage& mine) {
    if (is_host) return;
    const bool is_last = stage + 1 == static_cast<int>(plan.stages.size());
    for (int o = 0; o < static_cast<int>(graph.outputs.size()); ++o) {
      const Argument& output = graph.outputs[o];
      if (const auto* constant = std::get_if<c10::IValue>(&output.is)) {
        if (is_last) program.results_.push_back({o, kNoValue, *constant});
        continue;
      }
      const auto* ref = std::get_if<ValueRef>(&output.is);
      if (ref == nullptr) {
        throw std::invalid_argument("output " + std::to_string(o) +
                                    " of the model is a list of values: flatten the outputs");
      }
      if (!OwnsValue(mine, ref->value)) continue;
      CheckPresent(ref->value);
      Keep(ref->value);
      program.results_.push_back({o, ref->value, {}});
      if (graph.loss_output == o) program.loss_ = ref->value;
    }
  }

  bool OwnsValue(const PlanStage& mine, int value) const {
    const int producer = graph.values[value].producer;
    if (producer != kNoNode) return Contains(mine.nodes, producer);
    for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
      if (graph.parameters[p].value == value) return Contains(mine.owned_parameters, p);
    }
    return stage == 0;
  }

  Call MakeCall(const Node& node) {
    absl::StatusOr<CompiledNode> compiled = CompileNode(node);
    if (!compiled.ok()) throw std::invalid_argument(std::string(compiled.status().message()));
    Call call;
    call.node = *std::move(compiled);
    call.is_control_flow = !node.blocks.empty();
    call.outputs = node.outputs;
    FindWrittenBuffers(node);
    if (call.is_control_flow) {
      CollectBlockValues(node.blocks, call.frees);
      return call;
    }
    const c10::FunctionSchema* schema =
        call.node.handle.has_value() ? &call.node.handle->schema() : nullptr;
    for (size_t i = 0; i < node.args.size(); ++i) {
      c10::TypePtr type;
      if (schema != nullptr && i < schema->arguments().size()) {
        type = schema->arguments()[i].type();
      }
      call.operands.push_back(MakeOperand(node.args[i], type, call));
    }
    return call;
  }

  static Operand MakeOperand(const Argument& argument, const c10::TypePtr& type, Call& call) {
    const auto constant = [&](at::IValue value) {
      call.constants.push_back(std::move(value));
      return Operand{Operand::Kind::kConstant, static_cast<int>(call.constants.size()) - 1};
    };
    if (const auto* ref = std::get_if<ValueRef>(&argument.is)) {
      return {Operand::Kind::kSlot, ref->value};
    }
    if (const auto* value = std::get_if<c10::IValue>(&argument.is)) return constant(*value);
    if (std::holds_alternative<StageDevice>(argument.is)) return constant(at::Device(at::kCPU));

    const auto& items = std::get<ArgumentList>(argument.is);
    ListOperand list;
    list.is_tuple = items.is_tuple;
    list.element_type = items.element_type;
    if (list.element_type == nullptr) list.element_type = ElementType(type);
    for (const Argument& item : items.items) {
      list.items.push_back(MakeOperand(item, list.element_type, call));
    }
    call.lists.push_back(std::move(list));
    return {Operand::Kind::kList, static_cast<int>(call.lists.size()) - 1};
  }

  static c10::TypePtr ElementType(c10::TypePtr type) {
    if (type != nullptr && type->kind() == c10::TypeKind::OptionalType) {
      type = type->containedType(0);
    }
    if (type != nullptr && type->kind() == c10::TypeKind::ListType) return type->containedType(0);
    return c10::TensorType::get();
  }

  void FindWrittenBuffers(const Node& node) {
    if (!node.effects.writes_buffer) return;
    const std::vector<int> read = ReadValues(node);
    std::vector<int> written;
    for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
      const Parameter& parameter = graph.parameters[p];
      if (parameter.is_buffer && parameter.value != kNoValue && Contains(read, parameter.value)) {
        written.push_back(p);
      }
    }
    program.written_buffers_ = SortedUnion(std::move(program.written_buffers_), written);
  }

  // A slot ends with the last call that reads it. Results that nobody reads are not stored.
  void FindLastUses(const std::vector<int>& nodes) {
    std::vector<int> last(graph.values.size(), -1);
    for (int c = 0; c < static_cast<int>(nodes.size()); ++c) {
      for (const int value : ReadValues(graph.nodes[nodes[c]])) last[value] = c;
    }
    for (Call& call : program.calls_) {
      for (int& output : call.outputs) {
        if (last[output] >= 0 || kept[output]) continue;
        // Control flow stores its own results.
        if (call.is_control_flow) call.frees.push_back(output);
        output = kNoValue;
      }
    }
    for (int value = 0; value < static_cast<int>(last.size()); ++value) {
      if (last[value] < 0 || persistent[value] || kept[value]) continue;
      Call& call = program.calls_[last[value]];
      if (!MoveLastUse(call, value)) call.frees.push_back(value);
    }
    const auto keep_unread = [&](int value) {
      if (last[value] < 0) Keep(value);
    };
    for (const ProgramInput& input : program.inputs_) keep_unread(input.value);
    for (const ProgramEdge& edge : program.incoming_) {
      for (const int value : edge.values) keep_unread(value);
    }
  }

  // Values to send that a later call writes into.
  void AddCopies(const std::vector<int>& nodes) {
    for (const int value : program.sent_) {
      program.sent_slots_.push_back(value);
      const int alias_class = graph.values[value].alias_class;
      for (size_t c = 0; c < nodes.size(); ++c) {
        if (nodes[c] <= graph.values[value].producer) continue;
        const std::vector<int> written = WrittenValues(graph.nodes[nodes[c]]);
        const bool writes = std::any_of(written.begin(), written.end(), [&](int w) {
          return w == value || (alias_class >= 0 && graph.values[w].alias_class == alias_class);
        });
        if (!writes) continue;
        const int slot = program.num_slots_++;
        program.calls_[c].copies.emplace_back(value, slot);
        program.kept_.push_back(slot);
        program.sent_slots_.back() = slot;
        break;
      }
    }
  }

  // Turns the operand that reads the slot into a move where it is the only one.
  static bool MoveLastUse(Call& call, int value) {
    Operand* found = nullptr;
    int count = 0;
    const auto look = [&](Operand& operand) {
      if (operand.kind != Operand::Kind::kSlot || operand.index != value) return;
      found = &operand;
      ++count;
    };
    for (Operand& operand : call.operands) look(operand);
    for (ListOperand& list : call.lists) {
      for (Operand& operand : list.items) look(operand);
    }
    if (count != 1) return false;
    found->kind = Operand::Kind::kLastUse;
    return true;
  }
};

StageProgram::StageProgram(const OpGraph& graph, const Plan& plan, int stage, bool is_host) {
  Builder{*this, graph, plan, stage, is_host, {}, {}, {}}.Build();
}

StageProgram::~StageProgram() = default;
StageProgram::StageProgram(StageProgram&&) noexcept = default;

StageProgram::Frame StageProgram::MakeFrame() const {
  Frame frame(num_slots_);
  for (const auto& [value, tensor] : constants_) frame[value] = tensor;
  return frame;
}

void StageProgram::Clear(Frame& frame) const {
  for (const int value : kept_) frame[value] = at::IValue();
}

void StageProgram::Run(Frame& frame, const RunContext& context) const {
  std::vector<at::IValue> stack;
  stack.reserve(16);
  size_t at = 0;
  try {
    for (; at < calls_.size(); ++at) RunCall(calls_[at], frame, context, stack);
  } catch (const std::exception& error) {
    const Node& node = *calls_[at].node.node;
    throw std::runtime_error("operator " + node.op + " in module '" + node.module_path +
                             "': " + internal::ErrorText(error));
  }
}

void StageProgram::RunCall(const Call& call, Frame& frame, const RunContext& context,
                           std::vector<at::IValue>& stack) {
  for (const auto& [value, slot] : call.copies) {
    frame[slot] = MapTensors(frame[value], [](const at::Tensor& t) { return t.clone(); });
  }
  if (call.is_control_flow) {
    RunNode(call.node, frame, context);
  } else {
    stack.clear();
    for (const Operand& operand : call.operands) {
      stack.push_back(Load(operand, call.constants, call.lists, frame));
    }
    AddHiddenArguments(call.node, context, stack);
    CallOperator(call.node, context, stack);
    if (call.node.node->unpacks_list) UnpackList(call.node, stack);
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      if (call.outputs[i] != kNoValue) frame[call.outputs[i]] = std::move(stack[i]);
    }
    stack.clear();
  }
  for (const int value : call.frees) frame[value] = at::IValue();
}

}  // namespace autopart
