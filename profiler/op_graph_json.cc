// The versioned JSON form of an OpGraph. Arguments are small tagged objects: {"value": 3},
// {"const": ...}, {"device": true}, {"list": [...], "type": "Tensor"}, {"tuple": [...]}. Numbers
// that JSON cannot write (inf, nan, complex) are tagged strings. Tensors of constants are base64.
#include <cmath>
#include <stdexcept>

#include <ATen/ATen.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/frontend/script_type_parser.h>

#include "profiler/internal/dtypes.h"
#include "profiler/op_graph.h"

namespace autopart {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kKinds[] = {"tensor", "int",  "float", "bool", "string",
                                  "none",   "list", "tuple", "other"};

// ---- writing ----

Json FloatToJson(double value) {
  if (std::isfinite(value)) return value;
  return Json{{"float", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

Json ConstantToJson(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return FloatToJson(value.toDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isComplexDouble()) {
    const auto z = value.toComplexDouble();
    return Json{{"complex", {FloatToJson(z.real()), FloatToJson(z.imag())}}};
  }
  TORCH_CHECK(value.isList(), "a constant of type ", value.tagKind(), " has no JSON form");
  Json items = Json::array();
  for (const c10::IValue& item : value.toList().vec()) items.push_back(ConstantToJson(item));
  return Json{{"items", items}, {"type", value.toList().elementType()->annotation_str()}};
}

Json ToJsonValue(const Argument& argument) {
  if (const auto* ref = std::get_if<ValueRef>(&argument.is)) return {{"value", ref->value}};
  if (std::holds_alternative<StageDevice>(argument.is)) return {{"device", true}};
  if (const auto* constant = std::get_if<c10::IValue>(&argument.is)) {
    return {{"const", ConstantToJson(*constant)}};
  }
  const auto& list = std::get<ArgumentList>(argument.is);
  Json items = Json::array();
  for (const Argument& item : list.items) items.push_back(ToJsonValue(item));
  if (list.is_tuple) return {{"tuple", items}};
  return {{"list", items},
          {"type", list.element_type ? list.element_type->annotation_str() : "Tensor"}};
}

Json ToJsonValue(const std::vector<Argument>& arguments) {
  Json out = Json::array();
  for (const Argument& argument : arguments) out.push_back(ToJsonValue(argument));
  return out;
}

Json ToJsonValue(const TensorMeta& meta) {
  Json sizes = Json::array();
  for (const Dimension& size : meta.sizes) {
    if (size.expression.empty()) {
      sizes.push_back(size.value);
    } else {
      sizes.push_back({{"value", size.value}, {"expression", size.expression}});
    }
  }
  return {{"dtype", internal::DtypeName(meta.dtype)}, {"sizes", sizes}, {"strides", meta.strides}};
}

Json ToJsonValue(const Node& node) {
  Json out = {{"op", node.op}, {"args", ToJsonValue(node.args)}, {"outputs", node.outputs}};
  if (!node.overload.empty()) out["overload"] = node.overload;
  if (node.unpacks_list) out["unpacks_list"] = true;
  if (!node.module_path.empty()) out["module"] = node.module_path;
  if (node.effects.writes_input) out["writes_input"] = true;
  if (node.effects.writes_buffer) out["writes_buffer"] = true;
  if (node.effects.random) out["random"] = true;
  if (node.effects.data_dependent) out["data_dependent"] = true;
  if (node.random_stream != 0) out["random_stream"] = node.random_stream;
  if (node.copyable) out["copyable"] = true;
  for (const Block& block : node.blocks) {
    Json nodes = Json::array();
    for (const Node& inner : block.nodes) nodes.push_back(ToJsonValue(inner));
    out["blocks"].push_back(
        {{"inputs", block.inputs}, {"nodes", nodes}, {"outputs", ToJsonValue(block.outputs)}});
  }
  return out;
}

Json ToJsonValue(const Value& value) {
  Json out = {{"kind", kKinds[static_cast<int>(value.kind)]}};
  if (!value.name.empty()) out["name"] = value.name;
  if (value.tensor) out["tensor"] = ToJsonValue(*value.tensor);
  if (value.producer != kNoNode) out["producer"] = value.producer;
  if (value.output_index != 0) out["output_index"] = value.output_index;
  if (value.in_block) out["in_block"] = true;
  if (value.requires_grad) out["requires_grad"] = true;
  if (value.alias_class >= 0) out["alias_class"] = value.alias_class;
  if (value.view_of != kNoValue) out["view_of"] = value.view_of;
  return out;
}

Json ToJsonValue(const ConstantTensor& constant) {
  Json out = {
      {"name", constant.name}, {"meta", ToJsonValue(constant.meta)}, {"value", constant.value}};
  if (constant.tensor.defined() && !constant.tensor.is_meta()) {
    const at::Tensor dense = constant.tensor.to(at::kCPU).contiguous();
    out["data"] = absl::Base64Escape(
        absl::string_view(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()));
  }
  return out;
}

// ---- reading: throws std::exception (nlohmann's name the key) ----

double FloatFromJson(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string text = json.at("float").get<std::string>();
  if (text == "nan") return std::nan("");
  return text == "inf" ? INFINITY : -INFINITY;
}

c10::TypePtr ParseType(const Json& json) {
  static torch::jit::ScriptTypeParser* const parser = new torch::jit::ScriptTypeParser;
  return parser->parseType(json.at("type").get<std::string>());
}

c10::IValue ConstantFromJson(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.contains("float")) return FloatFromJson(json);
  if (json.contains("complex")) {
    const Json& z = json.at("complex");
    return c10::complex<double>(FloatFromJson(z.at(0)), FloatFromJson(z.at(1)));
  }
  c10::impl::GenericList list(ParseType(json));
  for (const Json& item : json.at("items")) list.push_back(ConstantFromJson(item));
  return list;
}

Argument ArgumentFromJson(const Json& json) {
  if (json.contains("value")) return {ValueRef{json.at("value").get<int>()}};
  if (json.contains("device")) return {StageDevice{}};
  if (json.contains("const")) return {ConstantFromJson(json.at("const"))};
  ArgumentList list;
  list.is_tuple = json.contains("tuple");
  for (const Json& item : json.at(list.is_tuple ? "tuple" : "list")) {
    list.items.push_back(ArgumentFromJson(item));
  }
  if (!list.is_tuple) list.element_type = ParseType(json);
  return {std::move(list)};
}

std::vector<Argument> ArgumentsFromJson(const Json& json) {
  std::vector<Argument> out;
  for (const Json& item : json) out.push_back(ArgumentFromJson(item));
  return out;
}

TensorMeta MetaFromJson(const Json& json) {
  TensorMeta meta;
  const std::string dtype = json.at("dtype").get<std::string>();
  const auto parsed = internal::ParseDtype(dtype);
  if (!parsed) throw std::invalid_argument(absl::StrCat("unknown dtype '", dtype, "'"));
  meta.dtype = *parsed;
  for (const Json& size : json.at("sizes")) {
    if (size.is_object()) {
      meta.sizes.push_back({size.at("value").get<int64_t>(), size.at("expression")});
    } else {
      meta.sizes.push_back({size.get<int64_t>(), ""});
    }
  }
  meta.strides = json.at("strides").get<std::vector<int64_t>>();
  if (meta.strides.size() != meta.sizes.size()) {
    throw std::invalid_argument(
        absl::StrCat(meta.sizes.size(), " sizes, but ", meta.strides.size(), " strides"));
  }
  return meta;
}

Node NodeFromJson(const Json& json) {
  Node node;
  node.op = json.at("op").get<std::string>();
  node.overload = json.value("overload", "");
  node.args = ArgumentsFromJson(json.at("args"));
  node.outputs = json.at("outputs").get<std::vector<int>>();
  node.unpacks_list = json.value("unpacks_list", false);
  node.module_path = json.value("module", "");
  node.effects.writes_input = json.value("writes_input", false);
  node.effects.writes_buffer = json.value("writes_buffer", false);
  node.effects.random = json.value("random", false);
  node.effects.data_dependent = json.value("data_dependent", false);
  node.random_stream = json.value("random_stream", uint64_t{0});
  node.copyable = json.value("copyable", false);
  if (json.contains("blocks")) {
    for (const Json& block_json : json.at("blocks")) {
      Block block;
      block.inputs = block_json.at("inputs").get<std::vector<int>>();
      for (const Json& inner : block_json.at("nodes")) block.nodes.push_back(NodeFromJson(inner));
      block.outputs = ArgumentsFromJson(block_json.at("outputs"));
      node.blocks.push_back(std::move(block));
    }
  }
  return node;
}

Value ValueFromJson(const Json& json) {
  Value value;
  const std::string kind = json.at("kind").get<std::string>();
  const auto* found = std::find(std::begin(kKinds), std::end(kKinds), kind);
  if (found == std::end(kKinds)) {
    throw std::invalid_argument(absl::StrCat("unknown kind of value '", kind, "'"));
  }
  value.kind = static_cast<ValueKind>(found - std::begin(kKinds));
  value.name = json.value("name", "");
  if (json.contains("tensor")) value.tensor = MetaFromJson(json.at("tensor"));
  value.producer = json.value("producer", kNoNode);
  value.output_index = json.value("output_index", 0);
  value.in_block = json.value("in_block", false);
  value.requires_grad = json.value("requires_grad", false);
  value.alias_class = json.value("alias_class", -1);
  value.view_of = json.value("view_of", kNoValue);
  return value;
}

ConstantTensor ConstantTensorFromJson(const Json& json) {
  ConstantTensor constant;
  constant.name = json.at("name").get<std::string>();
  constant.meta = MetaFromJson(json.at("meta"));
  constant.value = json.at("value").get<int>();
  if (!json.contains("data")) return constant;
  std::string bytes;
  if (!absl::Base64Unescape(json.at("data").get<std::string>(), &bytes) ||
      static_cast<int64_t>(bytes.size()) != constant.meta.Bytes()) {
    throw std::invalid_argument(absl::StrCat("the data of constant '", constant.name, "' are ",
                                             bytes.size(), " bytes, its shape needs ",
                                             constant.meta.Bytes()));
  }
  at::Tensor dense = at::empty(constant.meta.Sizes(), constant.meta.dtype);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(dense.data_ptr()));
  constant.tensor =
      at::empty_strided(constant.meta.Sizes(), constant.meta.strides, dense.options()).copy_(dense);
  return constant;
}

OpGraph GraphFromJson(const Json& json) {
  OpGraph graph;
  for (const Json& value : json.at("values")) graph.values.push_back(ValueFromJson(value));
  for (const Json& node : json.at("nodes")) graph.nodes.push_back(NodeFromJson(node));
  for (const Json& input : json.at("inputs")) {
    GraphInput& made = graph.inputs.emplace_back();
    made.name = input.at("name").get<std::string>();
    made.value = input.at("value").get<int>();
    if (input.contains("index_bound")) made.index_bound = input.at("index_bound").get<int64_t>();
    made.batch_axis = input.at("batch_axis").get<int>();
    if (input.contains("scalar")) made.scalar = ConstantFromJson(input.at("scalar"));
  }
  graph.outputs = ArgumentsFromJson(json.at("outputs"));
  if (json.contains("loss_output")) graph.loss_output = json.at("loss_output").get<int>();
  graph.loss_is_sum = json.at("loss_is_sum").get<bool>();
  graph.training = json.at("training").get<bool>();
  for (const Json& parameter : json.at("parameters")) {
    Parameter& made = graph.parameters.emplace_back();
    made.name = parameter.at("name").get<std::string>();
    made.aliases = parameter.value("aliases", std::vector<std::string>());
    made.meta = MetaFromJson(parameter.at("meta"));
    made.is_buffer = parameter.value("is_buffer", false);
    made.trains = parameter.value("trains", false);
    made.persistent = parameter.value("persistent", true);
    made.value = parameter.value("value", kNoValue);
  }
  for (const Json& constant : json.at("constants")) {
    graph.constants.push_back(ConstantTensorFromJson(constant));
  }
  return graph;
}

}  // namespace

std::string ToJson(const OpGraph& graph) {
  Json out = {{"format", "autopart-op-graph"},
              {"version", kVersion},
              {"outputs", ToJsonValue(graph.outputs)},
              {"loss_is_sum", graph.loss_is_sum},
              {"training", graph.training}};
  if (graph.loss_output) out["loss_output"] = *graph.loss_output;
  out["values"] = Json::array();
  for (const Value& value : graph.values) out["values"].push_back(ToJsonValue(value));
  out["nodes"] = Json::array();
  for (const Node& node : graph.nodes) out["nodes"].push_back(ToJsonValue(node));
  out["inputs"] = Json::array();
  for (const GraphInput& input : graph.inputs) {
    Json made = {{"name", input.name}, {"value", input.value}, {"batch_axis", input.batch_axis}};
    if (input.index_bound) made["index_bound"] = *input.index_bound;
    if (input.scalar) made["scalar"] = ConstantToJson(*input.scalar);
    out["inputs"].push_back(made);
  }
  out["parameters"] = Json::array();
  for (const Parameter& parameter : graph.parameters) {
    Json made = {{"name", parameter.name},
                 {"meta", ToJsonValue(parameter.meta)},
                 {"value", parameter.value}};
    if (!parameter.aliases.empty()) made["aliases"] = parameter.aliases;
    if (parameter.is_buffer) made["is_buffer"] = true;
    if (parameter.trains) made["trains"] = true;
    if (!parameter.persistent) made["persistent"] = false;
    out["parameters"].push_back(made);
  }
  out["constants"] = Json::array();
  for (const ConstantTensor& constant : graph.constants) {
    out["constants"].push_back(ToJsonValue(constant));
  }
  return out.dump();
}

absl::StatusOr<OpGraph> OpGraphFromJson(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (!json.is_object() || json.value("format", "") != "autopart-op-graph") {
      return absl::InvalidArgumentError("this JSON is no autopart operator graph");
    }
    const int version = json.at("version").get<int>();
    if (version > kVersion) {
      return absl::InvalidArgumentError(absl::StrCat("the operator graph has version ", version,
                                                     ", this autopart reads up to ", kVersion,
                                                     ": use a newer autopart"));
    }
    OpGraph graph = GraphFromJson(json);
    if (absl::Status s = Validate(graph); !s.ok()) return s;
    return graph;
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("operator graph: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("operator graph: ", error.what()));
  }
}

}  // namespace autopart
