#include "profiler/op_graph.h"

#include <set>

#include <absl/strings/str_cat.h>
#include <c10/core/ScalarType.h>

namespace autopart {
namespace {

// One pass in execution order: what is defined, by whom, and that all that is read was defined.
class Validator {
 public:
  explicit Validator(const OpGraph& graph) : graph_(graph), defined_(graph.values.size(), false) {}

  absl::Status Run() {
    for (const GraphInput& input : graph_.inputs) {
      Define(input.value, kNoNode, 0, false, absl::StrCat("input '", input.name, "'"));
    }
    std::set<std::string> names;
    for (const Parameter& parameter : graph_.parameters) {
      if (!names.insert(parameter.name).second) {
        Fail("two parameters are named '", parameter.name, "'");
      }
      if (parameter.is_buffer && parameter.trains) {
        Fail("buffer '", parameter.name, "' is marked as trained");
      }
      if (parameter.value == kNoValue) continue;
      Define(parameter.value, kNoNode, 0, false, absl::StrCat("parameter '", parameter.name, "'"));
    }
    for (const ConstantTensor& constant : graph_.constants) {
      if (constant.value == kNoValue) continue;
      Define(constant.value, kNoNode, 0, false, absl::StrCat("constant '", constant.name, "'"));
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Visit(graph_.nodes[i], static_cast<int>(i), absl::StrCat("node ", i));
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      Read(graph_.outputs[i], absl::StrCat("output ", i));
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (!defined_[v]) Fail("value ", v, " is defined by nothing");
      const Value& value = graph_.values[v];
      if (value.view_of != kNoValue &&
          (value.view_of < 0 || value.view_of >= static_cast<int>(v))) {
        Fail("value ", v, " is a view of value ", value.view_of, ", which is no lower one");
      }
    }
    if (graph_.loss_output && (*graph_.loss_output < 0 ||
                               *graph_.loss_output >= static_cast<int>(graph_.outputs.size()))) {
      Fail("the loss is output ", *graph_.loss_output, " of ", graph_.outputs.size());
    }
    return status_;
  }

 private:
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("operator graph: ", parts...));
    }
  }

  bool InRange(int value, const std::string& where) {
    if (value >= 0 && value < static_cast<int>(graph_.values.size())) return true;
    Fail(where, " refers to value ", value, " of ", graph_.values.size());
    return false;
  }

  void Define(int id, int producer, int index, bool in_block, const std::string& where) {
    if (!InRange(id, where)) return;
    if (defined_[id]) Fail(where, " defines value ", id, ", which is defined already");
    defined_[id] = true;
    const Value& value = graph_.values[id];
    if (value.producer != producer || (producer != kNoNode && value.output_index != index) ||
        value.in_block != in_block) {
      Fail("value ", id, " says that node ", value.producer, " makes it, but ", where, " does");
    }
  }

  void Read(const Argument& argument, const std::string& where) {
    ForEachValue(argument, [&](int value) {
      if (InRange(value, where) && !defined_[value]) {
        Fail(where, " reads value ", value, " before it is defined");
      }
    });
  }

  void Visit(const Node& node, int index, const std::string& name) {
    const std::string where = absl::StrCat(name, " (", node.op, ")");
    for (const Argument& arg : node.args) Read(arg, where);
    const size_t carried = node.outputs.size();
    if (node.op == "prim::If") {
      if (node.args.size() != 1 || node.blocks.size() != 2) {
        Fail(where, " needs one condition and two blocks");
        return;
      }
    } else if (node.op == "prim::Loop") {
      if (node.blocks.size() != 1 || node.args.size() != carried + 2) {
        Fail(where, " needs one block, a trip number, a condition and ", carried,
             " carried values");
        return;
      }
    } else if (!node.blocks.empty()) {
      Fail(where, " holds blocks, but is neither prim::If nor prim::Loop");
      return;
    }
    for (const Block& block : node.blocks) {
      const bool loop = node.op == "prim::Loop";
      if (block.outputs.size() != carried + (loop ? 1 : 0) ||
          block.inputs.size() != (loop ? carried + 1 : 0)) {
        Fail("a block of ", where, " does not match its ", carried, " results");
        return;
      }
      for (const int input : block.inputs) Define(input, kNoNode, 0, true, where);
      for (size_t i = 0; i < block.nodes.size(); ++i) {
        Visit(block.nodes[i], kNoNode, absl::StrCat(name, ".", i));
      }
      for (const Argument& output : block.outputs) Read(output, where);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      Define(node.outputs[i], index, static_cast<int>(i), index == kNoNode, where);
    }
  }

  const OpGraph& graph_;
  std::vector<bool> defined_;
  absl::Status status_;
};

void CollectReads(const Node& node, std::set<int>& reads, std::set<int>& inner) {
  const auto read = [&](int value) { reads.insert(value); };
  for (const Argument& arg : node.args) ForEachValue(arg, read);
  for (const Block& block : node.blocks) {
    inner.insert(block.inputs.begin(), block.inputs.end());
    for (const Node& n : block.nodes) {
      CollectReads(n, reads, inner);
      inner.insert(n.outputs.begin(), n.outputs.end());
    }
    for (const Argument& output : block.outputs) ForEachValue(output, read);
  }
}

}  // namespace

std::vector<int64_t> TensorMeta::Sizes() const {
  std::vector<int64_t> out;
  for (const Dimension& dim : sizes) out.push_back(dim.value);
  return out;
}

int64_t TensorMeta::NumElements() const {
  int64_t count = 1;
  for (const Dimension& dim : sizes) count *= dim.value;
  return count;
}

int64_t TensorMeta::Bytes() const {
  return NumElements() * static_cast<int64_t>(c10::elementSize(dtype));
}

absl::Status Validate(const OpGraph& graph) { return Validator(graph).Run(); }

std::vector<int> ReadValues(const Node& node) {
  std::set<int> reads, inner;
  CollectReads(node, reads, inner);
  for (const int value : inner) reads.erase(value);
  return {reads.begin(), reads.end()};
}

}  // namespace autopart
