#include "profiler/internal/shrink.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

namespace autopart::internal {
namespace {

constexpr int64_t kLargeSize = 16;
constexpr int64_t kPrimes[] = {5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43};

std::set<int64_t> SizesOf(const OperatorSignature& signature) {
  std::set<int64_t> sizes;
  for (const OperandSpec& operand : signature.operands) {
    sizes.insert(operand.sizes.begin(), operand.sizes.end());
  }
  return sizes;
}

// A small size and a prime for each of `wanted`; those that cannot be made smaller stay.
std::vector<ShrunkSize> Choose(const std::set<int64_t>& wanted, const std::set<int64_t>& all,
                               int64_t keep_powers_of_two) {
  std::vector<ShrunkSize> chosen;
  size_t next = 0;
  for (const int64_t large : wanted) {
    const int64_t power = std::gcd(large, keep_powers_of_two);
    for (; next < std::size(kPrimes); ++next) {
      const int64_t prime = kPrimes[next];
      const bool clashes = std::any_of(all.begin(), all.end(), [&](int64_t size) {
        return wanted.count(size) == 0 && size > 0 && size % prime == 0;
      });
      if (!clashes) break;
    }
    if (next == std::size(kPrimes)) return {};
    if (power * kPrimes[next] >= large) continue;
    chosen.push_back({large, power * kPrimes[next], kPrimes[next]});
    ++next;
  }
  // One that stays must not look like a multiple of another's prime.
  for (const int64_t size : all) {
    const bool shrunk = std::any_of(chosen.begin(), chosen.end(),
                                    [&](const ShrunkSize& s) { return s.large == size; });
    if (shrunk || size == 0) continue;
    for (const ShrunkSize& s : chosen) {
      if (size % s.prime == 0) return {};
    }
  }
  return chosen;
}

int64_t SmallSize(int64_t size, const std::vector<ShrunkSize>& sizes) {
  for (const ShrunkSize& s : sizes) {
    if (s.large == size) return s.small;
  }
  return size;
}

// Dense in the memory order of before; what was expanded stays so.
void ShrinkSpec(OperandSpec& spec, const std::vector<ShrunkSize>& sizes) {
  std::vector<size_t> order(spec.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return spec.strides[a] > spec.strides[b]; });
  for (int64_t& size : spec.sizes) size = SmallSize(size, sizes);
  int64_t stride = 1;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    if (spec.strides[*axis] == 0 && spec.sizes[*axis] != 1) continue;
    spec.strides[*axis] = stride;
    stride *= std::max<int64_t>(spec.sizes[*axis], 1);
  }
}

void ShrinkArgument(Argument& argument, const std::vector<ShrunkSize>& sizes) {
  if (auto* list = std::get_if<ArgumentList>(&argument.is)) {
    for (Argument& item : list->items) ShrinkArgument(item, sizes);
    return;
  }
  auto* constant = std::get_if<c10::IValue>(&argument.is);
  if (constant == nullptr) return;
  if (constant->isInt()) {
    *constant = SmallSize(constant->toInt(), sizes);
  } else if (constant->isIntList()) {
    c10::List<int64_t> small;
    for (const int64_t size : constant->toIntVector()) small.push_back(SmallSize(size, sizes));
    *constant = small;
  }
}

std::optional<ShrunkSignature> Shrink(const OperatorSignature& signature,
                                      std::vector<ShrunkSize> sizes) {
  if (sizes.empty()) return std::nullopt;
  ShrunkSignature shrunk{signature, std::move(sizes)};
  for (OperandSpec& operand : shrunk.signature.operands) ShrinkSpec(operand, shrunk.sizes);
  for (OperandSpec& result : shrunk.signature.results) ShrinkSpec(result, shrunk.sizes);
  for (Argument& argument : shrunk.signature.node.args) ShrinkArgument(argument, shrunk.sizes);
  return shrunk;
}

}  // namespace

int64_t ShrunkSignature::FullBytes(int64_t bytes) const {
  if (bytes <= 0) return bytes;
  double full = static_cast<double>(bytes);
  for (const ShrunkSize& size : sizes) {
    for (int64_t rest = bytes; rest % size.prime == 0; rest /= size.prime) {
      full *= static_cast<double>(size.large) / static_cast<double>(size.small);
    }
  }
  return std::llround(full);
}

std::vector<ShrunkSignature> WaysToShrink(const OperatorSignature& signature) {
  const std::vector<int>& outputs = signature.node.outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] != kNoValue && !signature.result_is_tensor[i]) return {};
  }
  if (!signature.node.blocks.empty()) return {};
  const std::set<int64_t> all = SizesOf(signature);
  const std::set<int64_t> large(all.upper_bound(kLargeSize), all.end());
  std::vector<ShrunkSignature> ways;
  if (auto shrunk = Shrink(signature, Choose(large, all, 8))) ways.push_back(*std::move(shrunk));
  if (!signature.operands.empty() && !signature.operands[0].sizes.empty()) {
    const std::set<int64_t> batch = {signature.operands[0].sizes[0]};
    if (auto shrunk = Shrink(signature, Choose(batch, all, 1))) ways.push_back(*std::move(shrunk));
  }
  return ways;
}

}  // namespace autopart::internal
