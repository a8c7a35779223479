// What every operator of a model does: a flat list of operator calls over numbered values, free of
// the front end that it came from. Executors run it, the profiler costs it, plans refer to it.
//
// Argument structure is explicit: lists and tuples built in the graph are arguments, not nodes
// (prim::ListConstruct, TupleConstruct, TupleUnpack, constants and attribute reads vanish at
// import). Control flow stays whole: a prim::If or prim::Loop node holds its blocks.
#ifndef AUTOPART_PROFILER_OP_GRAPH_H_
#define AUTOPART_PROFILER_OP_GRAPH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace autopart {

inline constexpr int kNoValue = -1;
inline constexpr int kNoNode = -1;

// A size that may depend on named symbols; value is what it is at the binding in use.
struct Dimension {
  int64_t value = 0;
  std::string expression;  // empty: the constant `value`
  bool operator==(const Dimension&) const = default;
};

struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  std::vector<Dimension> sizes;
  std::vector<int64_t> strides;
  bool operator==(const TensorMeta&) const = default;

  std::vector<int64_t> Sizes() const;
  int64_t NumElements() const;
  int64_t Bytes() const;
};

enum class ValueKind { kTensor, kInt, kFloat, kBool, kString, kNone, kList, kTuple, kOther };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::kTensor;
  std::optional<TensorMeta> tensor;  // set once shapes are known (PropagateShapes)
  int producer = kNoNode;            // top-level node; kNoNode for inputs, parameters, block values
  int output_index = 0;
  bool in_block = false;       // defined inside a control-flow block
  bool requires_grad = false;  // depends differentiably on a trained parameter
  int alias_class = -1;        // values that may share memory
  int view_of = kNoValue;      // value of a lower id whose memory this one shares
};

// An operand of a node.
struct Argument;
struct ValueRef {
  int value = kNoValue;
};
struct StageDevice {};  // "the device of the stage that runs this"
struct ArgumentList {
  std::vector<Argument> items;
  bool is_tuple = false;
  c10::TypePtr element_type;
};
struct Argument {
  // A value, a constant (any IValue without tensors), the stage's device, or a list of arguments.
  std::variant<ValueRef, c10::IValue, StageDevice, ArgumentList> is;
};

struct Effects {
  bool writes_input = false;   // in place
  bool writes_buffer = false;  // a buffer of the model changes (BatchNorm statistics)
  bool random = false;
  bool data_dependent = false;  // output shape or taken branch depends on values
};

struct Node;
struct Block {
  std::vector<int> inputs;  // values; for prim::Loop the first is the trip number
  std::vector<Node> nodes;
  std::vector<Argument> outputs;  // for prim::Loop the first is the continue condition
};

struct Node {
  std::string op;              // "aten::linear", "prim::If", "autopart::dropout_mask"
  std::string overload;        // "Tensor", often empty
  std::vector<Argument> args;  // in schema order, defaults filled in
  std::vector<int> outputs;    // values
  // The operator returns one list and `outputs` are its elements (chunk, split, unbind unpacked).
  bool unpacks_list = false;
  std::string module_path;  // of the user's code: "transformer.h.0.mlp.c_fc"
  Effects effects;
  std::vector<Block> blocks;  // prim::If: then, else. prim::Loop: body
  // Key of the random stream: hash of module path and occurrence in it. Step, micro-batch and loop
  // iteration are mixed in when it runs. 0 for nodes that draw nothing.
  uint64_t random_stream = 0;
  bool copyable = false;  // cheap, pure, no tensor inputs: any stage may run its own copy
};

struct Parameter {
  std::string name;                  // global id: first name in the user's state_dict
  std::vector<std::string> aliases;  // further names of the same storage
  TensorMeta meta;
  bool is_buffer = false;
  bool trains = false;
  bool persistent = true;  // is in the user's state_dict
  int value = kNoValue;    // kNoValue where the graph does not use it
};

// A tensor baked into the graph by the front end (not a parameter: not trained, not in state_dict).
struct ConstantTensor {
  std::string name;
  TensorMeta meta;
  int value = kNoValue;
  at::Tensor tensor;  // may be undefined for a graph without values
};

struct GraphInput {
  std::string name;  // of the argument
  int value = kNoValue;
  std::optional<int64_t> index_bound;  // values of an integer input are in [0, bound)
  int batch_axis = 0;                  // axis that micro-batches split; -1: given whole
  std::optional<at::IValue> scalar;    // of an input that is a number: what it is planned for
};

struct OpGraph {
  std::vector<Value> values;
  std::vector<Node> nodes;  // in execution order
  std::vector<GraphInput> inputs;
  std::vector<Argument> outputs;      // flattened results
  std::optional<int> loss_output;     // index into outputs
  bool loss_is_sum = false;           // loss sums over samples: micro-batch weight 1, not n_j / n
  bool training = true;               // captured in train mode
  std::vector<Parameter> parameters;  // parameters and buffers
  std::vector<ConstantTensor> constants;
};

// Runs on every load and import: ids in range, single assignment, operands defined before use.
absl::Status Validate(const OpGraph& graph);

// Structure only (schemas, constants, shapes, dtypes, parameter names and sharing), not values:
// equal across processes and machines. XXH3-128, 32 hex digits.
std::string ModelHash(const OpGraph& graph);

// Versioned JSON, constants' tensors included. Loading validates.
std::string ToJson(const OpGraph& graph);
absl::StatusOr<OpGraph> OpGraphFromJson(std::string_view text);

// "%12: f32[8,128] = aten::linear(%10, %w3, %b3)  # transformer.h.0.mlp" a line a node.
std::string ToString(const OpGraph& graph);

// Visits every ValueRef of an argument tree, in order.
template <typename Visit>
void ForEachValue(const Argument& argument, Visit&& visit) {
  if (const auto* ref = std::get_if<ValueRef>(&argument.is)) {
    visit(ref->value);
  } else if (const auto* list = std::get_if<ArgumentList>(&argument.is)) {
    for (const Argument& item : list->items) ForEachValue(item, visit);
  }
}

// The values that a node reads from outside itself, ascending, each once (blocks included).
std::vector<int> ReadValues(const Node& node);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_OP_GRAPH_H_
