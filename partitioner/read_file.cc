#include "partitioner/read_file.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>
#include <zlib.h>

#include "absl/strings/str_cat.h"

namespace autopart {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder"));
  }
  errno = 0;
  const gzFile file = gzopen(path.c_str(), "rb");  // reads plain files as they are
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  std::string content;
  std::array<char, 1 << 16> buffer;
  int count;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0) {
    content.append(buffer.data(), count);
  }
  int code = Z_OK;
  const std::string what = gzerror(file, &code);
  const int closed = gzclose(file);  // Z_BUF_ERROR: the file ends within its compressed data
  if (count < 0 || code != Z_OK || closed != Z_OK) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot read ", path, ": ", closed == Z_BUF_ERROR ? "the gzip file breaks off" : what));
  }
  return content;
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  const auto failed = [&] {
    return absl::UnknownError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  };
  std::error_code error;
  // Not a plain file (/dev/stdout, a pipe): nothing to replace.
  const bool special =
      std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error);
  const std::string target = special ? path : absl::StrCat(path, ".", getpid(), ".part");
  std::ofstream file(target, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) {
    const absl::Status status = failed();
    if (!special) std::remove(target.c_str());
    return status;
  }
  if (!special && std::rename(target.c_str(), path.c_str()) != 0) {
    const absl::Status status = failed();
    std::remove(target.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace autopart
