// Values of any kind as bytes on a wire.
//
// A message is a header of fixed size, an overflow piece where the description does not fit into
// it, and one piece a tensor: usually header and payloads, so a message costs one transfer of a few
// hundred bytes beyond its tensors. The description is the tree of values (None, numbers, strings,
// lists, tuples, dicts, tensors); a tensor is described by dtype, sizes, strides and whether it
// requires a gradient. Dense tensors keep their strides and are sent in place; others must be made
// dense first (MakeDense).
#ifndef AUTOPART_RUNTIME_MESSAGE_H_
#define AUTOPART_RUNTIME_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include "runtime/communicator.h"

namespace autopart {

inline constexpr size_t kMessageHeaderBytes = 512;

// What a tensor's memory must look like to be sent without a copy: strided, on the CPU, each
// element once and no gaps, no lazy conjugation or negation.
bool IsSendable(const at::Tensor& tensor);
// A detached tensor with dense memory; `tensor` itself (detached) where IsSendable.
at::Tensor MakeDense(const at::Tensor& tensor);

// Calls visit on every tensor of a tree, in order. The order numbers the tensors of a message.
void ForEachTensor(const at::IValue& value, c10::function_ref<void(const at::Tensor&)> visit);
// A copy of the tree with every tensor replaced.
at::IValue MapTensors(const at::IValue& value,
                      c10::function_ref<at::Tensor(const at::Tensor&)> map);

// A message being sent: owns what its pieces point to. Begin, Add each value, End, send Pieces.
class OutgoingMessage {
 public:
  void Begin(size_t num_values);
  // memory: for each tensor of the value a sendable one with the same contents (MakeDense).
  // Throws std::runtime_error for a value that has no form on the wire (an object).
  void Add(const at::IValue& value, std::span<const at::Tensor> memory);
  void Add(const at::IValue& value);  // makes the tensors dense itself
  void End();
  std::vector<ConstBytes> Pieces() const;
  // Drops the tensors.
  void Clear();

  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  alignas(64) std::array<std::byte, kMessageHeaderBytes> header_;
  std::vector<std::byte> description_;  // kept between messages, its capacity too
  bool overflows_ = false;
  std::vector<at::Tensor> tensors_;
};

// Reads a message: Receive, or the pieces in turn, then TakeValues.
class IncomingMessage {
 public:
  // Blocks until the message from `peer` is here.
  void Receive(Communicator& communicator, int peer, Clock::time_point deadline);

  // The pieces in turn, for receivers that do not block.
  Bytes HeaderPiece() { return header_; }
  std::vector<Bytes> OverflowPieces();  // after the header
  std::vector<Bytes> TensorPieces();    // after the overflow: allocates the tensors

  const std::vector<at::IValue>& values() const { return values_; }
  // Hands the values over and keeps no reference to their tensors.
  std::vector<at::IValue> TakeValues();
  // In the order of ForEachTensor: whether the sender's tensor required a gradient.
  const std::vector<bool>& requires_grad() const { return requires_grad_; }
  std::vector<at::Tensor>& tensors() { return tensors_; }

 private:
  alignas(64) std::array<std::byte, kMessageHeaderBytes> header_;
  std::vector<std::byte> description_;
  std::vector<at::IValue> values_;
  std::vector<at::Tensor> tensors_;
  std::vector<bool> requires_grad_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_MESSAGE_H_
