// The model hash: XXH3-128 over a canonical text of the structure. Values are numbered by their
// order of definition, so names and module paths of the front end do not matter; parameters appear
// by global name, so renaming one or untying two gives another model.
#include <map>
#include <sstream>

#include <absl/strings/str_cat.h>
#include <xxhash.h>

#include "profiler/internal/dtypes.h"
#include "profiler/op_graph.h"

namespace autopart {
namespace {

class Canonical {
 public:
  explicit Canonical(const OpGraph& graph) : graph_(graph) {}

  std::string Text() {
    text_ = absl::StrCat("opgraph 1 training=", graph_.training, "\n");
    for (const GraphInput& input : graph_.inputs) {
      const Value& value = graph_.values[input.value];
      absl::StrAppend(&text_, "input ", Name(input.value), " ", static_cast<int>(value.kind), " ",
                      value.tensor ? internal::DtypeName(value.tensor->dtype) : "", "\n");
    }
    std::map<std::string, const Parameter*> by_name;
    for (const Parameter& parameter : graph_.parameters) by_name[parameter.name] = &parameter;
    for (const auto& [name, parameter] : by_name) {
      absl::StrAppend(&text_, parameter->is_buffer ? "buffer " : "parameter ", name, " ",
                      Shape(parameter->meta), " trains=", parameter->trains);
      for (const std::string& alias : parameter->aliases) absl::StrAppend(&text_, " =", alias);
      text_ += "\n";
      if (parameter->value != kNoValue) names_[parameter->value] = absl::StrCat("p:", name);
    }
    for (const ConstantTensor& constant : graph_.constants) {
      if (constant.value == kNoValue) continue;
      absl::StrAppend(&text_, "constant ", Name(constant.value), " ", Shape(constant.meta), "\n");
    }
    for (const Node& node : graph_.nodes) Add(node);
    text_ += "return ";
    for (const Argument& output : graph_.outputs) Add(output);
    absl::StrAppend(&text_, " loss=", graph_.loss_output.value_or(-1), " ", graph_.loss_is_sum);
    return std::move(text_);
  }

 private:
  static std::string Shape(const TensorMeta& meta) {
    std::string out = absl::StrCat(internal::DtypeName(meta.dtype), "[");
    for (const Dimension& size : meta.sizes) absl::StrAppend(&out, size.value, ",");
    return out + "]";
  }

  const std::string& Name(int value) {
    const auto [it, is_new] = names_.try_emplace(value);
    if (is_new) it->second = absl::StrCat("v", next_++);
    return it->second;
  }

  void Add(const Argument& argument) {
    if (const auto* ref = std::get_if<ValueRef>(&argument.is)) {
      absl::StrAppend(&text_, Name(ref->value), ",");
    } else if (std::holds_alternative<StageDevice>(argument.is)) {
      text_ += "device,";
    } else if (const auto* constant = std::get_if<c10::IValue>(&argument.is)) {
      std::ostringstream value;
      value.precision(17);
      value << *constant;
      absl::StrAppend(&text_, constant->tagKind(), ":", value.str(), ",");
    } else {
      const auto& list = std::get<ArgumentList>(argument.is);
      text_ += list.is_tuple ? "(" : "[";
      for (const Argument& item : list.items) Add(item);
      text_ += list.is_tuple ? ")," : "],";
    }
  }

  void Add(const Node& node) {
    absl::StrAppend(&text_, node.op, ".", node.overload, node.unpacks_list ? "*" : "", " ");
    for (const Argument& arg : node.args) Add(arg);
    for (const Block& block : node.blocks) {
      text_ += "{\n";
      for (const int input : block.inputs) absl::StrAppend(&text_, Name(input), ",");
      for (const Node& inner : block.nodes) Add(inner);
      text_ += "->";
      for (const Argument& output : block.outputs) Add(output);
      text_ += "}";
    }
    text_ += " ->";
    for (const int output : node.outputs) absl::StrAppend(&text_, " ", Name(output));
    text_ += "\n";
  }

  const OpGraph& graph_;
  std::map<int, std::string> names_;
  int next_ = 0;
  std::string text_;
};

}  // namespace

std::string ModelHash(const OpGraph& graph) {
  const std::string text = Canonical(graph).Text();
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

}  // namespace autopart
