// Sizes in bytes as people write them.
#ifndef AUTOPART_PARTITIONER_BYTE_SIZE_H_
#define AUTOPART_PARTITIONER_BYTE_SIZE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace autopart {

// "80GiB", "1.5 GB", "512M", "1000": binary with an i (KiB MiB GiB TiB), else decimal (k M G T,
// with or without B). INVALID_ARGUMENT says what is understood.
absl::StatusOr<int64_t> ParseByteSize(std::string_view text);

// "1.50 GiB", "312 bytes".
std::string FormatByteSize(int64_t bytes);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_BYTE_SIZE_H_
