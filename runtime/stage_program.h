// One stage of a plan as a flat list of operator calls over numbered slots.
//
// Operators are looked up once and called through the dispatcher (callBoxed), so autograd and every
// other key see what eager PyTorch would show them. Slots are value ids. A slot is freed by the
// last call that reads it: what outlives the forward is what autograd saved, what is sent, and what
// is handed back. Lists and tuples are operands, built per call; control flow is left to the shared
// interpreter (profiler/run_node.h), over the same slots.
#ifndef AUTOPART_RUNTIME_STAGE_PROGRAM_H_
#define AUTOPART_RUNTIME_STAGE_PROGRAM_H_

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "pipeline/plan.h"
#include "profiler/op_graph.h"
#include "profiler/run_node.h"

namespace autopart {

// One message a micro-batch to or from another stage.
struct ProgramEdge {
  int peer_stage = -1;
  bool has_gradient = false;
  std::vector<int> values;
};

struct ProgramResult {
  int output = 0;        // index into the graph's outputs
  int value = kNoValue;  // kNoValue: the constant
  at::IValue constant;
};

// An input of the model that the caller feeds in, or a parameter.
struct ProgramInput {
  int index = 0;  // into the graph's inputs or parameters
  int value = kNoValue;
};

// The plan without the constants among its parameter ids: a cost graph counts them after the
// graph's parameters, and every stage has its own anyway.
Plan WithoutConstants(Plan plan, const OpGraph& graph);

class StageProgram {
 public:
  using Frame = std::vector<at::IValue>;

  // Borrows the graph. Throws std::invalid_argument where plan and graph do not fit, naming the
  // value, and where an operator is unknown. The program of a host stage has edges only.
  StageProgram(const OpGraph& graph, const Plan& plan, int stage, bool is_host);
  ~StageProgram();
  StageProgram(StageProgram&&) noexcept;

  // A frame that holds the graph's constant tensors; the caller adds parameters.
  Frame MakeFrame() const;
  // Runs the stage on what the frame holds. Afterwards it holds parameters, constants and the kept
  // values (sent, results, loss): take them, then Clear. What an operator throws becomes a
  // std::runtime_error that names operator and module.
  void Run(Frame& frame, const RunContext& context) const;
  // Empties all slots but parameters and constants.
  void Clear(Frame& frame) const;

  const std::vector<ProgramInput>& parameters() const { return parameters_; }
  const std::vector<ProgramInput>& inputs() const { return inputs_; }
  // By ascending peer stage; values as in the plan's edge.
  const std::vector<ProgramEdge>& incoming() const { return incoming_; }
  const std::vector<ProgramEdge>& outgoing() const { return outgoing_; }
  // The values of the outgoing edges, each once, ascending; and the slots that hold what is to be
  // sent. They differ where an operator writes into the value later: what later stages read is the
  // value from before, so the program keeps a copy.
  const std::vector<int>& sent() const { return sent_; }
  const std::vector<int>& sent_slots() const { return sent_slots_; }
  const std::vector<ProgramResult>& results() const { return results_; }
  int loss() const { return loss_; }  // value; kNoValue: the loss is not made here
  // Indices of the buffers that the stage's operators write (BatchNorm's statistics).
  const std::vector<int>& written_buffers() const { return written_buffers_; }

 private:
  struct Call;
  struct Builder;
  static void RunCall(const Call& call, Frame& frame, const RunContext& context,
                      std::vector<at::IValue>& stack);

  std::vector<Call> calls_;
  int num_slots_ = 0;  // value ids, then copies for sends
  std::vector<std::pair<int, at::Tensor>> constants_;
  std::vector<ProgramInput> parameters_, inputs_;
  std::vector<ProgramEdge> incoming_, outgoing_;
  std::vector<int> sent_, sent_slots_;
  std::vector<ProgramResult> results_;
  std::vector<int> kept_;  // sent, results, loss, and what nobody reads
  std::vector<int> written_buffers_;
  int loss_ = kNoValue;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_STAGE_PROGRAM_H_
