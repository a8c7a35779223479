// What every operator of a model costs: the language between the profiler, the partitioner and
// the planner. Knows nothing of torch.
//
// A CostGraph is a directed acyclic hypergraph. A node is an operator, a value is what an operator
// produces (or an input of the model) with the nodes that read it; a value that crosses a cut is
// sent once to each stage that reads it, whatever the number of readers there.
//
// Units: times in milliseconds for one micro-batch, sizes in bytes. Ids are indices into the
// vectors. Nodes are in an order in which the model runs, so every edge goes to a higher index.
// For a graph made from an OpGraph, node i and value i are the OpGraph's node i and value i.
#ifndef AUTOPART_PARTITIONER_COST_GRAPH_H_
#define AUTOPART_PARTITIONER_COST_GRAPH_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace autopart {

inline constexpr int kModelInput = -1;  // producer of a value that the caller feeds in
inline constexpr int kNoGroup = -1;
inline constexpr int kNoView = -1;

// A parameter or buffer. Nodes refer to it by index; several nodes may use one (tied weights).
struct CostParameter {
  std::string name;      // the name in the user's state_dict
  int64_t elements = 0;  // numbers in it; 0 for buffers and constants, which have only bytes
  int64_t bytes = 0;
  bool trains = false;  // has a gradient and optimizer state

  bool operator==(const CostParameter&) const = default;
};

// An output of a node, or an input of the model.
struct CostValue {
  std::string name;
  int producer = kModelInput;
  std::vector<int> consumers;  // nodes, ascending, each once
  int64_t bytes = 0;           // what a send moves
  int64_t gradient_bytes = 0;  // what the gradient moves back; 0 where there is none
  // A value of a lower index whose memory this one shares (a view, or an in-place result); kNoView
  // where it has memory of its own. A stage holds a storage once, however many views it keeps of
  // it. A value that arrives from another stage has memory of its own there, whatever view_of says.
  int view_of = kNoView;
  int64_t storage_bytes = 0;  // of its own memory; 0 for views and for inputs of the model

  bool operator==(const CostValue&) const = default;
};

struct CostNode {
  std::string name;    // operator, for example "aten::linear"
  std::string module;  // path of the user's module, for example "transformer.h.3.mlp.c_fc"
  double forward_ms = 0;
  double backward_input_ms = 0;   // gradient of the inputs
  double backward_weight_ms = 0;  // gradient of the parameters
  std::vector<int> parameters;    // parameters and buffers that it reads or writes, ascending
  std::vector<int> saved_values;  // values that it keeps for its backward, ascending
  int64_t saved_bytes = 0;        // further bytes that only it keeps for its backward
  int64_t temporary_bytes = 0;    // scratch, gone when it ends
  // Nodes with one non-negative group stay on one stage (an in-place write and its readers).
  int group = kNoGroup;
  // A cheap node without tensor inputs (sizes, scalars, arange): stages that need its value may run
  // their own copy instead of receiving it.
  bool copyable = false;
  bool measured = false;  // time was measured, not estimated
  // What a forward needs of temporary_bytes, which have a backward's gradients too; -1: not known,
  // and all of it counts.
  int64_t forward_temporary_bytes = -1;

  int64_t ForwardTemporaryBytes() const {
    return forward_temporary_bytes < 0 ? temporary_bytes : forward_temporary_bytes;
  }
  bool operator==(const CostNode&) const = default;
};

// How fast an optimizer updates parameters.
struct UpdateRate {
  std::string optimizer;    // as a plan names it
  double bytes_per_ms = 0;  // of trained parameters

  bool operator==(const UpdateRate&) const = default;
};

// What else was measured on the machine of the times; zero or absent: not known.
struct CostMachine {
  double link_bytes_per_ms = 0;  // of a message from one rank to another
  double link_latency_ms = 0;    // of one without bytes to speak of
  std::vector<UpdateRate> updates;

  bool operator==(const CostMachine&) const = default;
};

struct CostGraph {
  std::string model_hash;  // of the OpGraph, empty for graphs from elsewhere
  std::string device;      // where the times come from: "cpu", "h100", ...
  int64_t samples = 0;     // in the micro-batch that the costs are of; 0: not known
  std::vector<CostParameter> parameters;
  std::vector<CostValue> values;
  std::vector<CostNode> nodes;
  std::vector<int> results;  // values handed back to the caller, ascending
  int loss = -1;             // value that is the loss, -1 without one
  CostMachine machine;
  // The nodes' times are what was measured or estimated, times this factor, which a run of a plan
  // gave (docs/accuracy.md).
  double scale = 1;

  bool operator==(const CostGraph&) const = default;
};

// Ids in range, edges forward, consumers sorted, costs finite and not negative, totals that fit
// into 64 bits. INVALID_ARGUMENT names the first node or value at fault. Run on every load.
absl::Status Validate(const CostGraph& graph);

// The versioned JSON form (see docs/partitioning.md). Loading validates.
std::string ToJson(const CostGraph& graph);
absl::StatusOr<CostGraph> CostGraphFromJson(std::string_view text);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_COST_GRAPH_H_
