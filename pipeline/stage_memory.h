// What a stage holds on each of its ranks, as the simulator counts it and plan.json keeps it.
#ifndef AUTOPART_PIPELINE_STAGE_MEMORY_H_
#define AUTOPART_PIPELINE_STAGE_MEMORY_H_

#include <cstdint>
#include <vector>

namespace autopart {

// Storages of one micro-batch that are held for the same reasons, as one. Each reason holds it for
// a while; it is alive while any does, and counted once.
struct StageStorage {
  int64_t bytes = 0;
  bool saved = false;              // from the forward until the backward (the gradient of weights)
  bool result = false;             // handed back to the caller: from the forward to the step's end
  std::vector<int> sent_to;        // stages, ascending: from the forward until the send's WAIT
  std::vector<int> received_from;  // stages, ascending: from the RECV until the forward used it

  // Kept for the backward or the caller; else a message on its way.
  bool is_activation() const { return saved || result; }
  bool operator==(const StageStorage&) const = default;
};

struct StageMemory {
  int64_t weight_bytes = 0;     // parameters and buffers of the model
  int64_t gradient_bytes = 0;   // from the first backward of the step on, or the reduction
  int64_t optimizer_bytes = 0;  // state on one rank
  int64_t temporary_bytes = 0;  // most that a compute finds or makes and nobody keeps, apart
  std::vector<StageStorage> storages;

  bool operator==(const StageMemory&) const = default;
};

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_STAGE_MEMORY_H_
