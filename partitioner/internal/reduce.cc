#include "partitioner/internal/reduce.h"

#include <algorithm>
#include <numeric>

#include "partitioner/internal/stage_choice.h"

namespace autopart::internal {
namespace {

// Tarjan's strongly connected components (1972) with an explicit stack. Components are numbered in
// the order in which they end, which is a reverse topological order.
class Components {
 public:
  explicit Components(const Problem& problem)
      : problem_(problem),
        entered_(problem.nodes.size(), -1),
        low_(problem.nodes.size()),
        component_(problem.nodes.size(), -1) {
    // From the last node on, so that equals stay in their order when the numbers are turned round.
    for (int n = static_cast<int>(problem.nodes.size()) - 1; n >= 0; --n) {
      if (entered_[n] < 0) Visit(n);
    }
  }

  int count() const { return count_; }
  std::vector<int> TopologicalLabels() const {
    std::vector<int> label(component_);
    for (int& l : label) l = count_ - 1 - l;
    return label;
  }

 private:
  struct Frame {
    int node;
    size_t next;  // successor to look at
  };

  void Enter(int node) {
    entered_[node] = low_[node] = clock_++;
    open_.push_back(node);
    frames_.push_back({node, 0});
  }

  void Visit(int root) {
    Enter(root);
    while (!frames_.empty()) {
      const int node = frames_.back().node;
      const std::vector<int>& successors = problem_.nodes[node].successors;
      if (frames_.back().next < successors.size()) {
        const int to = successors[frames_.back().next++];
        if (entered_[to] < 0) {
          Enter(to);
        } else if (component_[to] < 0) {
          low_[node] = std::min(low_[node], entered_[to]);
        }
        continue;
      }
      frames_.pop_back();
      if (!frames_.empty()) {
        int& low = low_[frames_.back().node];
        low = std::min(low, low_[node]);
      }
      if (low_[node] == entered_[node]) Close(node);
    }
  }

  void Close(int root) {
    int node;
    do {
      node = open_.back();
      open_.pop_back();
      component_[node] = count_;
    } while (node != root);
    ++count_;
  }

  const Problem& problem_;
  std::vector<int> entered_, low_, component_, open_;
  std::vector<Frame> frames_;
  int clock_ = 0;
  int count_ = 0;
};

bool IsFree(const Node& node) {
  return node.work_ms == 0 && node.cpu_ms == 0 && node.resident_bytes == 0 &&
         node.gradient_bytes == 0 && node.flight_bytes == 0 && node.temporary_bytes == 0 &&
         node.saves.empty() && node.reads.empty();
}

// Sets of nodes that only become larger (union-find).
class Unions {
 public:
  explicit Unions(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }

  int Find(int node) {
    while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
    return node;
  }
  void Unite(int a, int b) { parent_[Find(a)] = Find(b); }
  std::vector<int> Labels() {
    std::vector<int> label(parent_.size());
    for (size_t n = 0; n < label.size(); ++n) label[n] = Find(static_cast<int>(n));
    return label;
  }

 private:
  std::vector<int> parent_;
};

}  // namespace

Problem GlueCycles(const Problem& problem) {
  const Components components(problem);
  return Contract(problem, components.TopologicalLabels(), components.count());
}

Problem MergeFreeLeaves(const Problem& problem) {
  const int num_nodes = static_cast<int>(problem.nodes.size());
  // Where stages must not be empty, the best of them may be one that only a free node fills.
  if (!problem.allow_empty_stages) return problem;

  constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> partner(num_nodes, kNone);
  const auto meet = [&](int node, int other) {
    if (partner[node] == kNone) partner[node] = other;
    if (partner[node] != other) partner[node] = kSeveral;
  };
  for (int n = 0; n < num_nodes; ++n) {
    for (const int s : problem.nodes[n].successors) meet(n, s);
    for (const int p : problem.nodes[n].predecessors) meet(n, p);
  }
  for (const Tensor& tensor : problem.tensors) {
    for (const int n : tensor.nodes) {
      if (tensor.producer == kCaller) {
        partner[n] = kSeveral;  // the caller is one
      } else if (n != tensor.producer) {
        meet(n, tensor.producer);  // with its producer it adds nothing, whoever else reads
      } else if (tensor.nodes.size() == 2) {
        meet(n, tensor.nodes[0] == n ? tensor.nodes[1] : tensor.nodes[0]);
      } else {
        partner[n] = kSeveral;
      }
    }
  }
  // Memory that nodes share or make for others ties them to more than a neighbour.
  for (const SharedBytes& shared : problem.shared) {
    for (const int n : shared.nodes) partner[n] = kSeveral;
  }
  for (const SavedValue& value : problem.saved_values) {
    if (value.producer != kCaller) partner[value.producer] = kSeveral;
  }

  std::vector<int> label(num_nodes);
  std::iota(label.begin(), label.end(), 0);
  for (int n = 0; n < num_nodes; ++n) {
    // A partner that has itself joined another node stays out of it.
    const bool joins =
        partner[n] >= 0 && IsFree(problem.nodes[n]) && label[partner[n]] == partner[n];
    if (joins) label[n] = partner[n];
  }
  const int num_labels = MakeDense(label);
  return num_labels == num_nodes ? problem : GlueCycles(Contract(problem, label, num_labels));
}

Problem GlueDearTensors(const Problem& problem, double limit_ms) {
  // On an accelerator, cut from the other end, a node pays its work and the tensor.
  const bool overlap = problem.objective == Objective::kOverlap;
  double compute_share = 0, share = 0;  // at the best
  const StageChoices choices(problem);
  for (const StageChoices::Kind& kind : choices.kinds()) {
    if (kind.is_cpu) continue;
    compute_share = share == 0 ? kind.compute_share : std::min(compute_share, kind.compute_share);
    share = share == 0 ? kind.share : std::min(share, kind.share);
  }
  const auto is_too_much = [&](const Node& node, const Tensor& tensor) {
    return overlap
               ? std::max(tensor.forward_ms, tensor.backward_ms) * share > limit_ms
               : node.work_ms * compute_share + (tensor.forward_ms + tensor.backward_ms) * share >
                     limit_ms;
  };
  Unions unions(problem.nodes.size());
  for (const Tensor& tensor : problem.tensors) {
    if (tensor.producer == kCaller) continue;
    const Node& producer = problem.nodes[tensor.producer];
    const bool one_end = is_too_much(producer, tensor);
    for (const int n : tensor.nodes) {
      const Node& reader = problem.nodes[n];
      const bool other_end = is_too_much(reader, tensor);
      // A CPU pays nothing: an end counts if it cannot be there, both ends if only one can.
      const bool glued = problem.num_cpus == 0   ? one_end || other_end
                         : problem.num_cpus == 1 ? one_end && other_end
                                                 : false;
      if (glued || (one_end && producer.cpu_ms > limit_ms) ||
          (other_end && reader.cpu_ms > limit_ms)) {
        unions.Unite(n, tensor.producer);
      }
    }
  }
  std::vector<int> label = unions.Labels();
  const int num_labels = MakeDense(label);
  if (num_labels == static_cast<int>(problem.nodes.size())) return problem;
  return GlueDearTensors(GlueCycles(Contract(problem, label, num_labels)), limit_ms);
}

Problem Reduce(const Problem& problem) { return MergeFreeLeaves(GlueCycles(problem)); }

}  // namespace autopart::internal
