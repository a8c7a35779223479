// Where a stage's autograd graph begins: the gradient function of what other stages sent.
//
// A received tensor is no leaf: it is given this node as its grad_fn. So in-place operators work on
// it, its memory goes when no operator saved it, and backward ends here, leaving the gradients to
// be sent back. One node stands for all tensors of one message.
#ifndef AUTOPART_RUNTIME_RECEIVE_NODE_H_
#define AUTOPART_RUNTIME_RECEIVE_NODE_H_

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

namespace autopart {

class ReceiveNode : public torch::autograd::Node {
 public:
  // Makes the tensors outputs of a new node; those with requires_grad[i] false stay plain.
  static c10::intrusive_ptr<ReceiveNode> Attach(std::vector<at::Tensor>& tensors,
                                                const std::vector<bool>& requires_grad);

  // After backward: one gradient for each tensor of Attach, undefined where none arrived.
  std::vector<at::Tensor> TakeGradients();

  std::string name() const override { return "ReceiveNode"; }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  std::vector<int> output_of_tensor_;  // -1 for plain tensors
  torch::autograd::variable_list gradients_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_RECEIVE_NODE_H_
