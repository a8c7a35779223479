// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011):
// block b of four words is a bijection of the counter (b, 0) under the key, so blocks are
// independent and the loop over lanes vectorises.
#include "profiler/internal/dropout_mask.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

// One clone a vector width, chosen when the program starts. Sanitizers run before the resolver can.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define AUTOPART_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AUTOPART_VECTOR_CLONES
#endif

namespace autopart::internal {
namespace {

constexpr int kLanes = 64;  // Philox blocks at a time
constexpr int kWords = 4;

// words[w * kLanes + l]: word w of Philox block first_block + l.
AUTOPART_VECTOR_CLONES
void Philox(uint64_t key, uint64_t first_block, uint32_t* words) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t block = first_block + static_cast<uint64_t>(l);
    c0[l] = static_cast<uint32_t>(block);
    c1[l] = static_cast<uint32_t>(block >> 32);
    c2[l] = 0;
    c3[l] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[l];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[l];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[l] ^ k0;
      const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[l] ^ k1;
      c0[l] = n0;
      c1[l] = static_cast<uint32_t>(p1);
      c2[l] = n2;
      c3[l] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int l = 0; l < kLanes; ++l) {
    words[0 * kLanes + l] = c0[l];
    words[1 * kLanes + l] = c1[l];
    words[2 * kLanes + l] = c2[l];
    words[3 * kLanes + l] = c3[l];
  }
}

// Element i of a chunk of kLanes * kWords takes word i / kLanes of lane i % kLanes, so that both
// loops run over neighbouring memory.
template <typename Scalar>
void Fill(Scalar* out, int64_t count, double p, uint64_t key) {
  constexpr int64_t kChunk = kLanes * kWords;
  const auto threshold = static_cast<uint64_t>(std::llround(std::ldexp(p, 32)));
  const Scalar keep = p < 1 ? static_cast<Scalar>(1.0 / (1.0 - p)) : static_cast<Scalar>(0);
  const Scalar drop = static_cast<Scalar>(0);
  if (threshold >= (uint64_t{1} << 32)) {
    std::fill(out, out + count, drop);
    return;
  }
  const auto limit = static_cast<uint32_t>(threshold);
  std::array<uint32_t, kChunk> words;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    Philox(key, static_cast<uint64_t>(begin / kWords), words.data());
    const int64_t n = std::min(kChunk, count - begin);
    for (int64_t i = 0; i < n; ++i) out[begin + i] = words[i] >= limit ? keep : drop;
  }
}

at::Tensor DropoutMaskMeta(const at::Tensor& like, double /*p*/, int64_t /*key*/) {
  return at::empty_like(like);
}

at::Tensor DropoutMaskAutograd(const at::Tensor& like, double p, int64_t key) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("autopart::dropout_mask", "")
                             .typed<at::Tensor(const at::Tensor&, double, int64_t)>();
  at::AutoDispatchBelowAutograd below;
  return op.call(like, p, key);
}

TORCH_LIBRARY(autopart, m) {
  m.def("dropout_mask(Tensor like, float p, int key) -> Tensor");
  m.impl("dropout_mask", torch::dispatch(c10::DispatchKey::CPU, DropoutMask));
  m.impl("dropout_mask", torch::dispatch(c10::DispatchKey::Meta, DropoutMaskMeta));
  m.impl("dropout_mask", torch::dispatch(c10::DispatchKey::Autograd, DropoutMaskAutograd));
}

}  // namespace

void RegisterDropoutMask() {}

at::Tensor DropoutMask(const at::Tensor& like, double p, int64_t key) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "dropout probability must be in [0, 1], got ", p);
  at::Tensor mask = at::empty_like(like);
  at::Tensor rows = mask.is_contiguous() ? mask : at::empty(like.sizes(), like.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, rows.scalar_type(), "dropout_mask",
      [&] { Fill(rows.data_ptr<scalar_t>(), rows.numel(), p, static_cast<uint64_t>(key)); });
  if (!rows.is_same(mask)) mask.copy_(rows);
  return mask;
}

}  // namespace autopart::internal
