#include <sstream>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "profiler/internal/dtypes.h"
#include "profiler/op_graph.h"

namespace autopart {
namespace {

std::string Shape(const TensorMeta& meta) {
  std::string out = absl::StrCat(internal::ShortDtypeName(meta.dtype), "[");
  for (size_t i = 0; i < meta.sizes.size(); ++i) {
    const Dimension& size = meta.sizes[i];
    absl::StrAppend(&out, i == 0 ? "" : ",",
                    size.expression.empty() ? absl::StrCat(size.value) : size.expression);
  }
  return out + "]";
}

std::string TypeOf(const Value& value) {
  static constexpr const char* kNames[] = {"tensor", "int",  "float", "bool", "str",
                                           "None",   "list", "tuple", "any"};
  return value.tensor ? Shape(*value.tensor) : kNames[static_cast<int>(value.kind)];
}

std::string Text(const Argument& argument) {
  if (const auto* ref = std::get_if<ValueRef>(&argument.is)) return absl::StrCat("%", ref->value);
  if (std::holds_alternative<StageDevice>(argument.is)) return "device";
  if (const auto* constant = std::get_if<c10::IValue>(&argument.is)) {
    std::ostringstream out;
    if (constant->isString()) {
      out << '"' << constant->toStringRef() << '"';
    } else {
      out << *constant;
    }
    return out.str();
  }
  const auto& list = std::get<ArgumentList>(argument.is);
  std::vector<std::string> items;
  for (const Argument& item : list.items) items.push_back(Text(item));
  const std::string inside = absl::StrJoin(items, ", ");
  return list.is_tuple ? absl::StrCat("(", inside, ")") : absl::StrCat("[", inside, "]");
}

std::string TextOf(const std::vector<Argument>& arguments) {
  std::vector<std::string> items;
  for (const Argument& argument : arguments) items.push_back(Text(argument));
  return absl::StrJoin(items, ", ");
}

void Print(const OpGraph& graph, const Node& node, const std::string& indent, std::string& out) {
  std::vector<std::string> results;
  for (const int output : node.outputs) {
    results.push_back(absl::StrCat("%", output, ": ", TypeOf(graph.values[output])));
  }
  absl::StrAppend(&out, indent, absl::StrJoin(results, ", "), results.empty() ? "" : " = ", node.op,
                  node.overload.empty() ? "" : ".", node.overload, "(", TextOf(node.args), ")");
  if (!node.module_path.empty()) absl::StrAppend(&out, "  # ", node.module_path);
  out += "\n";
  for (size_t b = 0; b < node.blocks.size(); ++b) {
    const Block& block = node.blocks[b];
    absl::StrAppend(&out, indent, "  block ", b, "(");
    for (size_t i = 0; i < block.inputs.size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "%" : ", %", block.inputs[i]);
    }
    out += "):\n";
    for (const Node& inner : block.nodes) Print(graph, inner, indent + "    ", out);
    absl::StrAppend(&out, indent, "    -> ", TextOf(block.outputs), "\n");
  }
}

}  // namespace

std::string ToString(const OpGraph& graph) {
  std::string out;
  for (const GraphInput& input : graph.inputs) {
    absl::StrAppend(&out, "%", input.value, ": ", TypeOf(graph.values[input.value]), " = input ",
                    input.name);
    if (input.index_bound) absl::StrAppend(&out, " < ", *input.index_bound);
    out += "\n";
  }
  for (const Parameter& parameter : graph.parameters) {
    absl::StrAppend(&out, parameter.value == kNoValue ? "-" : absl::StrCat("%", parameter.value),
                    ": ", Shape(parameter.meta), " = ",
                    parameter.is_buffer ? "buffer " : "parameter ", parameter.name);
    for (const std::string& alias : parameter.aliases) absl::StrAppend(&out, " = ", alias);
    out += "\n";
  }
  for (const ConstantTensor& constant : graph.constants) {
    if (constant.value == kNoValue) continue;
    absl::StrAppend(&out, "%", constant.value, ": ", Shape(constant.meta), " = constant ",
                    constant.name, "\n");
  }
  for (const Node& node : graph.nodes) Print(graph, node, "", out);
  absl::StrAppend(&out, "return ", TextOf(graph.outputs), "\n");
  return out;
}

}  // namespace autopart
