// Alias classes from the operators' schemas: a result annotated like an operand may share its
// memory (view, reshape, contiguous, to, in-place operators), elements share with their list, and
// results of control flow share with what its blocks return. Classes are made by union-find, so
// they are conservative; what really shares at a binding is Value::view_of.
#include "profiler/alias.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "profiler/internal/schemas.h"

namespace autopart {
namespace {

class UnionFind {
 public:
  explicit UnionFind(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0); }
  int Find(int x) {
    while (parent_[x] != x) x = parent_[x] = parent_[parent_[x]];
    return x;
  }
  void Join(int a, int b) {
    a = Find(a);
    b = Find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

bool MayAlias(const c10::AliasInfo* a, const c10::AliasInfo* b) {
  if (!a || !b) return false;
  const auto sets = [](const c10::AliasInfo& info) {
    std::set<c10::Symbol> all(info.beforeSets().begin(), info.beforeSets().end());
    all.insert(info.afterSets().begin(), info.afterSets().end());
    for (const c10::AliasInfo& inner : info.containedTypes()) {
      all.insert(inner.beforeSets().begin(), inner.beforeSets().end());
      all.insert(inner.afterSets().begin(), inner.afterSets().end());
    }
    return all;
  };
  const std::set<c10::Symbol> left = sets(*a);
  for (const c10::Symbol& symbol : sets(*b)) {
    if (left.count(symbol)) return true;
  }
  return false;
}

bool HoldsMemory(const Value& value) {
  return value.kind == ValueKind::kTensor || value.kind == ValueKind::kList ||
         value.kind == ValueKind::kTuple || value.kind == ValueKind::kOther;
}

class Classes {
 public:
  explicit Classes(const OpGraph& graph) : graph_(graph), sets_(graph.values.size()) {
    for (const Node& node : graph.nodes) Visit(node);
  }
  int Find(int value) { return sets_.Find(value); }

 private:
  void Join(int value, const Argument& argument) {
    if (value == kNoValue || !HoldsMemory(graph_.values[value])) return;
    ForEachValue(argument, [&](int other) {
      if (HoldsMemory(graph_.values[other])) sets_.Join(value, other);
    });
  }

  void Visit(const Node& node) {
    for (const Block& block : node.blocks) {
      for (const Node& inner : block.nodes) Visit(inner);
    }
    if (node.op == "prim::If") {
      for (const Block& block : node.blocks) {
        for (size_t i = 0; i < node.outputs.size(); ++i) Join(node.outputs[i], block.outputs[i]);
      }
    } else if (node.op == "prim::Loop") {
      const Block& body = node.blocks[0];
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        Join(node.outputs[i], body.outputs[i + 1]);
        Join(node.outputs[i], node.args[i + 2]);
        Join(body.inputs[i + 1], node.args[i + 2]);
        Join(body.inputs[i + 1], body.outputs[i + 1]);
      }
    } else if (const c10::FunctionSchema* schema = internal::FindSchema(node.op, node.overload)) {
      VisitOperator(node, *schema);
    } else {
      // Structure written by hand: parts share with the whole.
      for (const int output : node.outputs) {
        for (const Argument& arg : node.args) Join(output, arg);
      }
    }
  }

  void VisitOperator(const Node& node, const c10::FunctionSchema& schema) {
    const auto& formals = schema.arguments();
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const size_t r = node.unpacks_list ? 0 : i;
      if (r >= schema.returns().size()) break;
      for (size_t a = 0; a < node.args.size() && a < formals.size(); ++a) {
        if (MayAlias(schema.returns()[r].alias_info(), formals[a].alias_info())) {
          Join(node.outputs[i], node.args[a]);
        }
      }
    }
    // append(list, element): the list shares with what is put into it.
    if (!node.args.empty() && !formals.empty() && formals[0].alias_info() &&
        formals[0].alias_info()->isWrite() &&
        formals[0].type()->kind() == c10::TypeKind::ListType) {
      ForEachValue(node.args[0], [&](int list) {
        for (size_t a = 1; a < node.args.size(); ++a) Join(list, node.args[a]);
      });
    }
  }

