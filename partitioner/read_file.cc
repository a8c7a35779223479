#include "partitioner/read_file.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <unistd.h>
#include <zlib.h>

#include "absl/strings/str_cat.h"

namespace autopart {
namespace {

// All members of a gzip file. By hand, because gzread takes some files that break off for whole.
absl::StatusOr<std::string> Inflate(const std::string& compressed) {
  z_stream stream = {};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) return absl::InternalError("zlib failed");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  std::string content;
  std::array<char, 1 << 16> buffer;
  int code = Z_OK;
  while (code == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = buffer.size();
    code = inflate(&stream, Z_NO_FLUSH);
    content.append(buffer.data(), buffer.size() - stream.avail_out);
    if (code == Z_STREAM_END && stream.avail_in > 0) code = inflateReset(&stream);
  }
  inflateEnd(&stream);
  if (code != Z_STREAM_END) {
    return absl::InvalidArgumentError(code == Z_BUF_ERROR ? "the gzip file breaks off"
                                                          : "the gzip file is damaged");
  }
  return content;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string content;
  if (const auto size = std::filesystem::file_size(path, ignored); !ignored && size > 0) {
    content.reserve(size);  // none for a pipe
  }
  std::vector<char> piece(1 << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    content.append(piece.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.good() && !file.eof()) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  if (content.substr(0, 2) != "\x1f\x8b") return content;
  if (content.size() >= (uint64_t{1} << 32)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": over 4 GiB of gzip"));
  }
  absl::StatusOr<std::string> inflated = Inflate(content);
  if (!inflated.ok()) {
    return absl::Status(inflated.status().code(),
                        absl::StrCat("cannot read ", path, ": ", inflated.status().message()));
  }
  return inflated;
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
