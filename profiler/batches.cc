#include "profiler/batches.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace autopart {
namespace {

const TensorMeta& MetaOf(const OpGraph& graph, const GraphInput& input) {
  const std::optional<TensorMeta>& meta = graph.values.at(input.value).tensor;
  if (!meta.has_value()) {
    throw std::invalid_argument("input '" + input.name + "' has no shape in the model");
  }
  return *meta;
}

at::Tensor RandomTensor(const TensorMeta& meta, std::optional<int64_t> bound,
                        at::Generator& generator) {
  at::Tensor tensor = at::empty(meta.Sizes(), at::TensorOptions().dtype(meta.dtype));
  constexpr int64_t kWithoutBound = 2;
  if (tensor.is_floating_point() || tensor.is_complex()) {
    tensor.normal_(0, 1, generator);
  } else if (meta.dtype == at::kBool) {
    tensor.fill_(true);  // masks: what is not hidden
  } else {
    tensor.random_(0, bound.value_or(kWithoutBound), generator);
  }
  return tensor;
}

// The inputs of a file, checked against the model's.
std::vector<at::Tensor> ReadInputs(const std::string& path, const OpGraph& graph) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::invalid_argument("cannot read " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  at::IValue value;
  try {
    value = torch::jit::pickle_load(bytes);
  } catch (const c10::Error& error) {
    throw std::invalid_argument(
        path + ": want a file of torch.save([input, ...]): " + error.what_without_backtrace());
  }
  std::vector<at::IValue> items;
  if (value.isList()) {
    for (const at::IValue& item : value.toListRef()) items.push_back(item);
  } else if (value.isTuple()) {
    items = value.toTupleRef().elements().vec();
  } else if (value.isTensor()) {
    items = {value};
  } else {
    throw std::invalid_argument(path + ": want a list of tensors, not " + value.tagKind());
  }
  if (items.size() != graph.inputs.size()) {
    throw std::invalid_argument(path + ": the model takes " + std::to_string(graph.inputs.size()) +
                                " inputs, the file holds " + std::to_string(items.size()));
  }
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < items.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    const std::string name = path + ": input " + std::to_string(i) + " ('" + input.name + "')";
    if (input.scalar) {  // what the model was captured with
      inputs.emplace_back();
      continue;
    }
    if (!items[i].isTensor()) {
      throw std::invalid_argument(name + " is no tensor but " + items[i].tagKind());
    }
    const at::Tensor tensor = items[i].toTensor();
    const TensorMeta& meta = MetaOf(graph, input);
    std::vector<int64_t> sizes = tensor.sizes().vec();
    std::vector<int64_t> wanted = meta.Sizes();
    if (input.batch_axis >= 0 && sizes.size() == wanted.size() && !sizes.empty()) {
      sizes[input.batch_axis] = wanted[input.batch_axis] = 0;
    }
    if (sizes != wanted || tensor.scalar_type() != meta.dtype) {
      throw std::invalid_argument(name + " is " + c10::str(tensor.scalar_type(), tensor.sizes()) +
                                  ", the model takes " + c10::str(meta.dtype, meta.Sizes()) +
                                  " a micro-batch");
    }
    if (input.index_bound && tensor.numel() > 0 &&
        (tensor.min().item<int64_t>() < 0 || tensor.max().item<int64_t>() >= *input.index_bound)) {
      throw std::invalid_argument(name + " has numbers outside 0 to " +
                                  std::to_string(*input.index_bound - 1));
    }
    inputs.push_back(tensor);
  }
  return inputs;
}

bool IsSplit(const GraphInput& input, const TensorMeta& meta) {
  return input.batch_axis >= 0 && input.batch_axis < static_cast<int>(meta.sizes.size());
}

}  // namespace

Batches RandomBatches(const OpGraph& graph, int micro_batches, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  Batches batches;
  batches.steps.emplace_back(micro_batches);
  for (std::vector<at::IValue>& micro_batch : batches.steps[0]) {
    for (const GraphInput& input : graph.inputs) {
      micro_batch.push_back(input.scalar ? *input.scalar
                                         : at::IValue(RandomTensor(MetaOf(graph, input),
                                                                   input.index_bound, generator)));
    }
  }
  return batches;
}

Batches LoadBatches(const std::string& path, const OpGraph& graph, int micro_batches) {
  const std::vector<at::Tensor> inputs = ReadInputs(path, graph);
  std::optional<int64_t> steps;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    if (input.scalar || !IsSplit(input, MetaOf(graph, input))) continue;
    const int64_t samples = MetaOf(graph, input).Sizes()[input.batch_axis];
    const int64_t held = inputs[i].size(input.batch_axis);
    const int64_t whole = held / (samples * micro_batches);
    if (whole < 1) {
      throw std::invalid_argument(path + ": input '" + input.name + "' has " +
                                  std::to_string(held) + " samples, a step takes " +
                                  std::to_string(samples * micro_batches));
    }
    steps = std::min(steps.value_or(whole), whole);
  }
  Batches batches;
  batches.steps.resize(steps.value_or(1));
  for (size_t s = 0; s < batches.steps.size(); ++s) {
    for (int j = 0; j < micro_batches; ++j) {
      std::vector<at::IValue>& micro_batch = batches.steps[s].emplace_back();
      for (size_t i = 0; i < inputs.size(); ++i) {
        const GraphInput& input = graph.inputs[i];
        if (input.scalar) {
          micro_batch.push_back(*input.scalar);
        } else if (!IsSplit(input, MetaOf(graph, input))) {
          micro_batch.push_back(inputs[i]);
        } else {
          const int64_t samples = MetaOf(graph, input).Sizes()[input.batch_axis];
          const int64_t first = (static_cast<int64_t>(s) * micro_batches + j) * samples;
          micro_batch.push_back(inputs[i].narrow(input.batch_axis, first, samples).contiguous());
        }
      }
    }
  }
  return batches;
}

}  // namespace autopart
