// Runs one node of an OpGraph: the one interpreter that shape propagation, measurement and the
// executor share.
//
// CompileNode resolves a node once (operator handle, schema positions, blocks); RunNode then reads
// its operands from a vector of slots indexed by value id, calls the operator boxed through torch's
// dispatcher, and writes the results into the slots. Autograd applies as in eager mode. Executors
// that want a tighter loop use the same CompiledNode and the steps below one by one.
#ifndef AUTOPART_PROFILER_RUN_NODE_H_
#define AUTOPART_PROFILER_RUN_NODE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <absl/status/statusor.h>

#include "profiler/op_graph.h"

namespace autopart {

// Everything that a node needs beside its operands.
struct RunContext {
  c10::Device device = c10::kCPU;  // what StageDevice means
  // false: dropout keeps everything, batch_norm uses its running statistics and counts no batch.
  bool training = true;
  uint64_t random_key = 0;  // RandomKey(seed, step, micro-batch)
  uint64_t iteration = 0;   // of the enclosing loops
};

// Key of a micro-batch of a step, and of one random node in it (never 0 bits lost: a full mix).
uint64_t RandomKey(uint64_t seed, uint64_t step, uint64_t micro_batch);
uint64_t NodeRandomKey(const RunContext& context, uint64_t random_stream);

struct CompiledBlock;

struct CompiledNode {
  enum class Kind {
    kDispatcher,   // callBoxed on `handle`
    kDropoutMask,  // the same, with the random key as last argument
    kJitOperator,  // scalar and list operators that TorchScript has and the dispatcher has not
    kPrimitive,    // list and tuple structure, written by hand
    kIf,
    kLoop,
  };
  Kind kind = Kind::kPrimitive;
  const Node* node = nullptr;  // borrowed: the graph outlives the compiled node
  std::optional<c10::OperatorHandle> handle;
  std::function<void(std::vector<c10::IValue>&)> call;  // kJitOperator, kPrimitive
  int training_argument = -1;                           // position of a `training` or `train` flag
  bool skipped_in_eval = false;  // counts batches of a BatchNorm: no effect outside training
  bool vararg = false;
  std::vector<CompiledBlock> blocks;
};

struct CompiledBlock {
  const Block* block = nullptr;
  std::vector<CompiledNode> nodes;
};

// UNIMPLEMENTED where no such operator exists, naming operator and module.
absl::StatusOr<CompiledNode> CompileNode(const Node& node);
absl::StatusOr<std::vector<CompiledNode>> CompileNodes(const std::vector<Node>& nodes);

// Value of an argument tree. Lists and tuples are built anew on every call.
c10::IValue Evaluate(const Argument& argument, const std::vector<c10::IValue>& slots,
                     const RunContext& context);

// The steps of RunNode for a node that is neither If nor Loop. CallOperator takes the arguments
// off `stack` and leaves the results; random operators that are not decomposed run under one
// process-wide lock with the CPU generator seeded and then restored.
void PushArguments(const CompiledNode& node, const std::vector<c10::IValue>& slots,
                   const RunContext& context, std::vector<c10::IValue>& stack);
void CallOperator(const CompiledNode& node, const RunContext& context,
                  std::vector<c10::IValue>& stack);
void StoreResults(const CompiledNode& node, std::vector<c10::IValue>& stack,
                  std::vector<c10::IValue>& slots);

// Throws what the operator throws (c10::Error).
void RunNode(const CompiledNode& node, std::vector<c10::IValue>& slots, const RunContext& context);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_RUN_NODE_H_
