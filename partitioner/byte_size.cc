#include "partitioner/byte_size.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace autopart {

absl::StatusOr<int64_t> ParseByteSize(std::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", std::string(text), "' is not a size: write for example 80GiB, 512MB or 1000000"));
  };
  const std::string_view digits = text.substr(0, text.find_first_not_of("0123456789."));
  std::string suffix = absl::AsciiStrToLower(absl::StripAsciiWhitespace(
      absl::string_view(text.data(), text.size()).substr(digits.size())));
  double value;
  if (digits.empty() ||
      !absl::SimpleAtod(absl::string_view(digits.data(), digits.size()), &value)) {
    return bad();
  }
  if (!suffix.empty() && suffix.back() == 'b') suffix.pop_back();
  if (!suffix.empty()) {
    const bool binary = suffix.size() == 2 && suffix[1] == 'i';
    const size_t power = std::string_view("kmgtp").find(suffix[0]);
    if (power == std::string_view::npos || (suffix.size() > 1 && !binary)) return bad();
    value *= std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  if (!(value < 9.2e18)) return bad();
  return static_cast<int64_t>(value);
}

std::string FormatByteSize(int64_t bytes) {
  double value = static_cast<double>(bytes);
  if (std::abs(value) < 1024) return absl::StrCat(bytes, " bytes");
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = -1;
  while (std::abs(value) >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.2f %s", value, units[unit]);
}

}  // namespace autopart
