// Stretches of a large problem as small ones, for bounds that look at few stages at a time.
//
// All boundaries with work between two values share the nodes that too much work is behind (they
// are in) and those that too much is before (they are out). The nodes between the two make the
// stretch: the n^2 of a DownsetSpace is paid for stretches only.
//
// Cost: the work before and behind each node, once, n * edges / 64 word operations: ancestors are
// propagated as bits, 256 sources at a time; 0.5 s for 100,000 nodes.
#ifndef AUTOPART_PARTITIONER_INTERNAL_STRETCH_H_
#define AUTOPART_PARTITIONER_INTERNAL_STRETCH_H_

#include <functional>
#include <memory>
#include <vector>

#include "partitioner/internal/downset_cut.h"
#include "partitioner/internal/problem.h"
#include "partitioner/internal/stage_payment.h"

namespace autopart::internal {

// Boundaries as downsets of a stretch: what is before it is in all of them, what is behind in none.
struct Stretch {
  std::unique_ptr<Problem> problem;  // nodes in topological order; their work and arcs only
  std::unique_ptr<DownsetSpace> space;
  std::vector<std::vector<Payment>>
      payments;          // by sum, see PaymentsOf; before the stretch: kCaller
  double before_ms = 0;  // work before it
  int behind = -1;       // the node that stands for all behind it, if any

  // A tightened box of the boundaries with that much work of the whole; false if there are none.
  bool BoxOf(double low_ms, double high_ms, Box& box) const;
};

// All of a problem.
Stretch WholeStretch(const Problem& problem);

class Stretches {
 public:
  // May give up when stop says so: ok() is false then.
  Stretches(const Problem& problem, const std::function<bool()>& stop);

  bool ok() const { return ok_; }
  // For all boundaries with work from low_ms to high_ms.
  Stretch Between(double low_ms, double high_ms) const;

 private:
  const Problem& problem_;
  bool ok_ = true;
  double work_ms_ = 0;
  std::vector<int> order_, rank_;        // by work behind, most first; topological
  std::vector<double> behind_ms_;        // by rank
  std::vector<double> prefix_ms_;        // work of the first nodes
  std::vector<double> least_before_ms_;  // by rank: of the work before this node and later ones
  std::vector<std::vector<Payment>> payments_;
  std::vector<std::vector<std::vector<int>>> touching_;  // payments, by sum and node
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_STRETCH_H_