  const OpGraph& graph_;
  UnionFind sets_;
};

bool IsConstant(const Argument& argument, bool value) {
  const auto* constant = std::get_if<c10::IValue>(&argument.is);
  return constant && constant->isBool() && constant->toBool() == value;
}

// Running mean and variance, which the schema does not mark as written.
bool UpdatesStatistics(const Node& node) {
  return (node.op == "aten::batch_norm" || node.op == "aten::native_batch_norm" ||
          node.op == "aten::instance_norm") &&
         node.args.size() > 5 && !IsConstant(node.args[5], false);
}

void CollectWrites(const Node& node, std::set<int>& written) {
  const auto add = [&](const Argument& argument) {
    ForEachValue(argument, [&](int value) { written.insert(value); });
  };
  for (const Block& block : node.blocks) {
    for (const Node& inner : block.nodes) CollectWrites(inner, written);
  }
  if (UpdatesStatistics(node)) {
    add(node.args[3]);
    add(node.args[4]);
  }
  const c10::FunctionSchema* schema = internal::FindSchema(node.op, node.overload);
  if (!schema) return;
  for (size_t i = 0; i < node.args.size() && i < schema->arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema->arguments()[i].alias_info();
    if (alias && alias->isWrite()) add(node.args[i]);
  }
}

// A number, or the 0-d tensor that a trace makes of one: costs nothing to compute again.
class ScalarChains {
 public:
  explicit ScalarChains(const OpGraph& graph) : graph_(graph), scalar_(graph.values.size(), false) {
    for (size_t v = 0; v < graph.values.size(); ++v) {
      switch (graph.values[v].kind) {
        case ValueKind::kInt:
        case ValueKind::kFloat:
        case ValueKind::kBool:
        case ValueKind::kString:
        case ValueKind::kNone:
          scalar_[v] = true;
          break;
        default:
          break;
      }
    }
    for (const ConstantTensor& constant : graph.constants) {
      if (constant.value != kNoValue && constant.meta.sizes.empty()) scalar_[constant.value] = true;
    }
  }

  bool ReadsScalarsOnly(const Node& node) const {
    const std::vector<int> reads = ReadValues(node);
    return std::all_of(reads.begin(), reads.end(), [&](int value) { return scalar_[value]; });
  }

  void Add(const Node& copyable) {
    for (const int output : copyable.outputs) {
      const Value& value = graph_.values[output];
      if (value.tensor && value.tensor->sizes.empty()) scalar_[output] = true;
    }
  }

 private:
  const OpGraph& graph_;
  std::vector<bool> scalar_;
};

class EffectsAnalysis {
 public:
  explicit EffectsAnalysis(OpGraph& graph) : graph_(graph) {
    for (const Parameter& parameter : graph.parameters) {
      if (parameter.value != kNoValue) Class(parameter.value).is_buffer |= parameter.is_buffer;
    }
  }

  void Run() {
    for (Node& node : graph_.nodes) Visit(node);
  }

 private:
  struct ClassFacts {
    bool is_buffer = false;
    bool written = false;
  };
  ClassFacts& Class(int value) { return classes_[graph_.values[value].alias_class]; }

  void Visit(Node& node) {
    for (Block& block : node.blocks) {
      for (Node& inner : block.nodes) {
        Visit(inner);
        node.effects.random |= inner.effects.random || inner.random_stream != 0;
      }
    }
    node.effects.random |= node.op == "autopart::dropout_mask";
    const std::vector<int> written = WrittenValues(node);
    node.effects.writes_input = !written.empty();
    node.effects.writes_buffer = false;
    for (const int value : written) {
      Class(value).written = true;
      node.effects.writes_buffer |= Class(value).is_buffer;
    }
    node.effects.data_dependent =
        !node.blocks.empty() || internal::DependsOnData(node.op, node.overload);
  }

  OpGraph& graph_;
  std::map<int, ClassFacts> classes_;
};

}  // namespace

std::vector<int> WrittenValues(const Node& node) {
  std::set<int> written;
  CollectWrites(node, written);
  return {written.begin(), written.end()};
}

