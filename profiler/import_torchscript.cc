// TorchScript front end: an abstract run of forward() in which module objects, functions, lists,
// tuples and constants are known and tensors are not. What stays unknown becomes values, what is
// called on it becomes nodes. Method calls are entered with the path of their object, so each node
// has the user's module path whether the module was traced, scripted, loaded or is in memory.
//
// What is known is folded: attributes, arithmetic on constants, and branches on them (a scripted
// functional.dropout is mostly checks of its probability). A branch on a tensor stays whole.
//
// Deliberately not done: attributes assigned in forward(), modules chosen at run time, dictionaries
// other than as results, custom classes.
#include "profiler/import_torchscript.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <xxhash.h>

#include "profiler/alias.h"
#include "profiler/internal/decompose.h"
#include "profiler/internal/rewrite.h"
#include "profiler/internal/schemas.h"
#include "profiler/run_node.h"
#include "profiler/shapes.h"

namespace autopart {
namespace {

namespace jit = torch::jit;
namespace prim = c10::prim;

struct ImportError {
  absl::Status status;
};

template <typename... Parts>
[[noreturn]] void Refuse(const Parts&... parts) {
  throw ImportError{absl::UnimplementedError(absl::StrCat(parts...))};
}

// What a TorchScript value is known to be.
struct Object {
  c10::intrusive_ptr<c10::ivalue::Object> object;
  std::string path;
};
using Binding = std::variant<Argument, Object, jit::Function*>;

// One call of a method or function: what its values are bound to.
struct Frame {
  std::unordered_map<const jit::Value*, Binding> bindings;
  std::string module_path;
  bool is_top = false;
};

Argument Constant(c10::IValue value) { return Argument{std::move(value)}; }

const c10::IValue* AsConstant(const Argument& argument) {
  return std::get_if<c10::IValue>(&argument.is);
}

bool IsScalar(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool() || value.isString() ||
         value.isNone() || value.isComplexDouble();
}

// The constant that a tree of constants stands for, if it is one.
std::optional<c10::IValue> Fold(const Argument& argument) {
  if (const c10::IValue* constant = AsConstant(argument)) return *constant;
  const auto* list = std::get_if<ArgumentList>(&argument.is);
  if (!list || list->is_tuple || !list->element_type) return std::nullopt;
  c10::impl::GenericList items(list->element_type);
  for (const Argument& item : list->items) {
    std::optional<c10::IValue> value = Fold(item);
    if (!value) return std::nullopt;
    items.push_back(*std::move(value));
  }
  return items;
}

ValueKind KindOf(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ValueKind::kTensor;
    case c10::TypeKind::IntType:
      return ValueKind::kInt;
    case c10::TypeKind::FloatType:
      return ValueKind::kFloat;
    case c10::TypeKind::BoolType:
      return ValueKind::kBool;
    case c10::TypeKind::StringType:
      return ValueKind::kString;
    case c10::TypeKind::NoneType:
      return ValueKind::kNone;
    case c10::TypeKind::ListType:
      return ValueKind::kList;
    case c10::TypeKind::TupleType:
      return ValueKind::kTuple;
    default:
      return ValueKind::kOther;
  }
}

bool ChangesList(const jit::Node& node) {
  static const std::set<std::string> kOps = {"aten::append",  "aten::_set_item", "aten::insert",
                                             "aten::extend",  "aten::pop",       "aten::remove",
                                             "aten::reverse", "aten::clear",     "aten::Delete",
                                             "aten::sort",    "aten::add_",      "aten::mul_"};
  return kOps.count(node.kind().toQualString()) > 0 && node.inputs().size() > 0 &&
         node.input(0)->type()->kind() == c10::TypeKind::ListType;
}

// A list is argument structure where it is only read by operators of its own frame. A list that
// may be changed (append) is a value made by a node, so that all users see one list.
bool IsReadOnly(const jit::Value& list, bool top_frame) {
  for (const jit::Use& use : list.uses()) {
    const jit::Node& user = *use.user;
    if (ChangesList(user) && use.offset == 0) return false;
    switch (user.kind()) {
      case prim::Return:
        if (top_frame && user.owningBlock()->owningNode() == nullptr) break;
        return false;
      case prim::If:
      case prim::Loop:
      case prim::CallMethod:
      case prim::CallFunction:
        return false;
      default:
        break;
    }
  }
  return true;
}

class Importer {
 public:
  Importer(const jit::Module& module, const ImportOptions& options)
      : module_(module), options_(options) {}

