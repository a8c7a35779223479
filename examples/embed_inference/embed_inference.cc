// Runs a model file by its plan inside a C++ program, without autograd, one thread a device:
//
//   embed_inference model.pt plan.json
#include <cstdio>
#include <exception>
#include <sstream>

#include <ATen/Functions.h>

#include "runtime/executor.h"

namespace {

// Stands for your requests: what the model was saved with, once for each micro-batch.
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

int Serve(const char* model_path, const char* plan_path) {
  autopart::Model model = autopart::LoadModel(model_path);
  autopart::Plan plan = autopart::LoadPlan(plan_path);
  autopart::Executor executor(plan, model, {});
  const auto outputs = executor.Forward(MakeBatch(model.graph, plan.micro_batches));
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::ostringstream sizes;
    sizes << outputs[i].sizes();
    std::printf("output %zu  %s  mean %.6f\n", i, sizes.str().c_str(),
                outputs[i].to(at::kDouble).mean().item<double>());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s model.pt plan.json\n", argv[0]), 2;
  try {
    return Serve(argv[1], argv[2]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
