// All directed acyclic graphs of n nodes, one of each class of those that differ only in the
// numbering of their nodes.
//
// None is left out: every acyclic graph has a topological order, and with its nodes numbered in one
// each edge goes to a higher number, so it is one of the 2^(n (n-1) / 2) sets of pairs i < j. All
// of these sets are gone through, ascending; one that was not met before is visited, and all its
// topological orders are walked to mark the sets that are the same graph in another numbering.
// Costs: time of about the number of sets (2,097,152 for 7 nodes, of which 243,668 are visited),
// and a bit for each. How many classes there are is known: oeis.org/A003087.
#ifndef AUTOPART_TESTS_TESTING_ALL_DAGS_H_
#define AUTOPART_TESTS_TESTING_ALL_DAGS_H_

#include <cstdint>
#include <functional>

namespace autopart::testing {

// The bit of the edge between two nodes, from < to.
inline uint32_t EdgeBit(int from, int to) { return uint32_t{1} << (to * (to - 1) / 2 + from); }

// Calls `visit` with the set of edges of each. At most 7 nodes; the bits of 8 would take long.
// Returns how many they are.
int ForEachDag(int num_nodes, const std::function<void(uint32_t edges)>& visit);

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_ALL_DAGS_H_
