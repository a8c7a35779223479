// Which values may share memory, what nodes write, and what must therefore stay together.
#ifndef AUTOPART_PROFILER_ALIAS_H_
#define AUTOPART_PROFILER_ALIAS_H_

#include <vector>

#include "profiler/op_graph.h"

namespace autopart {

// Fills Value::alias_class, Node::effects (except `random`, which the front end knows) and
// Node::copyable, from the operators' schemas.
void AnalyzeEffects(OpGraph& graph);

// Fills Node::copyable again, from better known shapes: nodes that compute from numbers, and from
// the 0-d tensors that traces make of them, only.
void MarkCopyable(OpGraph& graph);

// Values that the node changes in place (blocks included), ascending, each once. Statistics of a
// BatchNorm in training mode count.
std::vector<int> WrittenValues(const Node& node);

// Group of each top-level node, -1 for free ones. Nodes of one group stay on one stage:
// - an alias class that is written in place, from its first write to the last read that can see it
//   (from its first view where several views are alive at the write);
// - every reader and writer of a buffer that changes, and a BatchNorm with its counter;
// - a list that is appended to, with all its users.
std::vector<int> WriteGroups(const OpGraph& graph);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_ALIAS_H_
