#include "pipeline/internal/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

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
  const bool tiny = part > 0 && part / std::pow(1024.0, unit) < 0.001;
  if (UnitOf(part) > unit || tiny) return absl::StrCat(HumanBytes(part), " of ", HumanBytes(whole));
  const double scale = std::pow(1024.0, unit);
  return absl::StrCat(HumanNumber(part / scale), " of ", HumanNumber(whole / scale), " ",
                      kUnits[unit]);
}

int Columns(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string Left(std::string text, int width) {
  if (const int n = Columns(text); n < width) text.append(width - n, ' ');
  return text;
}

std::string Right(std::string text, int width) {
  if (const int n = Columns(text); n < width) text.insert(0, width - n, ' ');
  return text;
}

std::string Shorten(const std::string& text, int width) {
  int left = Columns(text);
  if (left <= width) return text;
  size_t begin = 0;
  while (begin < text.size() && left >= width) {  // one is for the ellipsis
    do ++begin;
    while (begin < text.size() && (text[begin] & 0xC0) == 0x80);
    --left;
  }
  return absl::StrCat("…", text.substr(begin));
}

std::string Ms(double ms) { return absl::StrCat(HumanNumber(ms), " ms"); }

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

std::vector<std::string> RoundedToAddUp(const std::vector<double>& values, int decimals) {
  const double scale = std::pow(10, decimals);
  std::vector<int64_t> units;
  for (const double v : values) units.push_back(static_cast<int64_t>(std::floor(v * scale)));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  int64_t missing =
      std::llround(sum * scale) - std::accumulate(units.begin(), units.end(), int64_t{0});
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return values[a] * scale - units[a] > values[b] * scale - units[b];
  });
  for (size_t i = 0; i < order.size() && missing > 0; ++i, --missing) ++units[order[i]];
  std::vector<std::string> texts;
  for (const int64_t u : units) texts.push_back(absl::StrFormat("%.*f", decimals, u / scale));
  return texts;
}

int DecimalsFor(double total) { return total >= 1000 ? 0 : total >= 100 ? 1 : total >= 1 ? 2 : 4; }

}  // namespace autopart::internal
