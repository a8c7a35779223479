#include "partitioner/internal/stage_payment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMaxMultipliers = 8;  // the line search ends by itself after 2 to 5

// A decision that splits a set of stages in two: a node is in a boundary's downset, or is not.
struct Split {
  int node = -1;  // -1: none is left to take
  bool of_front = true;
};

struct Branch {
  Box front, back;
  double front_ms = 0, back_ms = 0;  // bounds
  Downset before, until;             // downsets that attain them when their work is in the interval
  Split front_split, back_split;     // where it is not
  double ms() const { return front_ms + back_ms; }
};

class Search {
 public:
  Search(const DownsetSpace& space, const std::vector<Payment>& payments, const Box& front,
         const Box& back, const PaymentSearch& options, DownsetCut& cut)
      : space_(space), options_(options), cut_(cut) {
    for (const Payment& payment : payments) {
      const auto in_front = [&](int v) { return front.in.Has(v); };
      const bool over = std::all_of(payment.others.begin(), payment.others.end(), in_front);
      const bool behind = payment.first != kCaller && back.out.Has(payment.first);
      if (!over && !behind) payments_.push_back(&payment);
    }
    root_.front = front;
    root_.back = back;
  }

  PaymentBound Run() {
    if (!Bound(root_, true, true)) return {kInfinity, true};
    Offer(std::move(root_));
    for (int branchings = 0; !open_.empty(); ++branchings) {
      const double least = std::min(open_.front().ms(), best_ms_);
      if (least >= best_ms_ - space_.tolerance_ms()) break;
      if (least > options_.enough_ms) return {least, false};
      if (branchings >= options_.max_branchings) return {least, false};
      std::pop_heap(open_.begin(), open_.end(), Later);
      const Branch branch = std::move(open_.back());
      open_.pop_back();
      Divide(branch);
    }
    return {best_ms_, true};
  }

 private:
  static bool Later(const Branch& a, const Branch& b) { return a.ms() > b.ms(); }

  bool SearchesFront() const { return options_.ends != Ends::kBack; }
  bool SearchesBack() const { return options_.ends != Ends::kFront; }

  void Offer(Branch&& branch) {
    if (branch.ms() >= best_ms_ - space_.tolerance_ms()) return;
    open_.push_back(std::move(branch));
    std::push_heap(open_.begin(), open_.end(), Later);
  }

  void Divide(const Branch& branch) {
    const Split split = Choose(branch);
    if (split.node < 0) {  // the bound is attained, or cannot be told from it
      best_ms_ = std::min(best_ms_, branch.ms());
      return;
    }
    for (const bool in : {true, false}) {
      Branch half = branch;
      Box& box = split.of_front ? half.front : half.back;
      (in ? box.in : box.out).Add(split.node);
      bool front_changed = split.of_front, back_changed = !split.of_front;
      if (!Tighten(half, front_changed, back_changed)) continue;
      if (Bound(half, front_changed, back_changed)) Offer(std::move(half));
    }
  }

  // The boxes of a stage decide about each other: what is before it is before its end.
  bool Tighten(Branch& branch, bool& front_changed, bool& back_changed) const {
    const auto add = [](NodeSet& to, const NodeSet& set) {
      bool changed = false;
      for (size_t w = 0; w < set.words().size(); ++w) {
        changed = changed || (set.words()[w] & ~to.words()[w]) != 0;
        to.words()[w] |= set.words()[w];
      }
      return changed;
    };
    bool front = front_changed, back = back_changed;
    while (front || back) {
      if (front && !space_.Tighten(branch.front)) return false;
      if (front && SearchesBack()) back = add(branch.back.in, branch.front.in) || back;
      if (back && !space_.Tighten(branch.back)) return false;
      front = back && SearchesFront() && add(branch.front.out, branch.back.out);
      back_changed = back_changed || back;
      front_changed = front_changed || front;
      back = false;
    }
    return true;
  }

  bool Bound(Branch& branch, bool front_changed, bool back_changed) {
    if (SearchesFront() && (front_changed || back_changed)) {
      terms_.clear();
      for (const Payment* payment : payments_) {
        if (payment->in_ms <= 0) continue;
        if (payment->first != kCaller && branch.front.out.Has(payment->first)) continue;
        CutTerm term{payment->first, {}, payment->in_ms};
        for (const int v : payment->others) {  // readers that are inside unless they are before
          if (branch.back.in.Has(v) && !branch.front.in.Has(v)) term.others.push_back(v);
        }
        if (!term.others.empty()) terms_.push_back(std::move(term));
      }
      branch.front_ms =
          std::max(branch.front_ms, BoundEnd(branch.front, branch.before, branch.front_split));
      branch.front_split.of_front = true;
    }
    if (SearchesBack() && (front_changed || back_changed)) {
      terms_.clear();
      for (const Payment* payment : payments_) {
        if (payment->out_ms <= 0 || payment->first == kCaller) continue;
        if (!branch.front.out.Has(payment->first)) continue;  // perhaps not inside
        terms_.push_back({payment->first, payment->others, payment->out_ms});
      }
      branch.back_ms =
          std::max(branch.back_ms, BoundEnd(branch.back, branch.until, branch.back_split));
      branch.back_split.of_front = false;
    }
    return true;
  }

