// A whole file, plain or gzip.
#ifndef AUTOPART_PARTITIONER_READ_FILE_H_
#define AUTOPART_PARTITIONER_READ_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace autopart {

// NOT_FOUND, or INVALID_ARGUMENT for a file that breaks off.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Plain; replaces the file only when all is written.
absl::Status WriteFile(const std::string& path, const std::string& content);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_READ_FILE_H_
