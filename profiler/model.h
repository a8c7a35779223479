// A model in memory: its graph and its tensors.
#ifndef AUTOPART_PROFILER_MODEL_H_
#define AUTOPART_PROFILER_MODEL_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <absl/status/statusor.h>

#include "profiler/op_graph.h"

namespace autopart {

struct Model {
  OpGraph graph;
  // By global name; tensors of parameters that share storage appear once.
  std::map<std::string, at::Tensor> tensors;
};

// What an input looks like: 'int64[8,128]<50257' (dtype, shape, exclusive bound for integers), or a
// number or truth value for an input that is no tensor: '16000', '0.5', 'true'. 'ids=int64[8,128]'
// names it.
struct InputSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::optional<int64_t> bound;
  int batch_axis = 0;
  std::optional<at::IValue> scalar;  // set: not a tensor
};
absl::StatusOr<InputSpec> ParseInputSpec(std::string_view text);
std::string ToString(const InputSpec& spec);

// Reads a TorchScript file (traced or scripted; or saved by autopart.save, which stores input
// specification and loss in the extra file "autopart.json"):
//
//   {"version": 1,
//    "inputs": [{"name": "ids", "dtype": "int64", "shape": [8, 128], "bound": 50257,
//                "batch_axis": 0}],        one per argument of forward(); bound may be null or
//                absent;
//                                          {"name": "rate", "value": 16000} for one that is no
//                                          tensor
//    "loss": 0,                            index of a flattened output, null without a loss
//    "loss_is_sum": false,
//    "training": true,                     captured in train mode
//    "strip_prefix": "model.",             taken off the module's paths, so that names are the
//    user's "constants": ["rotary.inv_freq"]}     buffers that are not in the user's state_dict
//
// Only "version" and "inputs" are required. `inputs` given here override the stored
// specification; FAILED_PRECONDITION, with an example of --input, where neither exists.
// The graph comes back with shapes. INVALID_ARGUMENT: no TorchScript file, truncated, wrong inputs.
absl::StatusOr<Model> LoadModelFile(const std::string& path,
                                    const std::vector<InputSpec>& inputs = {});

}  // namespace autopart

#endif  // AUTOPART_PROFILER_MODEL_H_
