// SGD and Adam for C++ programs, with the arithmetic of torch.optim's (Python programs use those).
//
//   autopart::Adam adam(executor.Parameters(), {});
//   executor.Step(batch);  adam.Step();  adam.ZeroGrad();
#ifndef AUTOPART_RUNTIME_OPTIMIZER_H_
#define AUTOPART_RUNTIME_OPTIMIZER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopart {

// Updates the parameters that require a gradient and have one. Holds references to the tensors.
class Optimizer {
 public:
  explicit Optimizer(const std::map<std::string, at::Tensor>& parameters);
  virtual ~Optimizer() = default;

  void Step();
  // Gradients become undefined, as zero_grad() makes them.
  void ZeroGrad();

 protected:
  virtual void Update(size_t index, at::Tensor& parameter, const at::Tensor& gradient) = 0;

  std::vector<at::Tensor> parameters_;
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const std::map<std::string, at::Tensor>& parameters, const SgdOptions& options);

 private:
  void Update(size_t index, at::Tensor& parameter, const at::Tensor& gradient) override;

  const SgdOptions options_;
  std::vector<at::Tensor> momentum_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;  // AdamW
};

class Adam final : public Optimizer {
 public:
  Adam(const std::map<std::string, at::Tensor>& parameters, const AdamOptions& options);

 private:
  void Update(size_t index, at::Tensor& parameter, const at::Tensor& gradient) override;

  const AdamOptions options_;
  std::vector<at::Tensor> mean_, square_;
  std::vector<int64_t> steps_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_OPTIMIZER_H_
