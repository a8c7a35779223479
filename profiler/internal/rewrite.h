// Renumbering of an OpGraph after nodes and values were added or dropped.
#ifndef AUTOPART_PROFILER_INTERNAL_REWRITE_H_
#define AUTOPART_PROFILER_INTERNAL_REWRITE_H_

#include "profiler/op_graph.h"

namespace autopart::internal {

// Values in canonical order: inputs, used parameters, used constants, then results of nodes in
// execution order (block values before the results of their node). Sets producer, output_index and
// in_block; values that nothing defines are dropped, parameters and constants that nothing reads
// get kNoValue.
void Renumber(OpGraph& graph);

// Takes away nodes whose results nobody reads and that write nothing, and branches that do nothing.
// Keys of random streams stay. Renumber afterwards.
void DropDead(OpGraph& graph);

// Constants in the order in which nodes first read them, unnamed ones named after it; those that
// nothing reads are dropped.
void OrderConstants(OpGraph& graph);

// Replaces every reference in the argument by map(value) -> Argument.
template <typename Map>
void Substitute(Argument& argument, Map&& map) {
  if (const auto* ref = std::get_if<ValueRef>(&argument.is)) {
    argument = map(ref->value);
  } else if (auto* list = std::get_if<ArgumentList>(&argument.is)) {
    for (Argument& item : list->items) Substitute(item, map);
  }
}

}  // namespace autopart::internal

#endif  // AUTOPART_PROFILER_INTERNAL_REWRITE_H_
