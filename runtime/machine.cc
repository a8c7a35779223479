// Rates are those of the quicker quarter of repetitions, as what disturbs one makes it longer.
#include "runtime/machine.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>

#include "runtime/communicator.h"
#include "runtime/make_optimizer.h"
#include "runtime/transports/in_process.h"

namespace autopart {
namespace {

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double LowQuartile(std::vector<double> times) {
  if (times.empty()) return 0;
  const size_t at = times.size() / 4;
  std::nth_element(times.begin(), times.begin() + at, times.end());
  return times[at];
}

std::map<std::string, at::Tensor> CopyTrained(const Model& model) {
  c10::AutoGradMode no_grad(false);
  std::map<std::string, at::Tensor> copies;
  for (const Parameter& parameter : model.graph.parameters) {
    const auto own = model.tensors.find(parameter.name);
    if (!parameter.trains || own == model.tensors.end() || own->second.is_meta()) continue;
    at::Tensor copy = own->second.detach().clone();
    copy.requires_grad_(true);
    copy.mutable_grad() = at::ones_like(copy.detach());
    copies[parameter.name] = copy;
  }
  return copies;
}

// Trained bytes a millisecond; 0 where nothing trains.
double MeasureUpdates(const Model& model, const std::string& optimizer,
                      const MachineOptions& options) {
  constexpr int kLeast = 3, kMost = 50;
  std::barrier together(options.at_once);
  std::mutex mutex;
  std::vector<double> times;
  int64_t bytes = 0;
  const auto work = [&](int thread) {
    if (options.on_thread) options.on_thread(thread);
    at::set_num_threads(1);
    const std::map<std::string, at::Tensor> parameters = CopyTrained(model);
    const std::unique_ptr<Optimizer> update = MakeOptimizer(optimizer, 1e-6, parameters);
    update->Step();  // makes its state
    std::vector<double> own;
    together.arrive_and_wait();
    const Clock::time_point start = Clock::now();
    while (own.size() < kLeast ||
           (own.size() < kMost && MillisecondsSince(start) < options.budget_ms)) {
      const Clock::time_point begin = Clock::now();
      update->Step();
      own.push_back(MillisecondsSince(begin));
    }
    std::scoped_lock lock(mutex);
    times.insert(times.end(), own.begin(), own.end());
    bytes = 0;
    for (const auto& [name, tensor] : parameters) bytes += tensor.nbytes();
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < options.at_once; ++t) threads.emplace_back(work, t);
  }
  const double ms = LowQuartile(std::move(times));
  return ms > 0 ? bytes / ms : 0;
}

// One way, from the sender's buffer into the receiver's. Each message is of other memory, as are
// those of a step.
double MessageMs(size_t bytes, const MachineOptions& options) {
  constexpr int kWarmUp = 40, kRounds = 200;
  constexpr size_t kSpan = 32 << 20;  // more than a second-level cache holds
  constexpr std::chrono::seconds kDeadline(60);
  const auto communicators = MakeInProcessGroup(2);
  std::vector<double> times;
  const auto work = [&](int rank) {
    if (options.on_thread) options.on_thread(rank);
    const size_t places = std::max<size_t>(1, kSpan / bytes);
    std::vector<std::byte> mine(places * bytes), other(places * bytes);
    Communicator& communicator = *communicators[rank];
    for (int i = 0; i < kWarmUp + kRounds; ++i) {
      const size_t at = i % places * bytes;
      const ConstBytes sent = ConstBytes(mine).subspan(at, bytes);
      const Clock::time_point start = Clock::now();
      if (rank == 0) communicator.Send(1, {sent}, Clock::now() + kDeadline);
      communicator.Receive(1 - rank, {Bytes(other).subspan(at, bytes)}, Clock::now() + kDeadline);
      if (rank == 1) communicator.Send(0, {sent}, Clock::now() + kDeadline);
      if (rank == 0 && i >= kWarmUp) times.push_back(MillisecondsSince(start) / 2);
    }
  };
  {
    std::jthread other(work, 1);
    std::jthread one(work, 0);
  }
  return LowQuartile(std::move(times));
}

}  // namespace

CostMachine MeasureMachine(const Model& model, const MachineOptions& options) {
  CostMachine machine;
  for (const std::string& optimizer : OptimizerNames()) {
    const double rate = MeasureUpdates(model, optimizer, options);
    if (rate > 0) machine.updates.push_back({optimizer, rate});
  }
  constexpr size_t kSmall = 64, kLarge = 1 << 20;
  const double small_ms = MessageMs(kSmall, options), large_ms = MessageMs(kLarge, options);
  machine.link_latency_ms = small_ms;
  if (large_ms > small_ms) machine.link_bytes_per_ms = (kLarge - kSmall) / (large_ms - small_ms);
  return machine;
}

}  // namespace autopart
