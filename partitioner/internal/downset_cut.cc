#include "partitioner/internal/downset_cut.h"

#include <algorithm>
#include <limits>

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kSource = 0, kSink = 1;

}  // namespace

DownsetSpace::DownsetSpace(const Problem& problem, double tolerance_ms)
    : problem_(problem),
      tolerance_ms_(tolerance_ms),
      ancestors_(problem.nodes.size()),
      descendants_(problem.nodes.size()),
      before_ms_(problem.nodes.size()),
      behind_ms_(problem.nodes.size()),
      all_(static_cast<int>(problem.nodes.size())) {
  const int n = num_nodes();
  for (int v = 0; v < n; ++v) {
    all_.Add(v);
    ancestors_[v] = descendants_[v] = NodeSet(n);
    ancestors_[v].Add(v);
    for (const int p : problem.nodes[v].predecessors) ancestors_[v] |= ancestors_[p];
    work_ms_ += problem.nodes[v].work_ms;
  }
  for (int v = n - 1; v >= 0; --v) {
    descendants_[v].Add(v);
    for (const int s : problem.nodes[v].successors) descendants_[v] |= descendants_[s];
  }
  for (int v = 0; v < n; ++v) {
    before_ms_[v] = WorkOf(ancestors_[v]);
    behind_ms_[v] = WorkOf(descendants_[v]);
  }
}

double DownsetSpace::WorkOf(const NodeSet& set) const {
  double work = 0;
  set.Each([&](int v) { work += problem_.nodes[v].work_ms; });
  return work;
}

NodeSet DownsetSpace::OpenOf(const Box& box) const {
  NodeSet open = all_;
  for (size_t w = 0; w < open.words().size(); ++w) {
    open.words()[w] &= ~(box.in.words()[w] | box.out.words()[w]);
  }
  return open;
}

Box DownsetSpace::Between(double low_ms, double high_ms) const {
  Box box{NodeSet(num_nodes()), NodeSet(num_nodes()), low_ms, high_ms};
  for (int v = 0; v < num_nodes(); ++v) {
    if (behind_ms_[v] > work_ms_ - low_ms + tolerance_ms()) box.in.Add(v);
    if (before_ms_[v] > high_ms + tolerance_ms()) box.out.Add(v);
  }
  return box;
}

bool DownsetSpace::Tighten(Box& box) const {
  if (box.in.Meets(box.out)) return false;
  const auto work_in = [&](const NodeSet& set, const NodeSet& open) {
    double work = 0;
    for (size_t w = 0; w < open.words().size(); ++w) {
      for (uint64_t rest = set.words()[w] & open.words()[w]; rest != 0; rest &= rest - 1) {
        work += problem_.nodes[w * 64 + std::countr_zero(rest)].work_ms;
      }
    }
    return work;
  };
  for (bool changed = true; changed;) {
    changed = false;
    NodeSet open = OpenOf(box);
    open.Each([&](int v) {
      if (ancestors_[v].Meets(box.out)) {
        box.out.Add(v), open.Remove(v);
      } else if (descendants_[v].Meets(box.in)) {
        box.in.Add(v), open.Remove(v);
      }
    });
    if (box.in.Meets(box.out)) return false;
    const double in_ms = WorkOf(box.in), open_ms = work_in(all_, open);
    if (in_ms > box.high_ms + tolerance_ms()) return false;
    if (in_ms + open_ms < box.low_ms - tolerance_ms()) return false;
    NodeSet to_in(num_nodes()), to_out(num_nodes());
    open.Each([&](int v) {
      if (in_ms + work_in(ancestors_[v], open) > box.high_ms + tolerance_ms()) to_out.Add(v);
      if (in_ms + open_ms - work_in(descendants_[v], open) < box.low_ms - tolerance_ms()) {
        to_in.Add(v);
      }
    });
    const auto add = [&](NodeSet& to, const NodeSet& set) {
      for (size_t w = 0; w < set.words().size(); ++w) {
        changed = changed || (set.words()[w] & ~to.words()[w]) != 0;
        to.words()[w] |= set.words()[w];
      }
    };
    add(box.in, to_in);
    add(box.out, to_out);
    if (changed && box.in.Meets(box.out)) return false;
  }
  return true;
}

