// SGD and Adam against the numbers that torch.optim gives for the same three steps.
#include "runtime/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace autopart {
namespace {

void ExpectTrajectory(
    const std::function<std::unique_ptr<Optimizer>(const std::map<std::string, at::Tensor>&)>& make,
    const std::vector<double>& expected) {
  const at::Tensor p =
      (at::arange(4, at::kDouble) * 0.5 - 0.6).detach().clone().requires_grad_(true);
  const auto optimizer = make({{"p", p}, {"frozen", at::ones({2})}});
  for (int t = 1; t <= 3; ++t) {
    p.mutable_grad() = p.detach() * 0.1 * t + 0.3;
    optimizer->Step();
  }
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(p[i].item<double>(), expected[i], 1e-15) << i;
  optimizer->ZeroGrad();
  EXPECT_FALSE(p.grad().defined());
}

template <typename Kind, typename Options>
auto Make(const Options& options) {
  return [options](const std::map<std::string, at::Tensor>& parameters) {
    return std::unique_ptr<Optimizer>(new Kind(parameters, options));
  };
}

TEST(Sgd, FollowsTorch) {
  ExpectTrajectory(Make<Sgd>(SgdOptions{.lr = 0.1}),
                   {-0.6522744, -0.18172739999999998, 0.2888196, 0.7593665999999999});
  ExpectTrajectory(
      Make<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01}),
      {-0.696796997376, -0.239421248896, 0.217954499584, 0.6753302480639999});
  ExpectTrajectory(Make<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true}),
                   {-0.7460865696, -0.3165318966, 0.11302277640000001, 0.5425774494});
}

TEST(Adam, FollowsTorch) {
  ExpectTrajectory(Make<Adam>(AdamOptions{.lr = 0.1}), {-0.8836286867162887, -0.39764246482765586,
                                                        0.09973475390584424, 0.5995825106554371});
  ExpectTrajectory(
      Make<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.05}),
      {-0.8749036395140917, -0.39704088068822685, 0.09983813820165463, 0.5995269470186599});
  ExpectTrajectory(
      Make<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.05, .decoupled_weight_decay = true}),
      {-0.8735538542933863, -0.3946741045283469, 0.09527172858966351, 0.5876411797229766});
}

}  // namespace
}  // namespace autopart
