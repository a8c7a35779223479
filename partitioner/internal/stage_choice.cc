#include "partitioner/internal/stage_choice.h"

#include <cmath>

namespace autopart::internal {

bool CountsBytes(const Problem& problem) {
  for (const DeviceType& type : problem.device_types) {
    if (!std::isinf(type.memory_bytes)) return true;
  }
  return !std::isinf(problem.memory_bytes) || problem.all_reduce_ms_per_byte > 0 ||
         problem.num_recompute_levels > 1;
}

StageChoices::StageChoices(const Problem& problem)
    : adds_up_(problem.objective == Objective::kSum),
      allow_empty_stages_(problem.allow_empty_stages),
      counts_devices_(!problem.device_types.empty()),
      pads_(!counts_devices_ && allow_empty_stages_),
      num_stages_(problem.num_stages),
      first_level_(problem.first_recompute_level),
      num_levels_(problem.num_recompute_levels),
      in_flight_(problem.in_flight) {
  std::vector<DeviceType> accelerators = problem.device_types;
  if (!counts_devices_) accelerators = {{problem.num_stages, 1, problem.memory_bytes}};
  int num_devices = 0;
  for (size_t t = 0; t < accelerators.size(); ++t) {
    const DeviceType& device = accelerators[t];
    num_devices += device.count;
    types_.push_back({device.count, 1, device.speed, false});
    for (const int d : problem.replicas) {
      if (d > device.count) break;
      Kind& kind = kinds_.emplace_back();
      kind.type = static_cast<int>(t);
      kind.replicas = d;
      kind.share = 1.0 / d;
      kind.compute_share = 1 / (d * device.speed);
      kind.all_reduce_ms_per_byte = 2.0 * (d - 1) / d * problem.all_reduce_ms_per_byte;
      if (problem.micro_batches > 0) {
        kind.all_reduce_ms_per_byte /= problem.micro_batches;
        kind.most_in_flight = (problem.micro_batches + d - 1) / d;
      }
      kind.memory_bytes = device.memory_bytes;
    }
  }
  if (problem.num_cpus > 0) {
    Kind& cpu = kinds_.emplace_back();
    cpu.type = static_cast<int>(types_.size());
    cpu.is_cpu = true;
    types_.push_back({problem.num_cpus, 1, 0, true});
  }
  // The last type counts fastest; stages, if counted, slowest.
  for (size_t t = types_.size(); t-- > 0;) {
    types_[t].stride = num_states_;
    num_states_ *= types_[t].count + 1;
  }
  const bool any_number = allow_empty_stages_ && num_stages_ >= num_devices + problem.num_cpus;
  const bool counts_stages = counts_devices_ && (!any_number || !problem.link_slowness.empty());
  if (counts_stages) {
    stage_stride_ = num_states_;
    num_states_ *= num_stages_ + 1;
  }
  for (int state = 0; state < num_states_; ++state) {
    int accelerators = 0;
    for (const Type& type : types_) {
      used_.push_back(state / type.stride % (type.count + 1));
      if (!type.is_cpu) accelerators += used_.back();
    }
    accelerators_used_.push_back(accelerators);
  }
  if (!problem.link_slowness.empty()) FindLinks(problem.link_slowness);
  for (Kind& kind : kinds_) kind.step = kind.replicas * types_[kind.type].stride + stage_stride_;
}

void StageChoices::FindLinks(const std::vector<double>& slowness) {
  for (int state = 0; state < num_states_; ++state) {
    int behind = 0;
    for (size_t t = 0; t < types_.size(); ++t) behind += Used(state, static_cast<int>(t));
    if (stage_stride_ > 0) behind = state / stage_stride_;
    const int place = num_stages_ - 1 - behind;
    StageLinks& links = links_.emplace_back();
    if (place > 0) links.before = slowness[place - 1];
    if (place >= 0 && behind > 0) links.behind = slowness[place];
  }
}

double StageChoices::CapacityBefore(int state, double bound_ms, double cpu_speed) const {
  double capacity = 0;
  for (size_t t = 0; t < types_.size(); ++t) {
    const int left = types_[t].count - Used(state, static_cast<int>(t));
    const double speed = types_[t].is_cpu ? cpu_speed : types_[t].speed;
    if (left > 0 && speed > 0) capacity += left * bound_ms * speed;
  }
  return capacity;
}

void StageChoices::AddEmptyStages(int state, Assignment& assignment) const {
  for (size_t t = 0; t < types_.size(); ++t) {
    const int type = static_cast<int>(t);
    for (int i = Used(state, type); i > 0; --i) {
      assignment.is_cpu.push_back(types_[t].is_cpu);
      assignment.choices.push_back({type, 1, first_level_});
    }
  }
}

}  // namespace autopart::internal
