#include "pipeline/internal/layout.h"

#include <algorithm>

namespace autopart::internal {

bool HasChunks(std::string_view schedule) {
  return schedule == "interleaved" || schedule == "zb-v";
}

bool RunsStageAtOnce(std::string_view schedule) {
  return schedule == "gpipe" || schedule == "1f1b" || schedule == "forward";
}

std::vector<std::vector<int>> RanksOf(const Shape& shape, int chunks, std::string_view schedule,
                                      Neighbours neighbours) {
  const int stages = shape.stages * chunks;
  std::vector<std::vector<int>> ranks(stages);
  for (int s = 0; s < stages; ++s) {
    const int lane = schedule == "zb-v" ? std::min(s, stages - 1 - s) : s % shape.stages;
    for (int r = 0; r < shape.replicas; ++r) {
      ranks[s].push_back(neighbours == Neighbours::kReplicas ? lane * shape.replicas + r
                                                             : r * shape.stages + lane);
    }
  }
  return ranks;
}

std::vector<int> InFlightOf(const Shape& shape, int stages, std::string_view schedule,
                            int micro_batches) {
  const int own = (micro_batches + shape.replicas - 1) / shape.replicas;
  if (schedule == "zb-h1" || schedule == "zb-v") return {std::min(own, shape.stages)};
  if (schedule != "1f1b" && schedule != "interleaved") return {own};
  std::vector<int> in_flight;
  for (int s = 1; s <= stages; ++s) in_flight.push_back(std::min(own, s));
  return in_flight;
}

double StateFactor(std::string_view optimizer, bool training, int sharers) {
  if (!training) return 1;
  if (optimizer == "sgd") return 2;
  if (optimizer == "sgd-momentum") return 2 + 1.0 / sharers;
  return 2 + 2.0 / sharers;
}

}  // namespace autopart::internal
