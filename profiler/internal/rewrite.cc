#include "profiler/internal/rewrite.h"

#include <algorithm>
#include <map>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "profiler/alias.h"

namespace autopart::internal {
namespace {

class Renumberer {
 public:
  explicit Renumberer(OpGraph& graph)
      : graph_(graph), new_id_(graph.values.size(), kNoValue), read_(graph.values.size(), false) {}

  void Run() {
    for (const Node& node : graph_.nodes) MarkReads(node);
    for (const Argument& output : graph_.outputs) MarkReads(output);
    for (GraphInput& input : graph_.inputs) input.value = Define(input.value, kNoNode, 0, false);
    for (Parameter& parameter : graph_.parameters) DefineIfRead(parameter.value);
    for (ConstantTensor& constant : graph_.constants) DefineIfRead(constant.value);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) Visit(graph_.nodes[i], static_cast<int>(i));
    for (Argument& output : graph_.outputs) Rename(output);
    for (Value& value : values_) {
      if (value.view_of != kNoValue) value.view_of = new_id_[value.view_of];
    }
    graph_.values = std::move(values_);
  }

 private:
  void MarkReads(const Argument& argument) {
    ForEachValue(argument, [&](int value) { read_[value] = true; });
  }
  void MarkReads(const Node& node) {
    for (const Argument& arg : node.args) MarkReads(arg);
    for (const Block& block : node.blocks) {
      for (const Node& inner : block.nodes) MarkReads(inner);
      for (const Argument& output : block.outputs) MarkReads(output);
    }
  }

  int Define(int old_id, int producer, int index, bool in_block) {
    Value value = std::move(graph_.values[old_id]);
    value.producer = producer;
    value.output_index = index;
    value.in_block = in_block;
    new_id_[old_id] = static_cast<int>(values_.size());
    values_.push_back(std::move(value));
    return new_id_[old_id];
  }

  void DefineIfRead(int& id) {
    if (id != kNoValue) id = read_[id] ? Define(id, kNoNode, 0, false) : kNoValue;
  }

  void Rename(Argument& argument) {
    Substitute(argument, [&](int value) { return Argument{ValueRef{new_id_[value]}}; });
  }

  // index: of the top-level node, or kNoNode inside a block.
  void Visit(Node& node, int index) {
    for (Argument& arg : node.args) Rename(arg);
    for (Block& block : node.blocks) {
      for (int& input : block.inputs) input = Define(input, kNoNode, 0, true);
      for (Node& inner : block.nodes) Visit(inner, kNoNode);
      for (Argument& output : block.outputs) Rename(output);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      node.outputs[i] = Define(node.outputs[i], index, static_cast<int>(i), index == kNoNode);
    }
  }

  OpGraph& graph_;
  std::vector<int> new_id_;
  std::vector<bool> read_;
  std::vector<Value> values_;
};

class DeadNodes {
 public:
  explicit DeadNodes(OpGraph& graph) : graph_(graph), readers_(graph.values.size(), 0) {
    for (const Node& node : graph.nodes) Count(node, 1);
    for (const Argument& output : graph.outputs) Count(output, 1);
  }

  void Drop() { DropFrom(graph_.nodes); }

 private:
  void Count(const Argument& argument, int by) {
    ForEachValue(argument, [&](int value) { readers_[value] += by; });
  }
  void Count(const Node& node, int by) {
    for (const Argument& arg : node.args) Count(arg, by);
    for (const Block& block : node.blocks) {
      for (const Node& inner : block.nodes) Count(inner, by);
      for (const Argument& output : block.outputs) Count(output, by);
    }
  }

  bool IsDead(const Node& node) const {
    if (node.op == "prim::If" && node.outputs.empty()) {
      return std::all_of(node.blocks.begin(), node.blocks.end(),
                         [](const Block& block) { return block.nodes.empty(); });
    }
    if (!node.blocks.empty() || node.outputs.empty()) return false;
    return std::all_of(node.outputs.begin(), node.outputs.end(),
                       [&](int value) { return readers_[value] == 0; }) &&
           WrittenValues(node).empty();
  }

  // Last first, so that what only dead nodes read is dead when its turn comes.
  void DropFrom(std::vector<Node>& nodes) {
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      for (Block& block : it->blocks) DropFrom(block.nodes);
      if (!IsDead(*it)) continue;
      Count(*it, -1);
      it->op.clear();
    }
    nodes.erase(std::remove_if(nodes.begin(), nodes.end(),
                               [](const Node& node) { return node.op.empty(); }),
                nodes.end());
  }

  OpGraph& graph_;
  std::vector<int> readers_;
};

// Values in the order in which they are first read.
void FirstReads(const Node& node, std::vector<int>& order) {
  const auto read = [&](int value) { order.push_back(value); };
  for (const Argument& arg : node.args) ForEachValue(arg, read);
  for (const Block& block : node.blocks) {
    for (const Node& inner : block.nodes) FirstReads(inner, order);
    for (const Argument& output : block.outputs) ForEachValue(output, read);
  }
}

}  // namespace

void OrderConstants(OpGraph& graph) {
  std::vector<int> reads;
  for (const Node& node : graph.nodes) FirstReads(node, reads);
  for (const Argument& output : graph.outputs) {
    ForEachValue(output, [&](int value) { reads.push_back(value); });
  }
  std::map<int, ConstantTensor*> by_value;
  for (ConstantTensor& constant : graph.constants) by_value[constant.value] = &constant;
  std::vector<ConstantTensor> ordered;
  for (const int value : reads) {
    const auto found = by_value.find(value);
    if (found == by_value.end()) continue;
    ordered.push_back(std::move(*found->second));
    by_value.erase(found);
    if (absl::StartsWith(ordered.back().name, "constant.")) {
      ordered.back().name = absl::StrCat("constant.", ordered.size() - 1);
      graph.values[value].name = ordered.back().name;
    }
  }
  graph.constants = std::move(ordered);
}

void DropDead(OpGraph& graph) { DeadNodes(graph).Drop(); }

void Renumber(OpGraph& graph) { Renumberer(graph).Run(); }

}  // namespace autopart::internal
