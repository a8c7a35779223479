// What the verbs that read a model file share: its flags, and loading and costing it.
#ifndef AUTOPART_RUNTIME_CLI_MODEL_INPUT_H_
#define AUTOPART_RUNTIME_CLI_MODEL_INPUT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "partitioner/device.h"
#include "profiler/model.h"
#include "runtime/cli/command.h"

namespace CLI {
class App;
}

namespace autopart {

struct ModelFlags {
  std::string path;
  std::vector<std::string> inputs;         // --input, one for each input of the model
  std::string device;                      // --device; "auto" or empty: measure on this CPU
  std::optional<DeviceSpec> estimate_for;  // instead of --device
  bool training = true;
  // Measured in program order, on so many threads side by side; 0: each kind of operator alone.
  int at_once = 0;
};

// The model's path and --input.
void DeclareModel(CLI::App& app, ModelFlags& flags);
// --device.
void DeclareDevice(CLI::App& app, ModelFlags& flags);

// How many threads stand for so many ranks in a measurement: no more than there are cores, nor than
// eight, which keep the memory busy, as each has a copy of the model.
int ThreadsAtOnce(int num_ranks);

// Loads the model.
absl::StatusOr<Model> ReadModel(const ModelFlags& flags);
// Loads the model and costs it. Says on streams.err what takes long.
absl::StatusOr<CostGraph> LoadCostGraph(const ModelFlags& flags, Streams streams);

// The status with `where` in front of its message.
absl::Status In(const std::string& where, const absl::Status& status);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_MODEL_INPUT_H_
