#include "runtime/stage.h"

#include <algorithm>
#include <stdexcept>

#include <ATen/ops/full.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

namespace autopart {

using torch::autograd::Edge;

// What one micro-batch holds. The objects stay for the next step, their contents go.
struct Stage::MicroBatch {
  std::vector<IncomingMessage> activations;  // by incoming edge: RECV_F to F
  std::vector<c10::intrusive_ptr<ReceiveNode>> receive_nodes;
  std::vector<OutgoingMessage> sends;  // by outgoing edge: F to WAIT_F
  std::vector<std::unique_ptr<Operation>> sending;
  std::vector<std::vector<Edge>> gradient_edges;  // by sent value, by tensor: F to B
  Edge loss_edge;
  std::vector<int64_t> loss_sizes;
  at::TensorOptions loss_options;
  std::vector<IncomingMessage> gradients;       // by outgoing edge: RECV_B to B
  std::vector<OutgoingMessage> gradient_sends;  // by incoming edge: B to WAIT_B
  std::vector<std::unique_ptr<Operation>> sending_gradients;
};

namespace {

// The memory to send a tensor from: its own where that is exactly the tensor, so that a send holds
// what the stage holds anyway, and never a larger storage behind a view; else a dense copy.
at::Tensor SendMemory(const at::Tensor& tensor, bool is_input) {
  if (IsSendable(tensor) && (is_input || tensor.nbytes() == tensor.storage().nbytes())) {
    return tensor.detach();
  }
  const at::Tensor dense = MakeDense(tensor);
  return dense.is_alias_of(tensor) ? dense.clone() : dense;
}

// A gradient with memory of its own: the engine may hand out views, broadcasts, and one tensor
// twice.
void OwnDenseMemory(at::Tensor& gradient) {
  if (IsSendable(gradient) && gradient.use_count() == 1 && gradient.storage().use_count() == 1 &&
      gradient.nbytes() == gradient.storage().nbytes()) {
    return;
  }
  const at::Tensor dense = MakeDense(gradient);
  gradient = dense.is_alias_of(gradient) ? dense.clone() : dense;
}

std::string DescribeValue(const OpGraph& graph, int value) {
  std::string text = "value %" + std::to_string(value);
  const int producer = graph.values[value].producer;
  if (producer != kNoNode) {
    text += " of " + graph.nodes[producer].op + " in module '" + graph.nodes[producer].module_path +
            "'";
  }
  return text;
}

}  // namespace

Stage::Stage(const OpGraph& graph, const Plan& plan, int index,
             const std::map<std::string, at::Tensor>& parameters, const HostStage* host)
    : graph_(graph),
      index_(index),
      host_(host),
      program_(graph, plan, index, host != nullptr),
      frame_(program_.MakeFrame()) {
  for (const ProgramInput& parameter : program_.parameters()) {
    const Parameter& described = graph.parameters[parameter.index];
    const auto it = parameters.find(described.name);
    if (it == parameters.end() || !it->second.defined()) {
      throw std::invalid_argument("stage " + std::to_string(index) + " needs parameter '" +
                                  described.name + "', which was not given");
    }
    frame_[parameter.value] = it->second;
    if (described.trains && !described.is_buffer) trained_.push_back(it->second);
  }
  const std::vector<int>& sent = program_.sent();
  for (const int value : sent) {
    is_input_.push_back(graph.values[value].producer == kNoNode);
  }
  for (const ProgramEdge& edge : program_.outgoing()) {
    std::vector<int>& places = sent_index_.emplace_back();
    for (const int value : edge.values) {
      places.push_back(
          static_cast<int>(std::lower_bound(sent.begin(), sent.end(), value) - sent.begin()));
    }
  }
  send_memory_.resize(sent.size());
  micro_batches_.resize(plan.micro_batches);
}

Stage::~Stage() = default;

const std::vector<int>& Stage::written_buffers() const { return program_.written_buffers(); }

Stage::MicroBatch& Stage::At(int micro_batch) {
  auto& state = micro_batches_[micro_batch];
  if (state == nullptr) {
    state = std::make_unique<MicroBatch>();
    const size_t incoming = program_.incoming().size();
    const size_t outgoing = program_.outgoing().size();
    state->activations.resize(incoming);
    state->receive_nodes.resize(incoming);
    state->gradient_sends.resize(incoming);
    state->sending_gradients.resize(incoming);
    state->sends.resize(outgoing);
    state->sending.resize(outgoing);
    state->gradients.resize(outgoing);
    state->gradient_edges.resize(program_.sent().size());
  }
  return *state;
}

namespace {

int FindEdge(const std::vector<ProgramEdge>& edges, int peer_stage) {
  for (size_t e = 0; e < edges.size(); ++e) {
    if (edges[e].peer_stage == peer_stage) return static_cast<int>(e);
  }
  return -1;
}

}  // namespace

int Stage::FindIncoming(int peer_stage) const { return FindEdge(program_.incoming(), peer_stage); }
int Stage::FindOutgoing(int peer_stage) const { return FindEdge(program_.outgoing(), peer_stage); }

OutgoingMessage& Stage::activation_to_send(int j, int outgoing) { return At(j).sends[outgoing]; }
OutgoingMessage& Stage::gradient_to_send(int j, int incoming) {
  return At(j).gradient_sends[incoming];
}
IncomingMessage& Stage::activation(int j, int incoming) { return At(j).activations[incoming]; }
IncomingMessage& Stage::gradient(int j, int outgoing) { return At(j).gradients[outgoing]; }
std::unique_ptr<Operation>& Stage::sending_activation(int j, int outgoing) {
  return At(j).sending[outgoing];
}
std::unique_ptr<Operation>& Stage::sending_gradient(int j, int incoming) {
  return At(j).sending_gradients[incoming];
}

void Stage::Begin(const StageStep& step) {
  step_ = step;
  gradients_settled_ = false;
}

void Stage::Reset() {
  for (auto& state : micro_batches_) state.reset();
  program_.Clear(frame_);
}

void Stage::Forward(int micro_batch) {
  MicroBatch& state = At(micro_batch);
  c10::AutoGradMode grad_mode(step_.backward);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  TakeReceived(state);
  if (host_ != nullptr) {
    RunHost(state, micro_batch);
  } else {
    for (const ProgramInput& input : program_.inputs()) {
      const at::IValue& given = (*step_.inputs)[micro_batch][input.index];
      const bool detach = given.isTensor() && given.toTensor().requires_grad();
      frame_[input.value] = detach ? at::IValue(given.toTensor().detach()) : given;
    }
    RunContext context = step_.context;
    context.random_key = RandomKey(step_.seed, step_.step, micro_batch);
    program_.Run(frame_, context);
  }
  KeepSent(state);
  KeepResults(state, micro_batch);
  program_.Clear(frame_);
}

// Moves the received values into their slots; those that require a gradient get a ReceiveNode.
void Stage::TakeReceived(MicroBatch& state) {
  for (size_t e = 0; e < state.activations.size(); ++e) {
    const ProgramEdge& edge = program_.incoming()[e];
    IncomingMessage& message = state.activations[e];
    const std::vector<bool>& requires_grad = message.requires_grad();
    const bool any = step_.backward && std::find(requires_grad.begin(), requires_grad.end(),
                                                 true) != requires_grad.end();
    if (any && edge.has_gradient) {
      state.receive_nodes[e] = ReceiveNode::Attach(message.tensors(), requires_grad);
    } else if (any) {
      ThrowUnplannedGradient(edge, message);
    }
    std::vector<at::IValue> values = message.TakeValues();
    if (values.size() != edge.values.size()) {
      throw std::runtime_error("stage " + std::to_string(edge.peer_stage) + " sent " +
                               std::to_string(values.size()) + " values where " +
                               std::to_string(edge.values.size()) +
                               " were planned: the ranks run different plans");
    }
    for (size_t i = 0; i < values.size(); ++i) frame_[edge.values[i]] = std::move(values[i]);
  }
}

void Stage::ThrowUnplannedGradient(const ProgramEdge& edge, const IncomingMessage& message) const {
  size_t tensor = 0;
  std::string name = "a value";
  for (size_t i = 0; i < message.values().size(); ++i) {
    bool requires_grad = false;
    ForEachTensor(message.values()[i],
                  [&](const at::Tensor&) { requires_grad |= message.requires_grad()[tensor++]; });
    if (!requires_grad) continue;
    name = DescribeValue(graph_, edge.values[i]);
    break;
  }
  throw std::runtime_error(name + " comes from stage " + std::to_string(edge.peer_stage) +
                           " and requires a gradient, but the plan has no gradient on that edge: "
                           "plan again with the model as it is now");
}

void Stage::RunHost(MicroBatch&, int micro_batch) {
  std::vector<at::IValue> inputs;
  for (const ProgramEdge& edge : program_.incoming()) {
    for (const int value : edge.values) inputs.push_back(std::move(frame_[value]));
  }
  std::vector<at::IValue> outputs = host_->forward(micro_batch, std::move(inputs));
  const std::vector<int>& sent = program_.sent();
  if (outputs.size() != sent.size()) {
    throw std::runtime_error("the host stage returned " + std::to_string(outputs.size()) +
                             " values, its edges send " + std::to_string(sent.size()));
  }
  for (size_t i = 0; i < sent.size(); ++i) frame_[sent[i]] = std::move(outputs[i]);
}

void Stage::KeepSent(MicroBatch& state) {
  const std::vector<int>& slots = program_.sent_slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    std::vector<Edge>& edges = state.gradient_edges[i];
    std::vector<at::Tensor>& memory = send_memory_[i];
    edges.clear();
    memory.clear();
    ForEachTensor(frame_[slots[i]], [&](const at::Tensor& tensor) {
      memory.push_back(SendMemory(tensor, is_input_[i]));
      if (!step_.backward) return;
      edges.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                             : Edge());
    });
  }
  for (size_t e = 0; e < state.sends.size(); ++e) {
    OutgoingMessage& message = state.sends[e];
    message.Begin(sent_index_[e].size());
    for (const int place : sent_index_[e]) message.Add(frame_[slots[place]], send_memory_[place]);
    message.End();
  }
  for (auto& memory : send_memory_) memory.clear();
}

