// The best so far and what lost.
#ifndef AUTOPART_PIPELINE_INTERNAL_CONTEST_H_
#define AUTOPART_PIPELINE_INTERNAL_CONTEST_H_

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "partitioner/cost_graph.h"
#include "pipeline/internal/judge.h"
#include "pipeline/internal/shape.h"

namespace autopart::internal {

inline constexpr int kFinalists = 3;

struct Entry {
  Judgement judgement;
  const CostGraph* graph = nullptr;
  Shape shape;
  std::string recompute = "none";

  double ms_per_sample() const;
  // Faster first (times within 1e-9 are equal), then what needs less memory, then fewer stages.
  bool BetterThan(const Entry& o) const;
};

class Contest {
 public:
  void Add(Entry entry);

  // By a bound, which its time is: it was not looked at.
  void RuleOut(Entry entry) { ruled_out_.push_back(std::move(entry)); }

  bool empty() const { return fits_.empty(); }
  // Of the best; infinity if there is none.
  double best_ms_per_sample() const { return best_ms_per_sample_; }
  std::vector<Entry>& fits() { return fits_; }
  const std::vector<Entry>& misses() const { return misses_; }

  const std::vector<Entry>& ruled_out() const { return ruled_out_; }

  // Sorts those that fit. Only what a report of losers needs is kept of those that cannot win.
  void Trim();

 private:
  std::vector<Entry> fits_, misses_, ruled_out_;
  double best_ms_per_sample_ = std::numeric_limits<double>::infinity();
};

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_CONTEST_H_
