#include "partitioner/internal/coarsen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "partitioner/internal/blocks.h"
#include "partitioner/internal/order.h"

namespace autopart::internal {
namespace {

// Share of the whole that a node is: of work, number and bytes, so that groups are even in each.
std::vector<double> Sizes(const Problem& problem) {
  const auto work = [](const Node& node) {
    return std::isinf(node.work_ms) ? node.cpu_ms : node.work_ms;
  };
  const auto bytes = [](const Node& node) {
    return node.resident_bytes + node.flight_bytes + node.temporary_bytes;
  };
  double total_work = 0, total_bytes = 0;
  for (const Node& node : problem.nodes) {
    total_work += work(node);
    total_bytes += bytes(node);
  }
  // Half by work, for loads are what counts, and a quarter each by number and by bytes.
  const double work_share = total_work > 0 ? 2 : 0, byte_share = total_bytes > 0 ? 1 : 0;
  const double shares = 1 + work_share + byte_share;
  std::vector<double> sizes;
  sizes.reserve(problem.nodes.size());
  for (const Node& node : problem.nodes) {
    double size = 1 / static_cast<double>(problem.nodes.size());
    if (work_share > 0) size += work_share * work(node) / total_work;
    if (byte_share > 0) size += byte_share * bytes(node) / total_bytes;
    sizes.push_back(size / shares);
  }
  return sizes;
}

// Groups as labels in a topological order, which each pass keeps.
class SoleArcs {
 public:
  SoleArcs(const Problem& problem, double max_size)
      : problem_(problem), max_size_(max_size), sizes_(Sizes(problem)), label_(sizes_.size()) {
    std::iota(label_.begin(), label_.end(), 0);
  }

  int count() const { return static_cast<int>(sizes_.size()); }
  const std::vector<int>& label() const { return label_; }

  // Each group into the group of its only successor, where both are small enough together.
  // Only the last of the groups that join has arcs out, so by the lasts the order stays
  // topological.
  void JoinSuccessors() {
    const std::vector<int> only = OnlyNeighbours(/*successors=*/true);
    std::vector<int> root(count());
    std::vector<double> size(sizes_);
    for (int g = count() - 1; g >= 0; --g) root[g] = Root(only[g], root, size, g);
    Relabel(root, size);
  }

  // The same with the only predecessor; the first of those that join has all arcs in.
  void JoinPredecessors() {
    const std::vector<int> only = OnlyNeighbours(/*successors=*/false);
    std::vector<int> root(count());
    std::vector<double> size(sizes_);
    for (int g = 0; g < count(); ++g) root[g] = Root(only[g], root, size, g);
    Relabel(root, size);
  }

 private:
  static constexpr int kNone = -1, kSeveral = -2;

  std::vector<int> OnlyNeighbours(bool successors) const {
    std::vector<int> only(count(), kNone);
    for (size_t n = 0; n < problem_.nodes.size(); ++n) {
      for (const int s : problem_.nodes[n].successors) {
        const int from = label_[n], to = label_[s];
        if (from == to) continue;
        int& neighbour = successors ? only[from] : only[to];
        const int other = successors ? to : from;
        neighbour = neighbour == kNone || neighbour == other ? other : kSeveral;
      }
    }
    return only;
  }

  int Root(int neighbour, const std::vector<int>& root, std::vector<double>& size,
           int group) const {
    if (neighbour < 0 || size[root[neighbour]] + sizes_[group] > max_size_) return group;
    size[root[neighbour]] += sizes_[group];
    return root[neighbour];
  }

  void Relabel(const std::vector<int>& root, const std::vector<double>& size) {
    std::vector<int> dense(root.size());
    std::vector<double> sizes;
    for (size_t g = 0; g < root.size(); ++g) {
      if (root[g] != static_cast<int>(g)) continue;
      dense[g] = static_cast<int>(sizes.size());
      sizes.push_back(size[g]);
    }
    for (int& l : label_) l = dense[root[l]];
    sizes_ = std::move(sizes);
  }

  const Problem& problem_;
  const double max_size_;
  std::vector<double> sizes_;  // by group
  std::vector<int> label_;     // by node
};

}  // namespace

Coarsening Coarsen(const Problem& problem, int max_groups) {
  SoleArcs groups(problem, 2.0 / max_groups);
  for (int before = 0; groups.count() > max_groups && groups.count() != before;) {
    before = groups.count();
    groups.JoinSuccessors();
    if (groups.count() > max_groups) groups.JoinPredecessors();
  }
  Coarsening coarse = {Contract(problem, groups.label(), groups.count()), groups.label()};
  if (groups.count() <= max_groups) return coarse;

  Random unused(0);
  const Order order = MakeOrder(coarse.problem, {ReadyRule::kDepthFirst}, unused);
  const Blocks stretches(coarse.problem, order, max_groups, /*with_memory=*/false);
  coarse.problem = Contract(coarse.problem, stretches.of_node, stretches.count);
  for (int& group : coarse.group_of_node) group = stretches.of_node[group];
  return coarse;
}

}  // namespace autopart::internal