void Stage::KeepResults(MicroBatch& state, int micro_batch) {
  state.loss_edge = Edge();
  if (step_.backward && program_.loss() != kNoValue) {
    const at::Tensor& loss = frame_[program_.loss()].toTensor();
    if (loss.requires_grad()) {
      if (loss.numel() != 1) {
        throw std::runtime_error("the loss has " + std::to_string(loss.numel()) +
                                 " elements: it must be one number (use a reduction)");
      }
      state.loss_edge = torch::autograd::impl::gradient_edge(loss);
      state.loss_sizes = loss.sizes().vec();
      state.loss_options = loss.options();
    }
  }
  for (const ProgramResult& result : program_.results()) {
    at::IValue& place = (*step_.outputs)[micro_batch][result.output];
    if (result.value == kNoValue) {
      place = result.constant;
    } else {
      place = MapTensors(frame_[result.value],
                         [](const at::Tensor& tensor) { return tensor.detach(); });
    }
  }
}

void Stage::Backward(int micro_batch) {
  MicroBatch& state = At(micro_batch);
  CollectRoots(state, micro_batch);
  if (host_ != nullptr && host_->backward) host_->backward(micro_batch);
  if (!roots_.empty()) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    torch::autograd::Engine::get_default_engine().execute(roots_, root_gradients_,
                                                          /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
  roots_.clear();
  root_gradients_.clear();
  if (!gradients_settled_) SettleParameterGradients();
  PackGradients(state);
}

// The gradient edges of all values that some later stage sent a gradient for, and the loss.
void Stage::CollectRoots(MicroBatch& state, int micro_batch) {
  roots_.clear();
  root_gradients_.clear();
  // By sent value and tensor, summed over the stages in ascending order.
  std::vector<std::vector<at::Tensor>> sums(state.gradient_edges.size());
  for (size_t v = 0; v < sums.size(); ++v) sums[v].resize(state.gradient_edges[v].size());
  for (size_t e = 0; e < state.gradients.size(); ++e) {
    if (!program_.outgoing()[e].has_gradient) continue;
    std::vector<at::IValue> gradients = state.gradients[e].TakeValues();
    size_t next = 0;
    for (const int place : sent_index_[e]) {
      for (at::Tensor& sum : sums[place]) {
        TORCH_CHECK(next < gradients.size(), "stage ", program_.outgoing()[e].peer_stage,
                    " sent too few gradients");
        at::IValue& gradient = gradients[next++];
        if (gradient.isNone()) continue;
        if (sum.defined()) {
          sum.add_(gradient.toTensor());
        } else {
          sum = std::move(gradient).toTensor();
        }
      }
    }
  }
  for (size_t v = 0; v < sums.size(); ++v) {
    for (size_t t = 0; t < sums[v].size(); ++t) {
      if (!sums[v][t].defined() || !state.gradient_edges[v][t].is_valid()) continue;
      roots_.push_back(std::move(state.gradient_edges[v][t]));
      root_gradients_.push_back(std::move(sums[v][t]));
    }
    state.gradient_edges[v].clear();
  }
  if (state.loss_edge.is_valid()) {
    roots_.push_back(std::move(state.loss_edge));
    root_gradients_.push_back(
        at::full(state.loss_sizes, (*step_.weights)[micro_batch], state.loss_options));
  }
  state.loss_edge = Edge();
}

// After the first backward of a step each parameter's gradient gets memory of its own: the engine
// may have left a view of something larger, or one tensor for two parameters.
void Stage::SettleParameterGradients() {
  gradients_settled_ = true;
  for (const at::Tensor& parameter : trained_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided) continue;
    if (gradient.storage().use_count() > 1 || gradient.nbytes() != gradient.storage().nbytes()) {
      gradient = gradient.clone();
    }
  }
}

void Stage::PackGradients(MicroBatch& state) {
  for (size_t e = 0; e < state.gradient_sends.size(); ++e) {
    if (!program_.incoming()[e].has_gradient) continue;
    OutgoingMessage& message = state.gradient_sends[e];
    std::vector<at::Tensor> gradients(state.activations[e].requires_grad().size());
    if (state.receive_nodes[e] != nullptr) gradients = state.receive_nodes[e]->TakeGradients();
    state.receive_nodes[e].reset();
    message.Begin(gradients.size());
    for (at::Tensor& gradient : gradients) {
      if (!gradient.defined()) {
        message.Add(at::IValue(), {});
        continue;
      }
      OwnDenseMemory(gradient);
      const at::IValue value(gradient);
      message.Add(value, std::span<const at::Tensor>(&gradient, 1));
    }
    message.End();
  }
}

}  // namespace autopart
