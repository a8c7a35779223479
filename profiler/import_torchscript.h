// TorchScript module -> OpGraph.
#ifndef AUTOPART_PROFILER_IMPORT_TORCHSCRIPT_H_
#define AUTOPART_PROFILER_IMPORT_TORCHSCRIPT_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "profiler/model.h"
#include "profiler/op_graph.h"

namespace torch::jit {
struct Module;
}

namespace autopart {

struct ImportOptions {
  // One per input of forward(), self excluded. Shapes are propagated from these.
  std::vector<InputSpec> inputs;
  std::optional<int> loss_output;
  bool loss_is_sum = false;
  // Names to use for parameters instead of the module's own paths (captures: "model." stripped).
  std::string strip_prefix;
  // Buffers that are not in the user's state_dict (names as in Parameter::name).
  std::vector<std::string> constants;
  // Captured in train mode; empty: the module's own `training` attribute.
  std::optional<bool> training;
};

// Inlines, lowers and imports forward(). Decomposes dropout (and attention with dropout) onto
// autopart::dropout_mask, rewrites devices to StageDevice, finds shared storages, alias classes and
// effects, and propagates shapes. Parameters may be meta tensors.
absl::StatusOr<Model> ImportTorchScript(const torch::jit::Module& module,
                                        const ImportOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_IMPORT_TORCHSCRIPT_H_
