// Finds a cycle to show to whoever made it.
#ifndef AUTOPART_PARTITIONER_INTERNAL_CYCLE_H_
#define AUTOPART_PARTITIONER_INTERNAL_CYCLE_H_

#include <functional>
#include <string>
#include <vector>

namespace autopart::internal {

// Nodes of one cycle in the order of its edges, each once; empty where there is none.
std::vector<int> FindCycle(const std::vector<std::vector<int>>& successors);

// "a -> b -> c -> a", the middle of a long one left out.
std::string DescribeCycle(const std::vector<int>& cycle,
                          const std::function<std::string(int)>& name);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_CYCLE_H_
