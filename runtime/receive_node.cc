#include "runtime/receive_node.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace autopart {

c10::intrusive_ptr<ReceiveNode> ReceiveNode::Attach(std::vector<at::Tensor>& tensors,
                                                    const std::vector<bool>& requires_grad) {
  auto node = c10::make_intrusive<ReceiveNode>();
  node->output_of_tensor_.assign(tensors.size(), -1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!requires_grad[i]) continue;
    node->output_of_tensor_[i] = static_cast<int>(node->num_inputs());
    torch::autograd::set_history(tensors[i], node);
  }
  return node;
}

torch::autograd::variable_list ReceiveNode::apply(torch::autograd::variable_list&& gradients) {
  gradients_ = std::move(gradients);
  return {};
}

std::vector<at::Tensor> ReceiveNode::TakeGradients() {
  std::vector<at::Tensor> taken(output_of_tensor_.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    const int output = output_of_tensor_[i];
    if (output >= 0 && output < static_cast<int>(gradients_.size())) {
      taken[i] = std::move(gradients_[output]);
    }
  }
  gradients_.clear();
  return taken;
}

}  // namespace autopart
