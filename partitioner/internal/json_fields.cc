#include "partitioner/internal/json_fields.h"

namespace autopart::internal {

absl::StatusOr<Json> ParseJson(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the tag.
    std::string_view what = error.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos)
      what.remove_prefix(end + 2);
    return absl::InvalidArgumentError(absl::StrCat("not JSON: ", std::string(what)));
  }
}

absl::Status CheckFormat(JsonFields& fields, std::string_view format, int version) {
  std::string found_format;
  int found_version = 0;
  fields.Read("format", found_format);
  fields.Read("version", found_version);
  if (!fields.status().ok()) {
    return absl::InvalidArgumentError(absl::StrCat("not a file of format ", std::string(format),
                                                   ": ", std::string(fields.status().message())));
  }
  if (found_format != format) {
    return absl::InvalidArgumentError(
        absl::StrCat("format is '", found_format, "', want '", std::string(format), "'"));
  }
  if (found_version < 1 || found_version > version) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(format), " version ", found_version,
                                                   ": this autopart reads up to version ", version,
                                                   "; update autopart or write the file again"));
  }
  return absl::OkStatus();
}

}  // namespace autopart::internal
