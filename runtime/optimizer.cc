// The order of operations is torch.optim's for one tensor at a time (foreach=False), so results are
// equal to the bit. Adam: Kingma, Ba (2015); decoupled decay: Loshchilov, Hutter (2019).
#include "runtime/optimizer.h"

#include <cmath>

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace autopart {

Optimizer::Optimizer(const std::map<std::string, at::Tensor>& parameters) {
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad()) parameters_.push_back(tensor);
  }
}

void Optimizer::Step() {
  c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (gradient.defined()) Update(i, parameters_[i], gradient);
  }
}

void Optimizer::ZeroGrad() {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

Sgd::Sgd(const std::map<std::string, at::Tensor>& parameters, const SgdOptions& options)
    : Optimizer(parameters), options_(options), momentum_(parameters_.size()) {}

void Sgd::Update(size_t index, at::Tensor& parameter, const at::Tensor& gradient) {
  at::Tensor direction = gradient;
  if (options_.weight_decay != 0) direction = direction.add(parameter, options_.weight_decay);
  if (options_.momentum != 0) {
    at::Tensor& buffer = momentum_[index];
    if (!buffer.defined()) {
      buffer = direction.clone();
    } else {
      buffer.mul_(options_.momentum).add_(direction, 1 - options_.dampening);
    }
    direction = options_.nesterov ? direction.add(buffer, options_.momentum) : buffer;
  }
  parameter.add_(direction, -options_.lr);
}

Adam::Adam(const std::map<std::string, at::Tensor>& parameters, const AdamOptions& options)
    : Optimizer(parameters),
      options_(options),
      mean_(parameters_.size()),
      square_(parameters_.size()),
      steps_(parameters_.size()) {}

void Adam::Update(size_t index, at::Tensor& parameter, const at::Tensor& gradient) {
  at::Tensor direction = gradient;
  if (!mean_[index].defined()) {
    mean_[index] = at::zeros_like(parameter);
    square_[index] = at::zeros_like(parameter);
  }
  const double step = static_cast<double>(++steps_[index]);
  if (options_.weight_decay != 0) {
    if (options_.decoupled_weight_decay) {
      parameter.mul_(1 - options_.lr * options_.weight_decay);
    } else {
      direction = direction.add(parameter, options_.weight_decay);
    }
  }
  mean_[index].lerp_(direction, 1 - options_.beta1);
  square_[index].mul_(options_.beta2).addcmul_(direction, direction, 1 - options_.beta2);
  const double step_size = options_.lr / (1 - std::pow(options_.beta1, step));
  const double scale = std::sqrt(1 - std::pow(options_.beta2, step));
  const at::Tensor denominator = square_[index].sqrt().div_(scale).add_(options_.eps);
  parameter.addcdiv_(mean_[index], denominator, -step_size);
}

}  // namespace autopart
