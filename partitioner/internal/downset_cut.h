// Least communication over a boundary of a pipeline: minimum cuts over downsets.
//
// A boundary between stages is a downset I of the nodes: with a node it holds the node's
// predecessors. What of I is known is a box: nodes that are in, nodes that are not, and an interval
// for the work W(I). Tensors that cross pay. The least payment over all downsets of a box, with the
// interval left out, is a minimum s-t cut on the nodes that are open (Picard 1976: closures are
// cuts). The interval comes back twice: it decides open nodes (one with too much work before it is
// not in I), and it is dualised, min payment(I) + lambda * (W(I) - limit), a cut for each lambda.
//
// A maximum flow is a certificate of a minimum cut, and a flow that is not yet maximum, or suffers
// from rounding, still certifies less: every value here is a lower bound.
//
// Cost of a cut: Dinic (1970) on the open nodes and the tensors that touch them, in practice close
// to linear; of Tighten: open nodes squared / 64 and what ancestors are open.
#ifndef AUTOPART_PARTITIONER_INTERNAL_DOWNSET_CUT_H_
#define AUTOPART_PARTITIONER_INTERNAL_DOWNSET_CUT_H_

#include <bit>
#include <cstdint>
#include <vector>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

class NodeSet {
 public:
  NodeSet() = default;
  explicit NodeSet(int num_nodes) : words_((num_nodes + 63) / 64) {}

  bool Has(int node) const { return words_[node / 64] >> (node % 64) & 1; }
  void Add(int node) { words_[node / 64] |= uint64_t{1} << (node % 64); }
  void Remove(int node) { words_[node / 64] &= ~(uint64_t{1} << (node % 64)); }
  bool Meets(const NodeSet& other) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      if (words_[w] & other.words_[w]) return true;
    }
    return false;
  }
  bool IsWithin(const NodeSet& other) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      if (words_[w] & ~other.words_[w]) return false;
    }
    return true;
  }
  NodeSet& operator|=(const NodeSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
    return *this;
  }
  template <typename Visit>
  void Each(const Visit& visit) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t rest = words_[w]; rest != 0; rest &= rest - 1) {
        visit(static_cast<int>(w * 64) + std::countr_zero(rest));
      }
    }
  }
  std::vector<uint64_t>& words() { return words_; }
  const std::vector<uint64_t>& words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
};

// Boundaries I with in <= I, I and out disjoint, low <= W(I) <= high.
struct Box {
  NodeSet in, out;
  double low_ms = 0, high_ms = 0;
};

// The nodes of a problem with all their ancestors and descendants: n^2 / 4 bytes. Nodes are in
// topological order, their work is finite.
class DownsetSpace {
 public:
  // Work is compared within the tolerance.
  DownsetSpace(const Problem& problem, double tolerance_ms);

  const Problem& problem() const { return problem_; }
  int num_nodes() const { return static_cast<int>(problem_.nodes.size()); }
  double work_ms() const { return work_ms_; }
  double tolerance_ms() const { return tolerance_ms_; }
  double WorkOf(const NodeSet& set) const;

  // All downsets with that much work.
  Box Between(double low_ms, double high_ms) const;
  // Decides the nodes that follow from those decided. False if nothing is left.
  bool Tighten(Box& box) const;
  NodeSet OpenOf(const Box& box) const;
  const NodeSet& AncestorsOf(int node) const { return ancestors_[node]; }  // with the node

 private:
  const Problem& problem_;
  double work_ms_ = 0;
  double tolerance_ms_;
  std::vector<NodeSet> ancestors_, descendants_;  // with the node
  std::vector<double> before_ms_, behind_ms_;     // their work
  NodeSet all_;
};

// A payment of `ms` if `first` is in I and one of `others` is not. first may be kCaller: in.
struct CutTerm {
  int first = kCaller;
  std::vector<int> others;
  double ms = 0;
};

struct Downset {
  NodeSet in;
  double work_ms = 0, payment_ms = 0;
};

class DownsetCut {
 public:
  explicit DownsetCut(const DownsetSpace& space) : space_(space), of_node_(space.num_nodes()) {}

  // At most min over the downsets of the box, whatever their work, of payment + lambda * W(I); the
  // downset is one that attains it, but for rounding.
  double Minimise(const Box& box, const std::vector<CutTerm>& terms, double lambda,
                  Downset& downset);

  int64_t num_steps() const { return num_steps_; }  // arcs looked at so far: a measure of effort

 private:
  struct Arc {
    int to, next;
    double capacity;
  };
  void AddArc(int from, int to, double capacity);
  bool Level();
  double Augment(int vertex, double limit);

  const DownsetSpace& space_;
  std::vector<int> of_node_;  // vertex
  std::vector<int> open_;
  std::vector<Arc> arcs_;  // arc i ^ 1 is the reverse of arc i
  std::vector<int> first_, current_, level_, queue_;
  int64_t num_steps_ = 0;
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_DOWNSET_CUT_H_
