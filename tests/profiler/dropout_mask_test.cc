#include "profiler/internal/dropout_mask.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

namespace autopart::internal {
namespace {

at::Tensor Ones(std::vector<int64_t> sizes, at::ScalarType type = at::kFloat) {
  return at::ones(sizes, at::TensorOptions().dtype(type));
}

TEST(DropoutMask, KeepsTheRightShareAndScalesIt) {
  for (const double p : {0.1, 0.25, 0.5, 0.9}) {
    const int64_t n = 1 << 20;
    const at::Tensor mask = DropoutMask(Ones({n}, at::kDouble), p, 42);
    const double kept = mask.gt(0).sum().item<int64_t>();
    const double sigma = std::sqrt(n * p * (1 - p));
    EXPECT_NEAR(kept, n * (1 - p), 5 * sigma) << p;
    EXPECT_DOUBLE_EQ(mask.max().item<double>(), 1 / (1 - p));
    EXPECT_DOUBLE_EQ(mask.min().item<double>(), 0);
  }
}

TEST(DropoutMask, NeighboursAndKeysAreIndependent) {
  const int64_t n = 1 << 18;
  const at::Tensor a = DropoutMask(Ones({n}, at::kDouble), 0.5, 1) - 1;  // +-1
  const at::Tensor b = DropoutMask(Ones({n}, at::kDouble), 0.5, 2) - 1;
  const double sigma = 1 / std::sqrt(static_cast<double>(n));
  EXPECT_LT(std::abs((a * b).mean().item<double>()), 5 * sigma);
  for (const int64_t lag : {1, 2, 4, 64, 256}) {
    const at::Tensor product = a.slice(0, 0, n - lag) * a.slice(0, lag, n);
    EXPECT_LT(std::abs(product.mean().item<double>()), 5 * sigma) << lag;
  }
}

TEST(DropoutMask, DependsOnKeyAndIndexOnly) {
  const at::Tensor mask = DropoutMask(Ones({6, 10}), 0.3, 7);
  EXPECT_TRUE(at::equal(mask, DropoutMask(Ones({6, 10}), 0.3, 7)));
  EXPECT_FALSE(at::equal(mask, DropoutMask(Ones({6, 10}), 0.3, 8)));
  // Strides of `like` are kept and do not move values.
  const at::Tensor transposed = Ones({10, 6}).t();
  const at::Tensor strided = DropoutMask(transposed, 0.3, 7);
  EXPECT_EQ(strided.strides(), transposed.strides());
  EXPECT_TRUE(at::equal(mask, strided));
  // A longer tensor begins like a shorter one.
  const at::Tensor longer = DropoutMask(Ones({1000}), 0.3, 7);
  EXPECT_TRUE(at::equal(longer.slice(0, 0, 60), mask.reshape({60})));
  // Types differ in precision only.
  const at::Tensor half = DropoutMask(Ones({6, 10}, at::kBFloat16), 0.3, 7);
  EXPECT_TRUE(at::equal(half.gt(0), mask.gt(0)));
}

TEST(DropoutMask, TakesTheEndsOfTheRange) {
  EXPECT_TRUE(at::equal(DropoutMask(Ones({100}), 0.0, 3), Ones({100})));
  EXPECT_TRUE(at::equal(DropoutMask(Ones({100}), 1.0, 3), Ones({100}) * 0));
  EXPECT_EQ(DropoutMask(Ones({0, 3}), 0.5, 3).numel(), 0);
  EXPECT_THROW(DropoutMask(Ones({1}), 1.5, 3), c10::Error);
}

TEST(DropoutMask, HasNoGradientAndAMetaKernel) {
  RegisterDropoutMask();
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("autopart::dropout_mask", "")
                      .typed<at::Tensor(const at::Tensor&, double, int64_t)>();
  const at::Tensor x = Ones({4}).requires_grad_(true);
  EXPECT_FALSE(op.call(x, 0.5, 1).requires_grad());
  const at::Tensor meta = at::empty({3, 2}, at::TensorOptions().device(at::kMeta));
  EXPECT_TRUE(op.call(meta, 0.5, 1).is_meta());
}

}  // namespace
}  // namespace autopart::internal