  // max over lambda of min over I of payment(I) + lambda * (W(I) - limit), where limit is the end
  // of the interval that the cheapest downset is beyond: a concave function of lambda, linear
  // between downsets, so the line through two downsets on either side gives the next lambda.
  double BoundEnd(const Box& box, Downset& downset, Split& split) {
    split.node = -1;
    double bound = cut_.Minimise(box, terms_, 0, downset);
    const double slack = space_.tolerance_ms();
    const bool too_little = downset.work_ms < box.low_ms - slack;
    if (!too_little && downset.work_ms <= box.high_ms + slack) return bound;

    const double limit = too_little ? box.low_ms : box.high_ms;
    Downset beyond = downset, within = Extreme(box, too_little);
    for (int i = 0; i < kMaxMultipliers; ++i) {
      const double gap = within.work_ms - beyond.work_ms;
      if (std::abs(gap) <= slack) break;
      const double lambda = (beyond.payment_ms - within.payment_ms) / gap;
      Downset next;
      const double value = cut_.Minimise(box, terms_, lambda, next);
      bound = std::max(bound, value - lambda * limit);
      const double line = beyond.payment_ms + lambda * beyond.work_ms;
      if (value >= line - slack) break;
      const bool is_beyond = too_little ? next.work_ms < limit : next.work_ms > limit;
      (is_beyond ? beyond : within) = std::move(next);
    }
    split.node = Between(box, beyond.in, within.in);
    downset = std::move(within);
    return bound;
  }

  // All that may be in, or only what must be.
  Downset Extreme(const Box& box, bool most) const {
    Downset downset;
    downset.in = box.in;
    if (most) downset.in |= space_.OpenOf(box);
    downset.work_ms = space_.WorkOf(downset.in);
    for (const CutTerm& term : terms_) {
      const bool in = term.first == kCaller || downset.in.Has(term.first);
      const auto is_out = [&](int v) { return !downset.in.Has(v); };
      if (in && std::any_of(term.others.begin(), term.others.end(), is_out)) {
        downset.payment_ms += term.ms;
      }
    }
    return downset;
  }

  // The open node that parts the two downsets most evenly: it decides most, whichever way it goes.
  int Between(const Box& box, const NodeSet& a, const NodeSet& b) const {
    NodeSet apart = space_.OpenOf(box);
    for (size_t w = 0; w < apart.words().size(); ++w)
      apart.words()[w] &= a.words()[w] ^ b.words()[w];
    const double half = 0.5 * space_.WorkOf(apart);
    int best = -1;
    double best_distance = kInfinity;
    apart.Each([&](int v) {
      double before = 0;
      for (size_t w = 0; w < apart.words().size(); ++w) {
        uint64_t rest = apart.words()[w] & space_.AncestorsOf(v).words()[w];
        for (; rest != 0; rest &= rest - 1) {
          before += space_.problem().nodes[w * 64 + std::countr_zero(rest)].work_ms;
        }
      }
      if (std::abs(before - half) < best_distance) {
        best_distance = std::abs(before - half);
        best = v;
      }
    });
    return best;
  }

  // First what brings the work into its interval; then a payment that the bound leaves out.
  Split Choose(const Branch& branch) const {
    if (SearchesFront() && branch.front_split.node >= 0) return branch.front_split;
    if (SearchesBack() && branch.back_split.node >= 0) return branch.back_split;
    if (options_.ends != Ends::kBoth) return {};
    const NodeSet& before = branch.before.in;
    const NodeSet& until = branch.until.in;
    Split split;
    double most = 0;
    const auto consider = [&](double ms, int node, bool of_front) {
      if (ms > most) most = ms, split = {node, of_front};
    };
    for (const Payment* payment : payments_) {
      const int first = payment->first;
      if (first == kCaller || before.Has(first)) {
        bool counted = false;
        int open = -1;
        for (const int v : payment->others) {
          if (before.Has(v) || !until.Has(v)) continue;
          counted = counted || branch.back.in.Has(v);
          if (!branch.back.in.Has(v)) open = v;
        }
        if (!counted && open >= 0) consider(payment->in_ms, open, false);
      } else if (until.Has(first) && !branch.front.out.Has(first)) {
        for (const int v : payment->others) {
          if (until.Has(v)) continue;
          consider(payment->out_ms, first, true);
          break;
        }
      }
    }
    return split;
  }

  const DownsetSpace& space_;
  const PaymentSearch& options_;
  DownsetCut& cut_;
  std::vector<const Payment*> payments_;  // that such a stage can have to make
  Branch root_;
  std::vector<Branch> open_;  // a heap, the least bound in front
  double best_ms_ = kInfinity;
  std::vector<CutTerm> terms_;
};

}  // namespace

std::vector<std::vector<Payment>> PaymentsOf(const Problem& problem) {
  std::vector<std::vector<Payment>> sums(problem.objective == Objective::kSum ? 1 : 2);
  for (const Tensor& tensor : problem.tensors) {
    Payment payment;
    payment.others = tensor.nodes;
    if (tensor.producer == kCaller) {
      payment.first = kCaller;
    } else {
      payment.first = tensor.nodes.front();  // nodes are in topological order
      payment.others.erase(payment.others.begin());
    }
    const double forward = tensor.forward_ms, backward = tensor.backward_ms;
    if (problem.objective == Objective::kSum) {
      payment.in_ms = payment.out_ms = forward + backward;
      sums[0].push_back(std::move(payment));
      continue;
    }
    // A reader receives the value and sends its gradient. Where the producer may be on either side,
    // only the smaller of the two is certain.
    const bool produced_first = payment.first == tensor.producer;
    const double least = std::min(forward, backward);
    payment.in_ms = produced_first ? backward : least;
    payment.out_ms = produced_first ? forward : least;
    sums[0].push_back(payment);
    payment.in_ms = produced_first ? forward : least;
    payment.out_ms = produced_first ? backward : least;
    sums[1].push_back(std::move(payment));
  }
  return sums;
}

PaymentBound BoundPayment(const DownsetSpace& space, const std::vector<Payment>& payments,
                          const Box& front, const Box& back, const PaymentSearch& search,
                          DownsetCut& cut) {
  return Search(space, payments, front, back, search, cut).Run();
}

}  // namespace autopart::internal
