// Trains a model file by its plan inside a C++ program, one thread a device:
//
//   embed_training model.pt plan.json [steps]
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <ATen/Functions.h>

#include "runtime/executor.h"
#include "runtime/optimizer.h"

namespace {

// Stands for your data: a batch of what the model was saved with, once for each micro-batch.
std::vector<at::IValue> MakeBatch(const autopart::OpGraph& graph, int micro_batches) {
  std::vector<at::IValue> batch;
  for (const autopart::GraphInput& input : graph.inputs) {
    const autopart::TensorMeta& meta = *graph.values[input.value].tensor;
    std::vector<int64_t> sizes = meta.Sizes();
    if (input.batch_axis >= 0) sizes[input.batch_axis] *= micro_batches;
    const auto options = at::TensorOptions().dtype(meta.dtype);
    if (at::isIntegralType(meta.dtype, /*includeBool=*/true)) {
      batch.push_back(at::randint(input.index_bound.value_or(2), sizes, options));
    } else {
      batch.push_back(at::randn(sizes, options));
    }
  }
  return batch;
}

int Train(const char* model_path, const char* plan_path, int steps) {
  autopart::Model model = autopart::LoadModel(model_path);
  autopart::Plan plan = autopart::LoadPlan(plan_path);
  const auto batch = MakeBatch(model.graph, plan.micro_batches);
  autopart::Executor executor(plan, model, {});
  autopart::Adam adam(executor.Parameters(), {.lr = 1e-3});
  for (int step = 0; step < steps; ++step) {
    const autopart::StepResult result = executor.Step(batch);
    adam.Step();
    adam.ZeroGrad();
    std::printf("step %d  loss %.6f  %.2f ms\n", step, result.loss.item<double>(), result.step_ms);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: %s model.pt plan.json [steps]\n", argv[0]), 2;
  try {
    return Train(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 20);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
