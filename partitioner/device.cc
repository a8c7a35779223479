#include "partitioner/device.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace autopart {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kTera = 1e12 / 1e3;  // per second -> per millisecond
constexpr double kGiga = 1e9 / 1e3;

// Sources: NVIDIA's data sheets. H100 SXM: 67 TFLOP/s fp32 (989 with TF32 tensor cores / 2 for
// dense = 494), 989 bf16 dense, 3.35 TB/s, NVLink 900 GB/s both directions. A100 SXM 80 GB: 156
// TF32 dense, 312 bf16, 2.04 TB/s, NVLink 600 GB/s. V100 SXM2 32 GB: 15.7 fp32, 125 fp16, 0.9 TB/s,
// NVLink 300 GB/s. "cpu" is one core of a 2020s server with AVX-512: an order of magnitude only;
// measure where it matters. PyTorch's default for fp32 matrices is full fp32, not TF32.
// The link rate is one direction of NVLink; "cpu" means two processes of one host.
const std::array<DeviceSpec, 4>& Table() {
  static const std::array<DeviceSpec, 4> table = {{
      {"h100", 80 * kGiB, 67 * kTera, 989 * kTera, 3350 * kGiga, 0.6, 0.8, 0.004, 450 * kGiga,
       0.005},
      {"a100", 80 * kGiB, 19.5 * kTera, 312 * kTera, 2039 * kGiga, 0.6, 0.8, 0.004, 300 * kGiga,
       0.005},
      {"v100", 32 * kGiB, 15.7 * kTera, 125 * kTera, 900 * kGiga, 0.6, 0.8, 0.005, 150 * kGiga,
       0.005},
      {"cpu", 8 * kGiB, 0.1 * kTera, 0.1 * kTera, 10 * kGiga, 0.6, 0.8, 0.002, 5 * kGiga, 0.01},
  }};
  return table;
}

}  // namespace

absl::StatusOr<DeviceSpec> FindDevice(std::string_view name) {
  for (const DeviceSpec& spec : Table()) {
    if (spec.name == name) return spec;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown device '", std::string(name), "': known are ", absl::StrJoin(DeviceNames(), ", ")));
}

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  for (const DeviceSpec& spec : Table()) names.push_back(spec.name);
  return names;
}

}  // namespace autopart
