// The least bottleneck is found by halving: for a bottleneck T, the ends that s slices can have are
// marked one stage after the other. A slice that ends at i may begin at the last mark of the stage
// before, if that is not before the first begin that T and the pins allow, which only grows with i.
#include "pipeline/internal/pinned_slices.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace autopart::internal {
namespace {

double WorkOf(const CostNode& node) {
  return node.forward_ms + node.backward_input_ms + node.backward_weight_ms;
}

class Slicer {
 public:
  Slicer(const CostGraph& graph, const std::vector<int>& pinned, int stages)
      : n_(graph.nodes.size()),
        stages_(stages),
        pinned_(pinned),
        work_(n_ + 1),
        cut_allowed_(n_ + 1, true) {
    std::map<int, std::pair<int, int>> spans;  // group -> first, last
    for (int i = 0; i < n_; ++i) {
      work_[i + 1] = work_[i] + WorkOf(graph.nodes[i]);
      const int group = graph.nodes[i].group;
      if (group != kNoGroup) spans.emplace(group, std::pair(i, i)).first->second.second = i;
    }
    for (const auto& [group, span] : spans) {
      for (int i = span.first + 1; i <= span.second; ++i) cut_allowed_[i] = false;
    }
  }

  double total() const { return work_[n_]; }

  // The cuts of slices that are not heavier than `limit`.
  std::optional<std::vector<int>> Cuts(double limit) const {
    // from[s][i]: where the slice of stage s that ends at i begins; -1: none.
    std::vector<std::vector<int>> from(stages_, std::vector<int>(n_ + 1, -1));
    for (int s = 0; s < stages_; ++s) {
      int last = -1;  // mark of the stage before, below i
      int begin = 0;  // first that the limit and the pins allow
      for (int i = 0; i <= n_; ++i) {
        if (i > 0 && pinned_[i - 1] >= 0 && pinned_[i - 1] != s) begin = i;
        while (work_[i] - work_[begin] > limit) ++begin;
        if (last >= begin && cut_allowed_[i]) from[s][i] = last;
        if (s == 0 ? i == 0 : from[s - 1][i] >= 0) last = i;  // no slice is empty
      }
    }
    if (from[stages_ - 1][n_] < 0) return std::nullopt;
    std::vector<int> cuts(stages_ + 1, n_);
    for (int s = stages_ - 1; s >= 0; --s) cuts[s] = from[s][cuts[s + 1]];
    return cuts;
  }

 private:
  const int n_, stages_;
  const std::vector<int>& pinned_;
  std::vector<double> work_;  // of the nodes before
  std::vector<bool> cut_allowed_;
};

bool IsInside(const std::string& path, const std::string& module) {
  return absl::StartsWith(path, module) &&
         (path.size() == module.size() || path[module.size()] == '.');
}

absl::StatusOr<std::vector<int>> NodesOf(const CostGraph& graph, const std::string& module) {
  std::vector<int> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (IsInside(graph.nodes[n].module, module)) nodes.push_back(n);
  }
  if (!nodes.empty()) return nodes;
  // The longest beginning that there is, and what is inside.
  for (size_t end = module.size(); end != 0 && end != std::string::npos;) {
    end = module.rfind('.', end - 1);
    const std::string parent = end == std::string::npos ? "" : module.substr(0, end);
    for (const CostNode& node : graph.nodes) {
      if (node.module.empty() || (!parent.empty() && !IsInside(node.module, parent))) continue;
      return absl::InvalidArgumentError(absl::StrCat("the model has no operator in a module '",
                                                     module, "'; it has for example '", node.module,
                                                     "'"));
    }
    if (parent.empty()) break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the model has no operator in a module '", module, "'"));
}

}  // namespace

absl::StatusOr<std::vector<int>> PinnedSlices(const CostGraph& graph,
                                              const std::vector<int>& pinned, int stages) {
  const Slicer slicer(graph, pinned, stages);
  std::optional<std::vector<int>> best = slicer.Cuts(slicer.total());
  if (!best) {
    std::string pins;
    for (size_t n = 0; n < pinned.size(); ++n) {
      if (pinned[n] >= 0 && (n == 0 || pinned[n - 1] != pinned[n])) {
        absl::StrAppend(&pins, pins.empty() ? "" : ", ", graph.nodes[n].module, "=", pinned[n]);
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the pins contradict the order in which the model runs, or its in-place writes, with ",
        stages, " stages; in the order in which they run they are: ", pins));
  }
  double low = 0;
  double high = slicer.total();
  for (int round = 0; round < 50; ++round) {
    const double middle = (low + high) / 2;
    if (std::optional<std::vector<int>> cuts = slicer.Cuts(middle)) {
      best = std::move(cuts);
      high = middle;
    } else {
      low = middle;
    }
  }
  std::vector<int> stage_of_node(graph.nodes.size());
  for (int s = 0; s < stages; ++s) {
    std::fill(stage_of_node.begin() + (*best)[s], stage_of_node.begin() + (*best)[s + 1], s);
  }
  return stage_of_node;
}

absl::StatusOr<std::vector<int>> PinsOfModules(
    const CostGraph& graph, const std::vector<std::pair<std::string, int>>& pins) {
  std::vector<int> stage_of_node(graph.nodes.size(), -1);
  for (const auto& [module, stage] : pins) {
    if (stage < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", module, "' is pinned to stage ", stage, ": stages count from 0"));
    }
    const absl::StatusOr<std::vector<int>> nodes = NodesOf(graph, module);
    if (!nodes.ok()) return nodes.status();
    for (const int n : *nodes) {
      if (stage_of_node[n] >= 0 && stage_of_node[n] != stage) {
        return absl::InvalidArgumentError(absl::StrCat("'", graph.nodes[n].module,
                                                       "' is pinned to stages ", stage_of_node[n],
                                                       " and ", stage));
      }
      stage_of_node[n] = stage;
    }
  }
  return stage_of_node;
}

absl::StatusOr<CostGraph> WithSameStages(CostGraph graph,
                                         const std::vector<std::vector<std::string>>& same_stage) {
  int next = 0;
  for (const CostNode& node : graph.nodes) next = std::max(next, node.group + 1);
  for (const std::vector<std::string>& modules : same_stage) {
    const int group = next++;
    for (const std::string& module : modules) {
      const absl::StatusOr<std::vector<int>> nodes = NodesOf(graph, module);
      if (!nodes.ok()) return nodes.status();
      for (const int n : *nodes) {
        const int old = graph.nodes[n].group;
        graph.nodes[n].group = group;
        if (old == kNoGroup || old == group) continue;
        for (CostNode& node : graph.nodes) {
          if (node.group == old) node.group = group;
        }
      }
    }
  }
  return graph;
}

}  // namespace autopart::internal
