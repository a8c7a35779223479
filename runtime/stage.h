// One stage on one rank: runs its compute actions and holds what each micro-batch keeps between
// them.
//
// Forward keeps gradient edges, not outputs (runtime knows a value's grad_fn and its number, the
// tensor itself goes when it was sent). Backward sums the gradients of a value over the stages that
// got it, in ascending order, executes the autograd engine on those edges, and collects what ended
// in the ReceiveNodes. Between F and B a micro-batch owns exactly what autograd saved.
#ifndef AUTOPART_RUNTIME_STAGE_H_
#define AUTOPART_RUNTIME_STAGE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/edge.h>

#include "pipeline/plan.h"
#include "profiler/op_graph.h"
#include "runtime/communicator.h"
#include "runtime/host_stage.h"
#include "runtime/message.h"
#include "runtime/receive_node.h"
#include "runtime/stage_program.h"

namespace autopart {

// What a step tells its stages.
struct StageStep {
  RunContext context;  // random_key is set per micro-batch
  uint64_t seed = 0, step = 0;
  bool backward = true;
  const std::vector<std::vector<at::IValue>>* inputs = nullptr;  // [micro-batch][input]
  const std::vector<double>* weights = nullptr;                  // [micro-batch]
  std::vector<std::vector<at::IValue>>* outputs = nullptr;       // [micro-batch][output]
};

class Stage {
 public:
  // Borrows the graph. parameters: by global name, at least those of the stage.
  Stage(const OpGraph& graph, const Plan& plan, int index,
        const std::map<std::string, at::Tensor>& parameters, const HostStage* host);
  ~Stage();

  void Begin(const StageStep& step);
  void Forward(int micro_batch);
  void Backward(int micro_batch);
  // Drops all that micro-batches hold.
  void Reset();

  // Edges are numbered by ascending peer stage.
  int FindIncoming(int peer_stage) const;
  int FindOutgoing(int peer_stage) const;
  OutgoingMessage& activation_to_send(int micro_batch, int outgoing);
  OutgoingMessage& gradient_to_send(int micro_batch, int incoming);
  IncomingMessage& activation(int micro_batch, int incoming);
  IncomingMessage& gradient(int micro_batch, int outgoing);
  // Sends in progress.
  std::unique_ptr<Operation>& sending_activation(int micro_batch, int outgoing);
  std::unique_ptr<Operation>& sending_gradient(int micro_batch, int incoming);

  int index() const { return index_; }
  // Of the stage's parameters that train.
  const std::vector<at::Tensor>& trained() const { return trained_; }
  const std::vector<int>& written_buffers() const;

 private:
  struct MicroBatch;
  MicroBatch& At(int micro_batch);
  void TakeReceived(MicroBatch& state);
  [[noreturn]] void ThrowUnplannedGradient(const ProgramEdge& edge,
                                           const IncomingMessage& message) const;
  void RunHost(MicroBatch& state, int micro_batch);
  void KeepSent(MicroBatch& state);
  void KeepResults(MicroBatch& state, int micro_batch);
  void CollectRoots(MicroBatch& state, int micro_batch);
  void SettleParameterGradients();
  void PackGradients(MicroBatch& state);

  const OpGraph& graph_;
  const int index_;
  const HostStage* const host_;
  StageProgram program_;
  StageProgram::Frame frame_;
  StageStep step_;
  std::vector<at::Tensor> trained_;
  bool gradients_settled_ = false;  // the first backward of the step has run
  std::vector<char> is_input_;      // by index into program_.sent(): an input of the model
  // Place of each value of an outgoing edge in program_.sent().
  std::vector<std::vector<int>> sent_index_;
  std::vector<std::unique_ptr<MicroBatch>> micro_batches_;
  // Scratch of Backward and KeepSent, kept for their capacity.
  torch::autograd::edge_list roots_;
  std::vector<at::Tensor> root_gradients_;
  std::vector<std::vector<at::Tensor>> send_memory_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_STAGE_H_
