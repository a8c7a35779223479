// The least communication of a stage whose two boundaries are known only up to a box each; by
// branch and bound over downset cuts. See chain_bound.h for what it is for.
#ifndef AUTOPART_PARTITIONER_INTERNAL_STAGE_PAYMENT_H_
#define AUTOPART_PARTITIONER_INTERNAL_STAGE_PAYMENT_H_

#include <vector>

#include "partitioner/internal/downset_cut.h"
#include "partitioner/internal/problem.h"

namespace autopart::internal {

// What a stage pays for one tensor: in_ms if `first` is before it and one of `others` inside,
// out_ms if `first` is inside and one of `others` behind it.
struct Payment {
  int first = kCaller;  // before every stage but the first, which does not pay for it
  std::vector<int> others;
  double in_ms = 0, out_ms = 0;
};

// The loads of a stage are at least: for kSum, work + the one sum of payments; for kOverlap, each
// of work, what it sends and what it receives.
std::vector<std::vector<Payment>> PaymentsOf(const Problem& problem);

enum class Ends { kFront, kBack, kBoth };  // of a stage

struct PaymentSearch {
  Ends ends = Ends::kBoth;  // whose payments and choices are searched; of the other only the box
  double enough_ms = 0;     // a bound above this ends the search
  int max_branchings = 100;
};

struct PaymentBound {
  double ms = 0;           // no stage of the boxes pays less
  bool exhausted = false;  // more branchings would not raise it
};

// front, back: tightened boxes of the boundaries before and behind the stage.
PaymentBound BoundPayment(const DownsetSpace& space, const std::vector<Payment>& payments,
                          const Box& front, const Box& back, const PaymentSearch& search,
                          DownsetCut& cut);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_STAGE_PAYMENT_H_
