#include "profiler/internal/decompose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "profiler/internal/rewrite.h"
#include "profiler/internal/schemas.h"

namespace autopart::internal {
namespace {

constexpr char kAttention[] = "aten::scaled_dot_product_attention";

const c10::IValue* ConstantOf(const Argument& argument) {
  return std::get_if<c10::IValue>(&argument.is);
}

bool IsFeatureDropout(const Node& node) {
  return node.op == "aten::feature_dropout" || node.op == "aten::feature_dropout_";
}

bool IsTarget(const Node& node) {
  return (node.op == kAttention && node.random_stream != 0) || IsFeatureDropout(node);
}

bool AnyTarget(const std::vector<Node>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](const Node& node) {
    return IsTarget(node) || std::any_of(node.blocks.begin(), node.blocks.end(),
                                         [](const Block& block) { return AnyTarget(block.nodes); });
  });
}

Argument Constant(c10::IValue value) { return Argument{std::move(value)}; }

// Writes the replacement of one node into a list of nodes.
class Builder {
 public:
  Builder(OpGraph& graph, const Node& node, std::vector<Node>& out)
      : graph_(graph), node_(node), out_(out) {}

  Argument Add(std::string op, std::string overload, std::vector<Argument> args,
               ValueKind kind = ValueKind::kTensor) {
    graph_.values.push_back({});
    graph_.values.back().kind = kind;
    const int value = static_cast<int>(graph_.values.size()) - 1;
    AddInto(value, std::move(op), std::move(overload), std::move(args));
    return Argument{ValueRef{value}};
  }

  void AddInto(int value, std::string op, std::string overload, std::vector<Argument> args) {
    Node made;
    made.op = std::move(op);
    made.overload = std::move(overload);
    made.args = std::move(args);
    made.outputs.push_back(value);
    made.module_path = node_.module_path;
    if (made.op == "autopart::dropout_mask") made.random_stream = node_.random_stream;
    out_.push_back(std::move(made));
  }

 private:
  OpGraph& graph_;
  const Node& node_;
  std::vector<Node>& out_;
};

const TensorMeta* MetaOf(const OpGraph& graph, const Argument& argument) {
  const auto* ref = std::get_if<ValueRef>(&argument.is);
  if (!ref || !graph.values[ref->value].tensor) return nullptr;
  return &*graph.values[ref->value].tensor;
}

// What eager does without a fused kernel (torch's _scaled_dot_product_attention_math): both factors
// are scaled by the root of the scale, half types are computed in float, a row of the mask that
// allows nothing gives zeros.
absl::Status DecomposeAttention(OpGraph& graph, const Node& node, std::vector<Node>& out) {
  const TensorMeta* q_meta = MetaOf(graph, node.args[0]);
  const TensorMeta* k_meta = MetaOf(graph, node.args[1]);
  const c10::IValue* p = ConstantOf(node.args[4]);
  const c10::IValue* causal = ConstantOf(node.args[5]);
  const c10::IValue* scale = ConstantOf(node.args[6]);
  const c10::IValue* gqa = ConstantOf(node.args[7]);
  if (!q_meta || !k_meta || !p || !causal || !scale || !gqa) {
    return absl::UnimplementedError(
        absl::StrCat("attention with dropout in module '", node.module_path,
                     "' takes its options from a computation: make them constants"));
  }
  const TensorMeta query = *q_meta;  // values grow below
  const TensorMeta key = *k_meta;
  Builder b(graph, node, out);
  Argument q = node.args[0], k = node.args[1], v = node.args[2], mask = node.args[3];
  const bool half = query.dtype == at::kHalf || query.dtype == at::kBFloat16;
  const auto cast = [&](const Argument& x, at::ScalarType type) {
    return b.Add(
        "aten::to", "dtype",
        {x, Constant(static_cast<int64_t>(type)), Constant(false), Constant(false), Constant({})});
  };
  if (half) {
    q = cast(q, at::kFloat);
    k = cast(k, at::kFloat);
    v = cast(v, at::kFloat);
  }
  const int64_t head = query.sizes.back().value;
  const double factor =
      scale->isNone() ? 1.0 / std::sqrt(static_cast<double>(head)) : scale->toDouble();
  const double root = std::sqrt(std::abs(factor));
  q = b.Add("aten::mul", "Scalar", {q, Constant(factor < 0 ? -root : root)});
  if (gqa->toBool()) {
    const int64_t repeat =
        query.sizes[query.sizes.size() - 3].value / key.sizes[key.sizes.size() - 3].value;
    for (Argument* x : {&k, &v}) {
      if (repeat == 1) continue;
      *x = b.Add("aten::repeat_interleave", "self_int",
                 {*x, Constant(repeat), Constant(int64_t{-3}), Constant({})});
    }
  }
  k = b.Add("aten::transpose", "int", {k, Constant(int64_t{-2}), Constant(int64_t{-1})});
  k = b.Add("aten::mul", "Scalar", {k, Constant(root)});
  Argument scores = b.Add("aten::matmul", "", {q, k});
  const auto hide = [&](const Argument& allowed) {
    // Nothing is made of the mask alone: layers share it, and what each makes of it might be sent.
    scores = b.Add("aten::where", "ScalarOther",
                   {allowed, scores, Constant(-std::numeric_limits<double>::infinity())});
  };
  if (causal->toBool()) {
    const Argument ones = b.Add("aten::ones_like", "",
                                {scores, Constant(static_cast<int64_t>(at::kBool)), Constant({}),
                                 Constant({}), Constant({}), Constant({})});
    hide(b.Add("aten::tril", "", {ones, Constant(int64_t{0})}));
  }
  if (!(ConstantOf(mask) && ConstantOf(mask)->isNone())) {
    const TensorMeta* mask_meta = MetaOf(graph, mask);
    if (mask_meta && mask_meta->dtype == at::kBool) {
      hide(mask);
    } else {
      scores = b.Add("aten::add", "Tensor", {scores, mask, Constant(int64_t{1})});
    }
  }
  Argument weights =
      b.Add("aten::_safe_softmax", "", {scores, Constant(int64_t{-1}), Constant({})});
  const Argument drop = b.Add("autopart::dropout_mask", "", {weights, node.args[4]});
  weights = b.Add("aten::mul", "Tensor", {weights, drop});
  if (half) {
    const Argument result = b.Add("aten::matmul", "", {weights, v});
    b.AddInto(node.outputs[0], "aten::to", "dtype",
              {result, Constant(static_cast<int64_t>(query.dtype)), Constant(false),
               Constant(false), Constant({})});
  } else {
    b.AddInto(node.outputs[0], "aten::matmul", "", {weights, v});
  }
  return absl::OkStatus();
}