void AnalyzeEffects(OpGraph& graph) {
  Classes classes(graph);
  for (size_t i = 0; i < graph.values.size(); ++i) {
    graph.values[i].alias_class = classes.Find(static_cast<int>(i));
  }
  EffectsAnalysis(graph).Run();
  MarkCopyable(graph);
}

void MarkCopyable(OpGraph& graph) {
  std::set<int> written;  // alias classes
  for (const Node& node : graph.nodes) {
    for (const int value : WrittenValues(node)) written.insert(graph.values[value].alias_class);
  }
  ScalarChains chains(graph);
  for (Node& node : graph.nodes) {
    node.copyable = node.blocks.empty() && !node.effects.random && !node.effects.writes_input &&
                    !node.outputs.empty() && chains.ReadsScalarsOnly(node);
    for (const int output : node.outputs) {
      node.copyable &= written.count(graph.values[output].alias_class) == 0;
    }
    if (!node.copyable) continue;
    // Int(NumToTensor(size)) reads a number, not data.
    node.effects.data_dependent = false;
    chains.Add(node);
  }
}

std::vector<int> WriteGroups(const OpGraph& graph) {
  const int num_nodes = static_cast<int>(graph.nodes.size());
  std::vector<std::vector<int>> reads(num_nodes);
  std::map<int, std::vector<int>> writers;  // alias class -> nodes
  for (int i = 0; i < num_nodes; ++i) {
    reads[i] = ReadValues(graph.nodes[i]);
    for (const int value : WrittenValues(graph.nodes[i])) {
      writers[graph.values[value].alias_class].push_back(i);
    }
  }
  std::set<int> persistent;  // classes with a parameter or buffer
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.value != kNoValue) {
      persistent.insert(graph.values[parameter.value].alias_class);
    }
  }
  const auto in_class = [&](int value, int alias_class) {
    return graph.values[value].alias_class == alias_class;
  };

  UnionFind groups(graph.nodes.size());
  for (const auto& [alias_class, class_writers] : writers) {
    const int first_write = class_writers.front();
    std::set<int> alive;  // older values of the class that are read from the write on
    bool is_list = false;
    for (int i = first_write; i < num_nodes; ++i) {
      for (const int value : reads[i]) {
        if (!in_class(value, alias_class)) continue;
        if (graph.values[value].producer < first_write) alive.insert(value);
        is_list |= graph.values[value].kind == ValueKind::kList;
      }
    }
    const bool whole = persistent.count(alias_class) > 0 || is_list;
    int leader = first_write;
    for (int i = 0; i < num_nodes; ++i) {
      const bool touches = std::any_of(reads[i].begin(), reads[i].end(),
                                       [&](int value) { return in_class(value, alias_class); });
      const bool makes = std::any_of(graph.nodes[i].outputs.begin(), graph.nodes[i].outputs.end(),
                                     [&](int value) { return in_class(value, alias_class); });
      const bool member =
          whole ? touches || makes : touches && (i >= first_write || (makes && alive.size() > 1));
      if (member) groups.Join(leader, i);
    }
  }
  // num_batches_tracked counts beside its BatchNorm.
  std::map<std::string, int> batch_norm_of;
  for (int i = 0; i < num_nodes; ++i) {
    if (UpdatesStatistics(graph.nodes[i])) batch_norm_of[graph.nodes[i].module_path] = i;
  }
  for (int i = 0; i < num_nodes; ++i) {
    const Node& node = graph.nodes[i];
    if (!node.effects.writes_buffer || UpdatesStatistics(node)) continue;
    const auto it = batch_norm_of.find(node.module_path);
    if (it != batch_norm_of.end()) groups.Join(i, it->second);
  }

  std::map<int, int> members;
  for (int i = 0; i < num_nodes; ++i) ++members[groups.Find(i)];
  std::map<int, int> number;
  std::vector<int> result(graph.nodes.size(), -1);
  for (int i = 0; i < num_nodes; ++i) {
    const int root = groups.Find(i);
    if (members[root] < 2) continue;
    result[i] = number.try_emplace(root, static_cast<int>(number.size())).first->second;
  }
  return result;
}

}  // namespace autopart