void DownsetCut::AddArc(int from, int to, double capacity) {
  arcs_.push_back({to, first_[from], capacity});
  first_[from] = static_cast<int>(arcs_.size()) - 1;
  arcs_.push_back({from, first_[to], 0});
  first_[to] = static_cast<int>(arcs_.size()) - 1;
}

bool DownsetCut::Level() {
  std::fill(level_.begin(), level_.end(), -1);
  queue_.assign(1, kSource);
  level_[kSource] = 0;
  for (size_t i = 0; i < queue_.size(); ++i) {
    for (int a = first_[queue_[i]]; a >= 0; a = arcs_[a].next) {
      ++num_steps_;
      if (arcs_[a].capacity > space_.tolerance_ms() && level_[arcs_[a].to] < 0) {
        level_[arcs_[a].to] = level_[queue_[i]] + 1;
        queue_.push_back(arcs_[a].to);
      }
    }
  }
  return level_[kSink] >= 0;
}

double DownsetCut::Augment(int vertex, double limit) {
  if (vertex == kSink) return limit;
  double sent = 0;
  for (int& a = current_[vertex]; a >= 0; a = arcs_[a].next) {
    ++num_steps_;
    const int to = arcs_[a].to;
    if (level_[to] != level_[vertex] + 1 || !(arcs_[a].capacity > space_.tolerance_ms())) continue;
    const double flow = Augment(to, std::min(limit - sent, arcs_[a].capacity));
    if (flow <= 0) continue;
    arcs_[a].capacity -= flow;
    arcs_[a ^ 1].capacity += flow;
    sent += flow;
    if (!(limit - sent > 0)) return sent;
  }
  return sent;
}

double DownsetCut::Minimise(const Box& box, const std::vector<CutTerm>& terms, double lambda,
                            Downset& downset) {
  const std::vector<Node>& nodes = space_.problem().nodes;
  open_.clear();
  space_.OpenOf(box).Each([&](int v) {
    of_node_[v] = static_cast<int>(open_.size()) + 2;
    open_.push_back(v);
  });
  const auto vertex = [&](int v) {
    if (v == kCaller || box.in.Has(v)) return kSource;
    return box.out.Has(v) ? kSink : of_node_[v];
  };

  double value = 0;
  box.in.Each([&](int v) { value += lambda * nodes[v].work_ms; });
  arcs_.clear();
  first_.assign(open_.size() + 2, -1);
  for (const int v : open_) {
    const double cost = lambda * nodes[v].work_ms;
    if (cost > 0) AddArc(of_node_[v], kSink, cost);
    if (cost < 0) AddArc(kSource, of_node_[v], -cost), value += cost;
    for (const int p : nodes[v].predecessors) {
      if (!box.in.Has(p)) AddArc(of_node_[v], of_node_[p], kInfinity);
    }
  }
  for (const CutTerm& term : terms) {
    const int first = vertex(term.first);
    if (first == kSink) continue;
    int num_open = 0, last_open = kSource;
    bool leaves = false;
    for (const int v : term.others) {
      const int other = vertex(v);
      leaves = leaves || other == kSink;
      if (other > kSink) ++num_open, last_open = other;
    }
    if (leaves) {
      if (first == kSource) value += term.ms;
      if (first != kSource) AddArc(first, kSink, term.ms);
    } else if (num_open == 1) {
      AddArc(first, last_open, term.ms);
    } else if (num_open > 1) {
      const int together = static_cast<int>(first_.size());
      first_.push_back(-1);
      AddArc(first, together, term.ms);
      for (const int v : term.others) {
        if (vertex(v) > kSink) AddArc(together, vertex(v), kInfinity);
      }
    }
  }

  level_.assign(first_.size(), -1);
  while (Level()) {
    current_ = first_;
    value += Augment(kSource, kInfinity);
  }

  downset.in = box.in;
  for (const int v : open_) {
    if (level_[of_node_[v]] >= 0) downset.in.Add(v);
  }
  downset.work_ms = space_.WorkOf(downset.in);
  downset.payment_ms = value - lambda * downset.work_ms;
  return value;
}

}  // namespace autopart::internal