  Model Run() {
    CollectParameters(module_, "");
    graph_.training = options_.training.value_or(
        module_.hasattr("training") ? module_.attr("training").toBool() : true);
    graph_.loss_output = options_.loss_output;
    graph_.loss_is_sum = options_.loss_is_sum;

    const auto method = module_.find_method("forward");
    if (!method) Refuse("the module has no forward() method");
    jit::GraphFunction* function = jit::tryToGraphFunction(method->function());
    if (!function) Refuse("forward() of the module is not a TorchScript graph");
    function->ensure_defined();
    const std::shared_ptr<jit::Graph> graph = function->graph();

    Frame frame;
    frame.is_top = true;
    frame.bindings[graph->inputs()[0]] = Object{module_._ivalue(), ""};
    BindInputs(*graph, function->getSchema(), frame);
    nodes_ = &graph_.nodes;
    VisitBlock(*graph->block(), frame);
    for (const jit::Value* output : graph->outputs()) FlattenOutput(Get(output, frame));
    if (graph_.loss_output && (*graph_.loss_output < 0 ||
                               *graph_.loss_output >= static_cast<int>(graph_.outputs.size()))) {
      throw ImportError{absl::InvalidArgumentError(
          absl::StrCat("output ", *graph_.loss_output, " is to be the loss, but forward() has ",
                       graph_.outputs.size(), " outputs"))};
    }
    internal::DropDead(graph_);
    internal::OrderConstants(graph_);
    internal::Renumber(graph_);
    return {std::move(graph_), std::move(tensors_)};
  }

 private:
  // ---- parameters ----

  std::string Strip(std::string path) const {
    const std::string& prefix = options_.strip_prefix;
    if (prefix.empty()) return path;
    if (absl::StrCat(path, ".") == prefix) return "";
    return std::string(absl::StripPrefix(path, prefix));
  }

  // Sharing is found by storage: two names of one tensor are one parameter.
  using TensorKey = std::tuple<const void*, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
  static TensorKey KeyOf(const at::Tensor& tensor) {
    const void* storage = tensor.has_storage()
                              ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())
                              : static_cast<const void*>(tensor.unsafeGetTensorImpl());
    return {storage, tensor.has_storage() ? tensor.storage_offset() : 0, tensor.sizes().vec(),
            tensor.strides().vec()};
  }

  static TensorMeta MetaOf(const at::Tensor& tensor) {
    TensorMeta meta;
    meta.dtype = tensor.scalar_type();
    for (const int64_t size : tensor.sizes()) meta.sizes.push_back({size, ""});
    meta.strides = tensor.strides().vec();
    return meta;
  }

  // state_dict order: a module's parameters, its buffers, then its children.
  void CollectParameters(const jit::Module& module, const std::string& path) {
    const c10::ClassType& type = *module.type();
    for (const bool buffers : {false, true}) {
      for (size_t i = 0; i < type.numAttributes(); ++i) {
        if (buffers ? !type.is_buffer(i) : !type.is_parameter(i)) continue;
        const c10::IValue attribute = module._ivalue()->getSlot(i);
        if (attribute.isTensor() && attribute.toTensor().defined()) {
          AddParameter(absl::StrCat(path, type.getAttributeName(i)), attribute.toTensor(), buffers);
        }
      }
    }
    for (const auto& child : module.named_children()) {
      CollectParameters(child.value, absl::StrCat(path, child.name, "."));
    }
  }

  void AddParameter(const std::string& path, const at::Tensor& tensor, bool is_buffer) {
    const std::string name = Strip(path);
    const auto [it, is_new] = parameter_of_.try_emplace(KeyOf(tensor), graph_.parameters.size());
    if (!is_new) {
      graph_.parameters[it->second].aliases.push_back(name);
      return;
    }
    Parameter parameter;
    parameter.name = name;
    parameter.meta = MetaOf(tensor);
    parameter.is_buffer = is_buffer;
    parameter.trains = !is_buffer && tensor.requires_grad();
    parameter.persistent = std::find(options_.constants.begin(), options_.constants.end(), name) ==
                           options_.constants.end();
    graph_.parameters.push_back(std::move(parameter));
    tensors_[name] = tensor;
  }