absl::Status DecomposeFeatureDropout(OpGraph& graph, const Node& node, std::vector<Node>& out) {
  const TensorMeta* x = MetaOf(graph, node.args[0]);
  if (!x) {
    return absl::UnimplementedError(
        absl::StrCat("feature dropout of a value of unknown shape in "
                     "module '",
                     node.module_path, "'"));
  }
  const int rank = static_cast<int>(x->sizes.size());
  Builder b(graph, node, out);
  Argument like = node.args[0];
  for (int axis = 2; axis < rank; ++axis) {
    like = b.Add("aten::slice", "Tensor",
                 {like, Constant(static_cast<int64_t>(axis)), Constant(int64_t{0}),
                  Constant(int64_t{1}), Constant(int64_t{1})});
  }
  const Argument mask = b.Add("autopart::dropout_mask", "", {like, node.args[1]});
  b.AddInto(node.outputs[0], node.op == "aten::feature_dropout_" ? "aten::mul_" : "aten::mul",
            "Tensor", {node.args[0], mask});
  return absl::OkStatus();
}

absl::Status DecomposeNodes(OpGraph& graph, std::vector<Node>& nodes) {
  std::vector<Node> out;
  for (Node& node : nodes) {
    for (Block& block : node.blocks) {
      if (absl::Status s = DecomposeNodes(graph, block.nodes); !s.ok()) return s;
    }
    absl::Status status;
    if (!IsTarget(node)) {
      out.push_back(std::move(node));
    } else if (node.op == kAttention) {
      status = DecomposeAttention(graph, node, out);
    } else {
      status = DecomposeFeatureDropout(graph, node, out);
    }
    if (!status.ok()) return status;
  }
  nodes = std::move(out);
  return absl::OkStatus();
}

}  // namespace

bool IsRandom(const Node& node) {
  const c10::FunctionSchema* schema = FindSchema(node.op, node.overload);
  if (!schema) return true;
  const auto is = [&](const char* name, auto&& test) {
    const auto index = schema->argumentIndexWithName(name);
    if (!index || *index >= static_cast<int>(node.args.size())) return false;
    const c10::IValue* value = ConstantOf(node.args[*index]);
    return value && test(*value);
  };
  const auto off = [](const c10::IValue& v) { return v.isBool() && !v.toBool(); };
  const auto zero = [](const c10::IValue& v) { return v.isDouble() && v.toDouble() == 0; };
  return !(is("train", off) || is("training", off) || is("dropout", zero) || is("dropout_p", zero));
}

bool NeedsDecomposition(const OpGraph& graph) { return AnyTarget(graph.nodes); }

absl::Status Decompose(OpGraph& graph) {
  if (absl::Status s = DecomposeNodes(graph, graph.nodes); !s.ok()) return s;
  Renumber(graph);
  return absl::OkStatus();
}

}  // namespace autopart::internal
