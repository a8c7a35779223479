#include "pipeline/internal/format.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace autopart::internal {
namespace {

constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

int UnitOf(int64_t bytes) {
  int unit = 0;
  for (double rest = std::abs(static_cast<double>(bytes)); rest >= 1024 && unit < 5; rest /= 1024) {
    ++unit;
  }
  return unit;
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  const int unit = UnitOf(bytes);
  if (unit == 0) return absl::StrCat(bytes, " B");
  return absl::StrCat(HumanNumber(bytes / std::pow(1024.0, unit)), " ", kUnits[unit]);
}

std::string HumanNumber(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 99.95) return absl::StrFormat("%.0f", value);
  if (size >= 9.995) return absl::StrFormat("%.1f", value);
  if (size >= 0.9995) return absl::StrFormat("%.2f", value);
  return absl::StrFormat("%.3g", value);
}

std::string Grouped(int64_t number) {
  std::string text = absl::StrCat(number);
  for (int i = static_cast<int>(text.size()) - 3; i > (number < 0 ? 1 : 0); i -= 3) {
    text.insert(i, 1, ',');
  }
  return text;
}

std::string Count(int64_t number, std::string_view noun) {
  const char* ending = number == 1 ? "" : noun.back() == 'h' ? "es" : "s";
  return absl::StrCat(Grouped(number), " ", std::string(noun), ending);
}

std::string BytesOf(int64_t part, int64_t whole) {
  const int unit = UnitOf(whole);
  if (UnitOf(part) > unit) return absl::StrCat(HumanBytes(part), " of ", HumanBytes(whole));
  const double scale = std::pow(1024.0, unit);
  return absl::StrCat(HumanNumber(part / scale), " of ", HumanNumber(whole / scale), " ",
                      kUnits[unit]);
}

}  // namespace autopart::internal