  Argument TensorArgument(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) return Constant({});
    const TensorKey key = KeyOf(tensor);
    if (const auto it = parameter_of_.find(key); it != parameter_of_.end()) {
      Parameter& parameter = graph_.parameters[it->second];
      if (parameter.value == kNoValue) {
        parameter.value = NewValue(parameter.name, ValueKind::kTensor);
        graph_.values.back().tensor = parameter.meta;
        graph_.values.back().requires_grad = parameter.trains;
      }
      return Argument{ValueRef{parameter.value}};
    }
    const auto [it, is_new] = constant_of_.try_emplace(key, FindEqualConstant(tensor));
    if (is_new && it->second == graph_.constants.size()) {
      ConstantTensor constant;
      constant.name = name.empty() ? absl::StrCat("constant.", graph_.constants.size()) : name;
      constant.meta = MetaOf(tensor);
      constant.value = NewValue(constant.name, ValueKind::kTensor);
      constant.tensor = tensor.detach();
      graph_.values.back().tensor = constant.meta;
      graph_.constants.push_back(std::move(constant));
    }
    return Argument{ValueRef{graph_.constants[it->second].value}};
  }

  // Equal constants are one, as in a saved file, so that a capture in memory has the file's hash.
  size_t FindEqualConstant(const at::Tensor& tensor) const {
    const TensorMeta meta = MetaOf(tensor);
    for (size_t i = 0; i < graph_.constants.size(); ++i) {
      const at::Tensor& other = graph_.constants[i].tensor;
      if (graph_.constants[i].meta == meta && tensor.is_cpu() && other.is_cpu() &&
          at::equal(other, tensor)) {
        return i;
      }
    }
    return graph_.constants.size();
  }

  // A constant or attribute as an argument: tensors inside become values, devices the stage's.
  Argument FromIValue(const c10::IValue& value, const std::string& name) {
    if (value.isTensor()) return TensorArgument(value.toTensor(), name);
    if (value.isDevice()) return Argument{StageDevice{}};
    if (IsScalar(value) || value.isIntList() || value.isDoubleList() || value.isBoolList()) {
      return Constant(value);
    }
    if (value.isList() || value.isTuple()) {
      ArgumentList list;
      list.is_tuple = value.isTuple();
      if (value.isList()) list.element_type = value.toList().elementType();
      const auto add = [&](const c10::IValue& item) {
        list.items.push_back(
            FromIValue(item, name.empty() ? "" : absl::StrCat(name, ".", list.items.size())));
      };
      if (value.isList()) {
        for (const c10::IValue& item : value.toListRef()) add(item);
      } else {
        for (const c10::IValue& item : value.toTupleRef().elements()) add(item);
      }
      return Argument{std::move(list)};
    }
    Refuse("a constant of type ", value.type()->repr_str(), name.empty() ? "" : " in attribute ",
           name, " cannot be imported");
  }

  // ---- values and bindings ----

  int NewValue(std::string name, ValueKind kind) {
    Value value;
    value.name = std::move(name);
    value.kind = kind;
    graph_.values.push_back(std::move(value));
    return static_cast<int>(graph_.values.size()) - 1;
  }

  int NewValue(const jit::Value& value) {
    return NewValue(value.debugName(), KindOf(*value.type()));
  }

  const Binding& Lookup(const jit::Value* value, const Frame& frame) const {
    const auto it = frame.bindings.find(value);
    if (it == frame.bindings.end()) Refuse("value %", value->debugName(), " has no definition");
    return it->second;
  }

  const Argument& Get(const jit::Value* value, const Frame& frame) const {
    const Binding& binding = Lookup(value, frame);
    if (const auto* argument = std::get_if<Argument>(&binding)) return *argument;
    Refuse("module or function %", value->debugName(), " is used as a value in module '",
           frame.module_path, "'");
  }

  void BindInputs(const jit::Graph& graph, const c10::FunctionSchema& schema, Frame& frame) {
    const size_t given = options_.inputs.size();
    for (size_t i = 1; i < graph.inputs().size(); ++i) {
      const jit::Value* input = graph.inputs()[i];
      const std::string name =
          i < schema.arguments().size() ? schema.arguments()[i].name() : input->debugName();
      if (i > given) {
        if (i < schema.arguments().size() && schema.arguments()[i].default_value()) {
          frame.bindings[input] = FromIValue(*schema.arguments()[i].default_value(), name);
          continue;
        }
        throw ImportError{absl::InvalidArgumentError(
            absl::StrCat("forward() takes ", graph.inputs().size() - 1, " inputs (",
                         InputNames(graph, schema), "), ", given, " are specified"))};
      }
      const InputSpec& spec = options_.inputs[i - 1];
      const ValueKind kind = KindOf(*input->type());
      if (kind == ValueKind::kList || kind == ValueKind::kTuple) {
        Refuse("input '", name, "' of forward() is a ", input->type()->repr_str(),
               ": pass its tensors as separate inputs");
      }
      if (kind == ValueKind::kTensor && spec.scalar) {
        throw ImportError{absl::InvalidArgumentError(
            absl::StrCat("input '", name, "' is a tensor, but ", ToString(spec),
                         " is specified: write dtype[sizes], for example float32[8,128]"))};
      }
      GraphInput graph_input;
      graph_input.name = spec.name.empty() ? name : spec.name;
      graph_input.value = NewValue(graph_input.name, spec.scalar ? kind : ValueKind::kTensor);
      graph_input.index_bound = spec.bound;
      graph_input.scalar = spec.scalar;
      if (spec.scalar && spec.scalar->isInt() && kind == ValueKind::kFloat) {
        graph_input.scalar = static_cast<double>(spec.scalar->toInt());
      }
      graph_input.batch_axis = spec.scalar || spec.sizes.empty() ? -1 : spec.batch_axis;
      frame.bindings[input] = Argument{ValueRef{graph_input.value}};
      graph_.inputs.push_back(std::move(graph_input));
    }
    if (given > graph.inputs().size() - 1) {
      throw ImportError{absl::InvalidArgumentError(
          absl::StrCat("forward() takes ", graph.inputs().size() - 1, " inputs (",
                       InputNames(graph, schema), "), ", given, " are specified"))};
    }
  }

  static std::string InputNames(const jit::Graph& graph, const c10::FunctionSchema& schema) {
    std::vector<std::string> names;
    for (size_t i = 1; i < graph.inputs().size(); ++i) {
      names.push_back(i < schema.arguments().size() ? schema.arguments()[i].name()
                                                    : graph.inputs()[i]->debugName());
    }
    return absl::StrJoin(names, ", ");
  }

  void FlattenOutput(const Argument& output) {
    if (const auto* list = std::get_if<ArgumentList>(&output.is)) {
      for (const Argument& item : list->items) FlattenOutput(item);
    } else {
      graph_.outputs.push_back(output);
    }
  }

  // ---- nodes ----

  void VisitBlock(const jit::Block& block, Frame& frame) {
    for (const jit::Node* node : block.nodes()) Visit(*node, frame);
  }

  void Visit(const jit::Node& node, Frame& frame) {
    switch (node.kind()) {
      case prim::Constant:
        return VisitConstant(node, frame);
      case prim::GetAttr:
        return VisitGetAttr(node, frame);
      case prim::SetAttr:
        Refuse("forward() of module '", frame.module_path, "' assigns its attribute '",
               node.s(c10::attr::name),
               "': return it, or keep it in a registered buffer that is changed in place");
      case prim::CallMethod:
        return VisitCallMethod(node, frame);
      case prim::CallFunction:
        return VisitCallFunction(node, frame);
      case prim::ListConstruct:
        return VisitListConstruct(node, frame);
      case prim::TupleConstruct:
        return VisitTupleConstruct(node, frame);
      case prim::DictConstruct:
        return VisitDictConstruct(node, frame);
      case prim::ListUnpack:
      case prim::TupleUnpack:
        return VisitUnpack(node, frame);
      case prim::TupleIndex:
        return VisitTupleIndex(node, frame);
      case prim::TupleSlice:
        return VisitTupleSlice(node, frame);
      case prim::If:
        return VisitIf(node, frame);
      case prim::Loop:
        return VisitLoop(node, frame);
      case prim::Uninitialized:
        Bind(node.output(), Constant({}), frame);
        return;
      case prim::unchecked_cast:
      case prim::unchecked_unwrap_optional:
      case c10::aten::_unwrap_optional:
        Bind(node.output(), Lookup(node.input(0), frame), frame);
        return;
      case prim::device:
        Bind(node.output(), Argument{StageDevice{}}, frame);
        return;
      case prim::Print:
      case c10::aten::warn:
        return;
      case prim::PythonOp:
        Refuse("module '", frame.module_path, "' calls Python code that TorchScript cannot hold");
      default:
        return VisitOperator(node, frame);
    }
  }

  void Bind(const jit::Value* value, Binding binding, Frame& frame) {
    frame.bindings[value] = std::move(binding);
  }

  void VisitConstant(const jit::Node& node, Frame& frame) {
    if (node.output()->type()->kind() == c10::TypeKind::FunctionType) {
      Bind(node.output(), node.output()->type()->expectRef<c10::FunctionType>().function(), frame);
      return;
    }
    const std::optional<c10::IValue> value = jit::toIValue(node.output());
    if (!value) Refuse("constant %", node.output()->debugName(), " cannot be read");
    if (value->isObject() || value->isCustomClass() || value->isCapsule() || value->isEnum()) {
      Refuse("module '", frame.module_path, "' holds a constant object of type ",
             value->type()->repr_str(), " (a file optimised for inference?)");
    }
    Bind(node.output(), FromIValue(*value, ""), frame);
  }

  void VisitGetAttr(const jit::Node& node, Frame& frame) {
    const auto* owner = std::get_if<Object>(&Lookup(node.input(), frame));
    const std::string& name = node.s(c10::attr::name);
    if (!owner) {
      Refuse("attribute '", name, "' is read from a value that is no module, in module '",
             frame.module_path, "'");
    }
    const std::string path = owner->path.empty() ? name : absl::StrCat(owner->path, ".", name);
    const c10::IValue attribute = owner->object->getAttr(name);
    if (attribute.isObject()) {
      Bind(node.output(), Object{attribute.toObject(), path}, frame);
    } else {
      Bind(node.output(), FromIValue(attribute, Strip(path)), frame);
    }
  }

  void VisitCallMethod(const jit::Node& node, Frame& frame) {
    const auto* object = std::get_if<Object>(&Lookup(node.input(0), frame));
    const std::string& name = node.s(c10::attr::name);
    if (!object) Refuse("method ", name, "() is called on a value that is no module");
    jit::Function& method = object->object->type()->getMethod(name);
    jit::GraphFunction* function = jit::tryToGraphFunction(method);
    if (!function) Refuse("method ", name, "() has no TorchScript graph");
    function->ensure_defined();
    const std::shared_ptr<jit::Graph> graph = function->graph();
    Frame inner;
    inner.module_path = Strip(object->path);
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      inner.bindings[graph->inputs()[i]] = Lookup(node.input(i), frame);
    }
    Enter(*graph, node, inner, frame);
  }

  void VisitCallFunction(const jit::Node& node, Frame& frame) {
    jit::Function* const* callee = std::get_if<jit::Function*>(&Lookup(node.input(0), frame));
    if (!callee) Refuse("a function is chosen at run time in module '", frame.module_path, "'");
    jit::GraphFunction* function = jit::tryToGraphFunction(**callee);
    if (!function) Refuse("function ", (*callee)->name(), " has no TorchScript graph");
    function->ensure_defined();
    const std::shared_ptr<jit::Graph> graph = function->graph();
    Frame inner;
    inner.module_path = frame.module_path;
    for (size_t i = 1; i < node.inputs().size(); ++i) {
      inner.bindings[graph->inputs()[i - 1]] = Lookup(node.input(i), frame);
    }
    Enter(*graph, node, inner, frame);
  }

  void Enter(const jit::Graph& graph, const jit::Node& node, Frame& inner, Frame& frame) {
    if (++depth_ > 1000) Refuse("calls nest deeper than 1000 in module '", frame.module_path, "'");
    VisitBlock(*graph.block(), inner);
    --depth_;
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      Bind(node.output(i), Lookup(graph.outputs()[i], inner), frame);
    }
  }

  // ---- structure ----

  ArgumentList ListOf(const jit::Node& node, const Frame& frame) {
    ArgumentList list;
    list.element_type = node.output()->type()->expectRef<c10::ListType>().getElementType();
    // Shapes that a trace recorded are no part of the type.
    if (list.element_type->kind() == c10::TypeKind::TensorType) {
      list.element_type = c10::TensorType::get();
    }
    for (const jit::Value* input : node.inputs()) list.items.push_back(Get(input, frame));
    return list;
  }

  static Argument FoldNumbers(ArgumentList list) {
    Argument argument{std::move(list)};
    const c10::TypeKind kind = std::get<ArgumentList>(argument.is).element_type->kind();
    if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
        kind == c10::TypeKind::BoolType) {
      if (std::optional<c10::IValue> folded = Fold(argument)) return Constant(*std::move(folded));
    }
    return argument;
  }

  void VisitListConstruct(const jit::Node& node, Frame& frame) {
    ArgumentList list = ListOf(node, frame);
    if (IsReadOnly(*node.output(), frame.is_top)) {
      Bind(node.output(), FoldNumbers(std::move(list)), frame);
      return;
    }
    Node made;
    made.op = "prim::ListConstruct";
    made.args.push_back(Argument{std::move(list)});
    Emit(std::move(made), node, frame);
  }

  void VisitTupleConstruct(const jit::Node& node, Frame& frame) {
    ArgumentList tuple;
    tuple.is_tuple = true;
    for (const jit::Value* input : node.inputs()) tuple.items.push_back(Get(input, frame));
    Bind(node.output(), Argument{std::move(tuple)}, frame);
  }

  // A dictionary that is returned is a tuple of its values, in their order.
  void VisitDictConstruct(const jit::Node& node, Frame& frame) {
    const auto& uses = node.output()->uses();
    const bool is_result = frame.is_top && std::all_of(uses.begin(), uses.end(), [](auto& use) {
                             return use.user->kind() == prim::Return ||
                                    use.user->kind() == prim::TupleConstruct ||
                                    use.user->kind() == prim::DictConstruct;
                           });
    if (is_result) {
      ArgumentList values;
      values.is_tuple = true;
      for (size_t i = 1; i < node.inputs().size(); i += 2) {
        values.items.push_back(Get(node.input(i), frame));
      }
      Bind(node.output(), Argument{std::move(values)}, frame);
      return;
    }
    Node made;
    made.op = "prim::DictConstruct";
    for (const jit::Value* input : node.inputs()) made.args.push_back(Get(input, frame));
    Emit(std::move(made), node, frame);
  }

  // The elements of a list or tuple whose structure is known.
  std::optional<std::vector<Argument>> Elements(const Argument& argument) {
    if (const auto* list = std::get_if<ArgumentList>(&argument.is)) return list->items;
    const c10::IValue* constant = AsConstant(argument);
    if (!constant || !constant->isList()) return std::nullopt;
    std::vector<Argument> items;
    for (const c10::IValue& item : constant->toList().vec()) items.push_back(Constant(item));
    return items;
  }

  void VisitUnpack(const jit::Node& node, Frame& frame) {
    if (node.outputs().size() > 0 && frame.bindings.count(node.output(0))) return;  // unpacks_list
    const Argument& input = Get(node.input(), frame);
    if (const auto items = Elements(input)) {
      if (items->size() != node.outputs().size()) {
        Refuse("a list of ", items->size(), " is unpacked into ", node.outputs().size(),
               " in module '", frame.module_path, "'");
      }
      for (size_t i = 0; i < items->size(); ++i) Bind(node.output(i), (*items)[i], frame);
      return;
    }
    Node made;
    made.op = node.kind() == prim::ListUnpack ? "prim::ListUnpack" : "prim::TupleUnpack";
    made.args.push_back(input);
    Emit(std::move(made), node, frame);
  }

  void VisitTupleIndex(const jit::Node& node, Frame& frame) {
    const Argument tuple = Get(node.input(0), frame);
    const Argument index = Get(node.input(1), frame);
    const auto items = Elements(tuple);
    if (items && AsConstant(index)) {
      const int64_t at = AsConstant(index)->toInt();
      Bind(node.output(), items->at(at < 0 ? at + items->size() : at), frame);
      return;
    }
    Node made;
    made.op = "prim::TupleIndex";
    made.args = {tuple, index};
    Emit(std::move(made), node, frame);
  }

  void VisitTupleSlice(const jit::Node& node, Frame& frame) {
    const auto items = Elements(Get(node.input(), frame));
    if (!items) Refuse("a slice of a tuple that is not known at import");
    ArgumentList slice;
    slice.is_tuple = true;
    slice.items.assign(items->begin() + node.i(c10::attr::beg),
                       items->begin() + node.i(c10::attr::end));
    Bind(node.output(), Argument{std::move(slice)}, frame);
  }

  // ---- control flow ----

  Block VisitInner(const jit::Block& block, Frame& frame) {
    Block inner;
    for (const jit::Value* input : block.inputs()) {
      inner.inputs.push_back(NewValue(*input));
      Bind(input, Argument{ValueRef{inner.inputs.back()}}, frame);
    }
    std::vector<Node>* const outer = std::exchange(nodes_, &inner.nodes);
    VisitBlock(block, frame);
    nodes_ = outer;
    for (const jit::Value* output : block.outputs()) inner.outputs.push_back(Get(output, frame));
    return inner;
  }

  void VisitIf(const jit::Node& node, Frame& frame) {
    const Argument condition = Get(node.input(), frame);
    if (const c10::IValue* known = AsConstant(condition)) {
      const jit::Block& taken = *node.blocks()[known->toBool() ? 0 : 1];
      VisitBlock(taken, frame);
      for (size_t i = 0; i < node.outputs().size(); ++i) {
        Bind(node.output(i), Lookup(taken.outputs()[i], frame), frame);
      }
      return;
    }
    Node made;
    made.op = "prim::If";
    made.args.push_back(condition);
    for (const jit::Block* block : node.blocks()) made.blocks.push_back(VisitInner(*block, frame));
    Emit(std::move(made), node, frame);
  }

  void VisitLoop(const jit::Node& node, Frame& frame) {
    Node made;
    made.op = "prim::Loop";
    for (const jit::Value* input : node.inputs()) made.args.push_back(Get(input, frame));
    made.blocks.push_back(VisitInner(*node.blocks()[0], frame));
    Emit(std::move(made), node, frame);
  }

  // ---- operators ----

  // Appends a node whose results are new values bound to the TorchScript node's outputs.
  void Emit(Node made, const jit::Node& node, Frame& frame) {
    made.module_path = frame.module_path;
    std::vector<const jit::Value*> results(node.outputs().begin(), node.outputs().end());
    if (const jit::Node* unpack = SoleUnpack(node)) {
      made.unpacks_list = true;
      results.assign(unpack->outputs().begin(), unpack->outputs().end());
    }
    for (const jit::Value* result : results) {
      made.outputs.push_back(NewValue(*result));
      Bind(result, Argument{ValueRef{made.outputs.back()}}, frame);
    }
    if (made.unpacks_list) Bind(node.output(), Constant({}), frame);
    nodes_->push_back(std::move(made));
  }

  // The prim::ListUnpack that alone reads the list that this operator returns.
  static const jit::Node* SoleUnpack(const jit::Node& node) {
    if (node.kind().is_prim() || node.outputs().size() != 1 ||
        node.output()->type()->kind() != c10::TypeKind::ListType ||
        node.output()->uses().size() != 1) {
      return nullptr;
    }
    const jit::Node* user = node.output()->uses()[0].user;
    return user->kind() == prim::ListUnpack && user->owningBlock() == node.owningBlock() &&
                   user->outputs().size() > 0
               ? user
               : nullptr;
  }

  void VisitOperator(const jit::Node& node, Frame& frame) {
    const c10::FunctionSchema* schema = node.maybeSchema();
    if (!schema) {
      Refuse("operator ", node.kind().toQualString(), " in module '", frame.module_path,
             "' has no schema that fits its arguments in this torch");
    }
    Node made;
    made.op = schema->name();
    made.overload = schema->overload_name();
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      made.args.push_back(Get(node.input(i), frame));
      if (i >= schema->arguments().size()) continue;
      Retype(*schema->arguments()[i].type(), made.args.back());
      ToNumber(*schema->arguments()[i].type(), made.args.back(), frame);
    }
    for (size_t i = made.args.size(); i < schema->arguments().size(); ++i) {
      const auto& argument = schema->arguments()[i];
      made.args.push_back(argument.default_value() ? FromIValue(*argument.default_value(), "")
                                                   : Constant({}));
    }
    if (FoldOperator(*schema, made, node, frame)) return;
    PlaceFactory(*schema, made);
    if (Dropout(made, node, frame)) return;
    if (internal::DrawsRandomNumbers(made.op, made.overload) && internal::IsRandom(made)) {
      made.effects.random = true;
      made.random_stream = NextStream(frame.module_path);
    }
    Emit(std::move(made), node, frame);
  }

  // Lists get the element type of the schema (Tensor? instead of Tensor), where it says one.
  static void Retype(const c10::Type& formal, Argument& argument) {
    auto* list = std::get_if<ArgumentList>(&argument.is);
    if (!list || list->is_tuple) return;
    const c10::Type* type = &formal;
    if (type->kind() == c10::TypeKind::OptionalType) {
      type = type->expectRef<c10::OptionalType>().getElementType().get();
    }
    if (type->kind() != c10::TypeKind::ListType) return;
    const c10::TypePtr element = type->expectRef<c10::ListType>().getElementType();
    if (!element->hasFreeVariables()) list->element_type = element;
  }

  // A trace in memory passes 0-d tensors where numbers are expected; a saved file has these
  // conversions written out.
  void ToNumber(const c10::Type& formal, Argument& argument, Frame& frame) {
    const auto* ref = std::get_if<ValueRef>(&argument.is);
    if (!ref || graph_.values[ref->value].kind != ValueKind::kTensor) return;
    const c10::Type* type = &formal;
    if (type->kind() == c10::TypeKind::OptionalType) {
      type = type->expectRef<c10::OptionalType>().getElementType().get();
    }
    const char* conversion = type->kind() == c10::TypeKind::NumberType  ? "aten::ScalarImplicit"
                             : type->kind() == c10::TypeKind::IntType   ? "aten::IntImplicit"
                             : type->kind() == c10::TypeKind::FloatType ? "aten::FloatImplicit"
                                                                        : nullptr;
    if (!conversion) return;
    argument = Add(conversion, "", {argument}, frame);
    graph_.values.back().kind = ValueKind::kOther;  // shapes tell
  }

  // Pure operators on constants, and identity tests that the types decide.
  bool FoldOperator(const c10::FunctionSchema& schema, const Node& made, const jit::Node& node,
                    Frame& frame) {
    if (made.op == "aten::__is__" || made.op == "aten::__isnot__") {
      if (const std::optional<bool> same = IsNone(made.args[0], made.args[1])) {
        Bind(node.output(), Constant(*same == (made.op == "aten::__is__")), frame);
        return true;
      }
    }
    if (made.op == "aten::len" || made.op == "aten::__getitem__") {
      if (const auto* list = std::get_if<ArgumentList>(&made.args[0].is)) {
        const int64_t size = static_cast<int64_t>(list->items.size());
        if (made.op == "aten::len") {
          Bind(node.output(), Constant(size), frame);
          return true;
        }
        const c10::IValue* index = AsConstant(made.args[1]);
        if (index && index->isInt() && index->toInt() < size && index->toInt() >= -size) {
          Bind(node.output(), list->items[(index->toInt() + size) % size], frame);
          return true;
        }
      }
    }
    if (node.outputs().size() != 1 || schema.is_mutable() || node.kind() == prim::RaiseException) {
      return false;
    }
    switch (KindOf(*node.output()->type())) {
      case ValueKind::kInt:
      case ValueKind::kFloat:
      case ValueKind::kBool:
      case ValueKind::kString:
      case ValueKind::kNone:
        break;
      default:
        return false;
    }
    std::vector<c10::IValue> stack;
    for (const Argument& arg : made.args) {
      std::optional<c10::IValue> value = Fold(arg);
      if (!value) return false;
      stack.push_back(*std::move(value));
    }
    const absl::StatusOr<CompiledNode> compiled = CompileNode(made);
    if (!compiled.ok()) return false;
    if (compiled->vararg) stack.emplace_back(static_cast<int64_t>(made.args.size()));
    CallOperator(*compiled, {}, stack);
    if (stack.size() != 1 || !IsScalar(stack[0])) return false;
    Bind(node.output(), Constant(stack[0]), frame);
    return true;
  }

  std::optional<bool> IsNone(const Argument& a, const Argument& b) const {
    const auto none = [](const Argument& x) { return AsConstant(x) && AsConstant(x)->isNone(); };
    if (none(a) && none(b)) return true;
    if (!none(a) && !none(b)) return std::nullopt;
    const Argument& other = none(a) ? b : a;
    if (const auto* ref = std::get_if<ValueRef>(&other.is)) {
      // An optional has kind kOther (or None): only the run can tell.
      const ValueKind kind = graph_.values[ref->value].kind;
      if (kind == ValueKind::kOther || kind == ValueKind::kNone) return std::nullopt;
    }
    return false;
  }

  // A factory without tensor operands and without a device makes its tensor on the stage's device.
  static void PlaceFactory(const c10::FunctionSchema& schema, Node& made) {
    const auto index = schema.argumentIndexWithName("device");
    if (!index) return;
    const c10::IValue* device = AsConstant(made.args[*index]);
    if (!device || !device->isNone()) return;
    for (const auto& argument : schema.arguments()) {
      if (argument.type()->kind() == c10::TypeKind::TensorType) return;
    }
    made.args[*index] = Argument{StageDevice{}};
  }

  // ---- random numbers ----

  // Key of the next random node of a module: by its path and its turn there, so that no rewriting,
  // plan or front end moves it.
  uint64_t NextStream(const std::string& module_path) {
    const std::string text = absl::StrCat(module_path, "#", occurrence_[module_path]++);
    const uint64_t hash = XXH3_64bits(text.data(), text.size());
    return hash == 0 ? 1 : hash;
  }

  // dropout(x, p, train) -> x * dropout_mask(x, p). True where the node was one and is done.
  bool Dropout(const Node& made, const jit::Node& node, Frame& frame) {
    const bool in_place = made.op == "aten::dropout_";
    const bool by_feature =
        made.op == "aten::feature_dropout" || made.op == "aten::feature_dropout_";
    const bool native = made.op == "aten::native_dropout";
    const bool alpha = made.op == "aten::alpha_dropout" || made.op == "aten::alpha_dropout_" ||
                       made.op == "aten::feature_alpha_dropout" ||
                       made.op == "aten::feature_alpha_dropout_";
    if (made.op != "aten::dropout" && !in_place && !by_feature && !native && !alpha) return false;
    const c10::IValue* p = AsConstant(made.args[1]);
    const c10::IValue* train = AsConstant(made.args[2]);
    if (!p || !train) {
      Refuse(made.op, " in module '", frame.module_path,
             "' takes its probability or mode from a computation: make them constants");
    }
    const bool on = train->isNone() || train->toBool();
    if (!native && (!on || p->toDouble() == 0)) {
      Bind(node.output(), made.args[0], frame);
      return true;
    }
    // Alpha dropout stays an operator, seeded when it runs; feature dropout waits for shapes.
    if (alpha || by_feature) return false;
    const Argument x = made.args[0];
    const Argument mask =
        Add("autopart::dropout_mask", "", {x, Constant(on ? p->toDouble() : 0.0)}, frame);
    nodes_->back().random_stream = NextStream(frame.module_path);
    const Argument y = Add(in_place ? "aten::mul_" : "aten::mul", "Tensor", {x, mask}, frame);
    Bind(node.output(0), y, frame);
    if (native) Bind(node.output(1), Add("aten::ne", "Scalar", {mask, Constant(0)}, frame), frame);
    return true;
  }

  Argument Add(std::string op, std::string overload, std::vector<Argument> args, Frame& frame) {
    Node made;
    made.op = std::move(op);
    made.overload = std::move(overload);
    made.args = std::move(args);
    made.module_path = frame.module_path;
    made.outputs.push_back(NewValue("", ValueKind::kTensor));
    nodes_->push_back(std::move(made));
    return Argument{ValueRef{nodes_->back().outputs[0]}};
  }

  const jit::Module& module_;
  const ImportOptions& options_;
  OpGraph graph_;
  std::map<std::string, at::Tensor> tensors_;
  std::map<TensorKey, size_t> parameter_of_;
  std::map<TensorKey, size_t> constant_of_;
  std::unordered_map<std::string, int> occurrence_;
  std::vector<Node>* nodes_ = nullptr;  // where nodes go: the graph's or a block's
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<Model> ImportTorchScript(const jit::Module& module, const ImportOptions& options) {
  try {
    Model model = Importer(module, options).Run();
    // Attention needs the head size and the data type to be decomposed, so shapes come first.
    if (internal::NeedsDecomposition(model.graph)) {
      AnalyzeEffects(model.graph);
      if (absl::Status s = PropagateShapes(model.graph, options.inputs); !s.ok()) return s;
      if (absl::Status s = internal::Decompose(model.graph); !s.ok()) return s;
    }
    AnalyzeEffects(model.graph);
    if (absl::Status s = PropagateShapes(model.graph, options.inputs); !s.ok()) return s;
    if (absl::Status s = Validate(model.graph); !s.ok()) return s;
    return model;
  } catch (const ImportError& error) {
    return error.status;
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model cannot be imported: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the model cannot be imported: ", error.what()));
  }
}

}  // namespace autopart
