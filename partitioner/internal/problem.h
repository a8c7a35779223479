// The form that all algorithms work on: a directed acyclic hypergraph with memory, cut into a chain
// of stages. A CostGraph with options and a published dnn-partitioning instance both become one.
//
// A node here is a set of the source's elements that stay together. A tensor is a hyperedge: each
// stage that it touches pays it once, unless it is inside. Reduction (reduce.h) makes nodes larger
// and never changes the optimum.
#ifndef AUTOPART_PARTITIONER_INTERNAL_PROBLEM_H_
#define AUTOPART_PARTITIONER_INTERNAL_PROBLEM_H_

#include <limits>
#include <vector>

#include "partitioner/cost_graph.h"
#include "partitioner/partitioner.h"

namespace autopart::internal {

inline constexpr int kMaxRecomputeLevels = 8;
inline constexpr int kCaller = -1;  // producer of the model's inputs: at home on the first stage

struct Tensor {
  int producer = kCaller;
  std::vector<int> nodes;  // that touch it, the producer too; ascending, each once
  double forward_ms = 0;   // from the producer to a reader
  double backward_ms = 0;  // its gradient, the other way
};

// Bytes that a stage holds once if it has any of the nodes (a parameter with several users).
struct SharedBytes {
  std::vector<int> nodes;  // ascending, each once
  double bytes = 0;
  double gradient_bytes = 0;
};

// A value that is kept for backward, or that such a value is a view of, or that a node which may be
// recomputed reads. On a stage with its
// producer it is the memory of view_of, or storage_bytes of its own; elsewhere it came as a message
// of `bytes`.
struct SavedValue {
  int producer = kCaller;
  int view_of = -1;  // index into Problem::saved_values, smaller
  double bytes = 0;
  double storage_bytes = 0;
  int level = kMaxRecomputeLevels;  // from which on its producer is recomputed
};

// A value that a node reads where it is recomputed, from a level on.
struct ReadAgain {
  int value = 0;  // into Problem::saved_values
  int level = 0;
  auto operator<=>(const ReadAgain&) const = default;
};

struct Node {
  std::vector<int> elements;  // of the source
  double work_ms = 0;         // on an accelerator; infinity where it cannot run there
  double cpu_ms = 0;
  double resident_bytes = 0;   // parameters that no other node uses, with their state
  double gradient_bytes = 0;   // of those parameters
  double flight_bytes = 0;     // private bytes for each micro-batch in flight
  double temporary_bytes = 0;  // the largest of its elements
  std::vector<int> saves;      // into Problem::saved_values, ascending
  // Only where stages may recompute. By the level from which on the work is done again.
  std::vector<double> again_ms, again_flight_bytes;
  std::vector<ReadAgain> reads;               // by value, each once
  std::vector<int> successors, predecessors;  // nodes, ascending, each once
};

struct DeviceType {
  int count = 1;
  double speed = 1;  // work_ms done in a millisecond
  double memory_bytes = std::numeric_limits<double>::infinity();
};

struct Problem {
  int num_elements = 0;
  std::vector<Node> nodes;
  std::vector<Tensor> tensors;
  std::vector<SharedBytes> shared;
  std::vector<SavedValue> saved_values;

  int num_stages = 1;  // accelerators
  int num_cpus = 0;    // stages without memory limit or communication cost
  Objective objective = Objective::kSum;
  bool allow_empty_stages = false;
  double memory_bytes = std::numeric_limits<double>::infinity();
  std::vector<int> in_flight = {1};  // by stages behind; see PartitionOptions

  // Where devices are counted apart from stages. Empty: num_stages accelerators with memory_bytes,
  // one for each stage. Else a stage takes one of `replicas` devices of a type, all of them
  // together no more than there are; the stages are num_stages, or any number up to that where
  // stages may be empty.
  std::vector<DeviceType> device_types;
  std::vector<int> replicas = {1};  // allowed, ascending
  // Others are allowed too: what the ones above cannot do may be done, so it is no proof.
  bool more_replicas_are_allowed = false;
  double all_reduce_ms_per_byte = 0;
  int micro_batches = 0;  // of a step; 0: not known, very many

  // How many times slower than the fastest link the one between stage s and s + 1 is: at least 1,
  // num_stages - 1 of them. Empty: all the same. See stage_choice.h.
  std::vector<double> link_slowness;

  // Recompute levels that stages choose from: first_recompute_level .. num_recompute_levels - 1.
  int first_recompute_level = 0;
  int num_recompute_levels = 1;

  // Do stages choose more than their nodes?
  bool HasStageOptions() const { return !device_types.empty() || num_recompute_levels > 1; }
};

// What a stage runs on, and how.
struct StageChoice {
  int type = 0;  // of device; see StageChoices::Kind
  int replicas = 1;
  int recompute_level = 0;
};

// An answer: for each node its place in the chain, and for each place what it is.
struct Assignment {
  std::vector<int> stage_of_node;
  std::vector<bool> is_cpu;          // by stage
  std::vector<StageChoice> choices;  // by stage
};

// The elements of a CostGraph are its nodes. With replicas or recompute the stages of the problem
// have the options of stage_choice.h. The graph is valid, options are checked.
Problem MakeProblem(const CostGraph& graph, const PartitionOptions& options);

// The problem whose nodes are the classes of `label` (dense, 0..num_labels-1). Classes that
// wait for each other give a cyclic problem, which GlueCycles mends.
Problem Contract(const Problem& problem, const std::vector<int>& label, int num_labels);

// Dense labels for the classes of a union-find forest or any other labelling, in order of first
// appearance; returns their number.
int MakeDense(std::vector<int>& label);

// The node that needs most by itself, and no less than how much: its parameters, private bytes and
// temporaries with the fewest micro-batches in flight.
struct LargestNode {
  int node = 0;
  double bytes = 0;
};
LargestNode FindLargestNode(const Problem& problem);

// Place of each element.
std::vector<int> StageOfElement(const Problem& problem, const std::vector<int>& stage_of_node);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_PROBLEM_H_
