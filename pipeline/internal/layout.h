// Which ranks the stages of a shape lie on, and what a schedule holds there.
#ifndef AUTOPART_PIPELINE_INTERNAL_LAYOUT_H_
#define AUTOPART_PIPELINE_INTERNAL_LAYOUT_H_

#include <string_view>
#include <vector>

#include "pipeline/internal/shape.h"

namespace autopart::internal {

inline constexpr int kChunks = 2;  // stages a rank, of schedules that have several

bool HasChunks(std::string_view schedule);

// One stage a rank, whose gradients go on when its whole backward is done.
bool RunsStageAtOnce(std::string_view schedule);

// Neighbouring ranks have neighbouring stages, or the replicas of a stage.
enum class Neighbours { kStages, kReplicas };

// Ranks of each of stages x chunks, one a replica.
std::vector<std::vector<int>> RanksOf(const Shape& shape, int chunks, std::string_view schedule,
                                      Neighbours neighbours);

// Micro-batches that a stage holds at once, from the last stage on; the last entry serves all
// earlier ones.
std::vector<int> InFlightOf(const Shape& shape, int stages, std::string_view schedule,
                            int micro_batches);

// Weights, gradients and optimizer state, in copies of the trained parameters. sharers: ranks that
// share the state.
double StateFactor(std::string_view optimizer, bool training, int sharers);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_LAYOUT_H_
