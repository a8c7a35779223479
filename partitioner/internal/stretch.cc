#include "partitioner/internal/stretch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

namespace autopart::internal {
namespace {

constexpr double kTolerance = 1e-12;  // of all work
constexpr int kWords = 4;             // of sources that are propagated together
using Sources = std::array<uint64_t, kWords>;

// The work of each node with all its ancestors (kForward) or descendants. Empty if stopped.
enum class Direction { kForward, kBackward };
std::vector<double> WorkOfReach(const Problem& problem, Direction direction,
                                const std::function<bool()>& stop) {
  const int n = static_cast<int>(problem.nodes.size());
  const bool forward = direction == Direction::kForward;
  const auto node_at = [&](int place) { return forward ? place : n - 1 - place; };
  std::vector<double> work(n);
  std::vector<Sources> reached(n);
  std::vector<std::array<double, 256>> sums(kWords * 8);  // of each byte of sources
  for (int first = 0; first < n; first += 64 * kWords) {
    if (stop()) return {};
    for (int byte = 0; byte < kWords * 8; ++byte) {
      for (int bits = 1; bits < 256; ++bits) {
        const int place = first + 8 * byte + std::countr_zero(static_cast<unsigned>(bits));
        sums[byte][bits] =
            sums[byte][bits & (bits - 1)] + (place < n ? problem.nodes[node_at(place)].work_ms : 0);
      }
    }
    Sources all{};
    for (int place = first; place < n; ++place) {
      Sources& sources = reached[place];
      sources = {};
      const Node& node = problem.nodes[node_at(place)];
      for (const int other : forward ? node.predecessors : node.successors) {
        const int from = node_at(other);  // its own inverse
        if (from < first) continue;
        for (int w = 0; w < kWords; ++w) sources[w] |= reached[from][w];
      }
      const int own = place - first;
      if (own < 64 * kWords) sources[own / 64] |= uint64_t{1} << (own % 64);
      if (own < 64 * kWords) all[own / 64] |= uint64_t{1} << (own % 64);
      for (int w = 0; w < kWords; ++w) {
        uint64_t rest = sources[w];
        for (int byte = 8 * w; rest != 0; rest >>= 8, ++byte) {
          work[node_at(place)] += sums[byte][rest & 255];
        }
      }
    }
  }
  return work;
}

}  // namespace

bool Stretch::BoxOf(double low_ms, double high_ms, Box& box) const {
  box = space->Between(low_ms - before_ms, high_ms - before_ms);
  if (behind >= 0) box.out.Add(behind);
  return space->Tighten(box);
}

Stretch WholeStretch(const Problem& problem) {
  Stretch stretch;
  stretch.problem = std::make_unique<Problem>(problem);
  double work_ms = 0;
  for (const Node& node : problem.nodes) work_ms += node.work_ms;
  stretch.space = std::make_unique<DownsetSpace>(*stretch.problem, kTolerance * work_ms);
  stretch.payments = PaymentsOf(problem);
  return stretch;
}

Stretches::Stretches(const Problem& problem, const std::function<bool()>& stop)
    : problem_(problem), payments_(PaymentsOf(problem)) {
  const int n = static_cast<int>(problem.nodes.size());
  const std::vector<double> before = WorkOfReach(problem, Direction::kForward, stop);
  const std::vector<double> behind = WorkOfReach(problem, Direction::kBackward, stop);
  ok_ = !before.empty() && !behind.empty();
  if (!ok_) return;
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0);
  // A node has at least its successors' work behind it, but for rounding: never past one of them.
  std::vector<double> key = behind;
  for (int v = n - 1; v >= 0; --v) {
    for (const int s : problem.nodes[v].successors) key[v] = std::max(key[v], key[s]);
  }
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return key[a] > key[b]; });
  rank_.resize(n);
  prefix_ms_.assign(n + 1, 0);
  least_before_ms_.assign(n + 1, std::numeric_limits<double>::infinity());
  for (int r = 0; r < n; ++r) {
    rank_[order_[r]] = r;
    behind_ms_.push_back(key[order_[r]]);
    prefix_ms_[r + 1] = prefix_ms_[r] + problem.nodes[order_[r]].work_ms;
  }
  work_ms_ = prefix_ms_[n];
  for (int r = n - 1; r >= 0; --r) {
    least_before_ms_[r] = std::min(least_before_ms_[r + 1], before[order_[r]]);
  }
  touching_.assign(payments_.size(), std::vector<std::vector<int>>(n));
  for (size_t sum = 0; sum < payments_.size(); ++sum) {
    for (size_t p = 0; p < payments_[sum].size(); ++p) {
      const Payment& payment = payments_[sum][p];
      if (payment.first != kCaller) touching_[sum][payment.first].push_back(static_cast<int>(p));
      for (const int v : payment.others) touching_[sum][v].push_back(static_cast<int>(p));
    }
  }
}

Stretch Stretches::Between(double low_ms, double high_ms) const {
  const double slack = 1e-9 * work_ms_;
  const int n = static_cast<int>(order_.size());
  // In all of them: what has more behind it than they leave out.
  const int first = static_cast<int>(
      std::partition_point(behind_ms_.begin(), behind_ms_.end(),
                           [&](double ms) { return ms > work_ms_ - low_ms + slack; }) -
      behind_ms_.begin());
  const int last = static_cast<int>(
      std::partition_point(least_before_ms_.begin() + first, least_before_ms_.end() - 1,
                           [&](double ms) { return ms <= high_ms + slack; }) -
      least_before_ms_.begin());

  Stretch stretch;
  stretch.problem = std::make_unique<Problem>();
  stretch.before_ms = prefix_ms_[first];
  stretch.behind = last < n ? last - first : -1;
  stretch.problem->objective = problem_.objective;
  stretch.problem->nodes.resize(last - first + (last < n));
  for (int r = first; r < last; ++r) {
    Node& node = stretch.problem->nodes[r - first];
    node.work_ms = problem_.nodes[order_[r]].work_ms;
    for (const int s : problem_.nodes[order_[r]].successors) {
      if (rank_[s] >= last) continue;
      node.successors.push_back(rank_[s] - first);
      stretch.problem->nodes[rank_[s] - first].predecessors.push_back(r - first);
    }
  }
  stretch.space = std::make_unique<DownsetSpace>(*stretch.problem, kTolerance * work_ms_);

  stretch.payments.resize(payments_.size());
  std::vector<int> touched;
  for (size_t sum = 0; sum < payments_.size(); ++sum) {
    touched.clear();
    for (int r = first; r < last; ++r) {
      const std::vector<int>& here = touching_[sum][order_[r]];
      touched.insert(touched.end(), here.begin(), here.end());
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const int p : touched) {
      const Payment& whole = payments_[sum][p];
      const int place = whole.first == kCaller ? -1 : rank_[whole.first];
      if (place >= last) continue;  // not counted
      Payment payment{place < first ? kCaller : place - first, {}, whole.in_ms, whole.out_ms};
      bool behind = false;
      for (const int v : whole.others) {
        behind = behind || rank_[v] >= last;
        if (rank_[v] >= first && rank_[v] < last) payment.others.push_back(rank_[v] - first);
      }
      if (behind) payment.others.push_back(stretch.behind);
      if (!payment.others.empty()) stretch.payments[sum].push_back(std::move(payment));
    }
  }
  return stretch;
}

}  // namespace autopart::internal
