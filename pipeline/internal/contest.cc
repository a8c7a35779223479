#include "pipeline/internal/contest.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace autopart::internal {
namespace {

// Nodes, storages and edges go; stages stay for their number.
void Slim(Plan& plan) {
  plan.edges.clear();
  for (PlanStage& stage : plan.stages) {
    const int64_t peak = stage.peak_memory_bytes;
    stage = {};
    stage.peak_memory_bytes = peak;
  }
}

}  // namespace

double Entry::ms_per_sample() const {
  const Plan& plan = judgement.plan;
  return plan.predicted_step_ms / plan.micro_batches /
         std::max<int64_t>(1, plan.micro_batch_samples);
}

bool Entry::BetterThan(const Entry& o) const {
  const double mine = ms_per_sample();
  const double its = o.ms_per_sample();
  if (mine < its * (1 - 1e-9)) return true;
  if (mine > its * (1 + 1e-9)) return false;
  const auto key = [](const Entry& e) {
    return std::tuple(e.judgement.over_bytes, e.shape.stages, e.judgement.plan.micro_batches);
  };
  return key(*this) < key(o);
}

void Contest::Add(Entry entry) {
  const bool fits = entry.judgement.fits();
  if (fits) best_ms_per_sample_ = std::min(best_ms_per_sample_, entry.ms_per_sample());
  if (!fits) Slim(entry.judgement.plan);
  std::vector<Entry>& list = fits ? fits_ : misses_;
  list.push_back(std::move(entry));
  if (fits && list.size() > 4 * kFinalists && list.size() % (4 * kFinalists) == 0) Trim();
}

void Contest::Trim() {
  std::stable_sort(fits_.begin(), fits_.end(),
                   [](const Entry& a, const Entry& b) { return a.BetterThan(b); });
  for (size_t i = kFinalists; i < fits_.size(); ++i) Slim(fits_[i].judgement.plan);
}

}  // namespace autopart::internal
