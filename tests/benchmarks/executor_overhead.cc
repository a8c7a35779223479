// Microseconds a micro-batch that the executor adds to the operators themselves.
//
// Model: 2 stages of 2 x Linear(16) with mean-squared error, micro-batches of 4 samples (a stage's
// forward and backward take about 100 us). CPU time, so a busy machine does not count: all ranks on
// one thread (schedule, messages, both stages) against plain PyTorch calls for the same
// micro-batch. Then wall time with a thread per rank against one stage's share of the plain time.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>

#include "runtime/executor.h"
#include "tests/testing/graph_builder.h"
#include "tests/testing/plan_from_stages.h"

namespace autopart {
namespace {

using testing::GraphBuilder;

constexpr int kSteps = 200;

Model FourLinears() {
  GraphBuilder g;
  int h = g.Input("x", at::randn({4, 16}));
  const int target = g.Input("target", at::randn({4, 16}));
  for (int i = 0; i < 4; ++i) {
    const std::string name = "fc" + std::to_string(i);
    const int weight = g.Parameter(name + ".weight", at::randn({16, 16}) / 4);
    const int bias = g.Parameter(name + ".bias", at::randn({16}));
    h = g.Call("aten::linear", {GraphBuilder::V(h), GraphBuilder::V(weight), GraphBuilder::V(bias)},
               name);
  }
  g.Loss(g.Call("aten::mse_loss", {GraphBuilder::V(h), GraphBuilder::V(target)}));
  return g.model();
}

double CpuUs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

double WallUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The median over steps of clock() around body(), a micro-batch.
template <typename Body>
double MedianUs(double (*clock)(), int micro_batches, Body&& body) {
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    const double begin = clock();
    body();
    times.push_back((clock() - begin) / micro_batches);
  }
  std::nth_element(times.begin(), times.begin() + kSteps / 2, times.end());
  return times[kSteps / 2];
}

void Measure(int micro_batches) {
  const Model model = FourLinears();
  const auto parameter = [&](int i, const char* what) {
    return model.tensors.at("fc" + std::to_string(i) + what);
  };
  std::vector<at::Tensor> x, target;
  for (int j = 0; j < micro_batches; ++j) {
    x.push_back(at::randn({4, 16}));
    target.push_back(at::randn({4, 16}));
  }
  const auto plain = [&] {
    for (int j = 0; j < micro_batches; ++j) {
      at::Tensor h = x[j];
      for (int i = 0; i < 4; ++i) h = at::linear(h, parameter(i, ".weight"), parameter(i, ".bias"));
      at::mse_loss(h, target[j]).mul(1.0 / micro_batches).backward();
    }
    for (const auto& [name, tensor] : model.tensors) tensor.mutable_grad() = at::Tensor();
  };
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < micro_batches; ++j) inputs.push_back({x[j], target[j]});
  const Plan plan =
      testing::PlanFromStages(model.graph, {{0, 0, 1, 1, 1}, {}, "1f1b", micro_batches});
  const auto step = [&](Executor& executor) {
    executor.StepMicroBatches(inputs);
    executor.ZeroGrad();
  };
  ExecutorOptions one_thread;
  one_thread.mode = ExecutorOptions::Mode::kOneThread;
  Executor one(plan, testing::CopyModel(model), one_thread);
  Executor threads(plan, testing::CopyModel(model), {});
  MedianUs(CpuUs, micro_batches, plain);  // warm up
  const double plain_us = MedianUs(CpuUs, micro_batches, plain);
  const double one_us = MedianUs(CpuUs, micro_batches, [&] { step(one); });
  const double wall_us = MedianUs(WallUs, micro_batches, [&] { step(threads); });
  std::printf(
      "%3d micro-batches: plain %.1f us CPU, executor %.1f us CPU (%.1f us more for 2 stages); "
      "2 threads %.1f us wall, %.1f us beyond half of plain\n",
      micro_batches, plain_us, one_us, one_us - plain_us, wall_us, wall_us - plain_us / 2);
}

}  // namespace
}  // namespace autopart

int main() {
  at::set_num_threads(1);
  for (const int micro_batches : {8, 32, 64}) autopart::Measure(micro_batches);
}
