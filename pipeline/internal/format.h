// Numbers and columns for people.
#ifndef AUTOPART_PIPELINE_INTERNAL_FORMAT_H_
#define AUTOPART_PIPELINE_INTERNAL_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace autopart::internal {

// 0 B, 512 B, 6.25 MiB, 71.2 GiB: three digits that count.
std::string HumanBytes(int64_t bytes);
// A number with about three digits that count: 0.0123, 6.45, 12.9, 400.
std::string HumanNumber(double value);
// 1284 -> 1,284
std::string Grouped(int64_t number);
// 1 stage, 2 stages, 3 micro-batches
std::string Count(int64_t number, std::string_view noun);
// "71.2 of 80.0 GiB", both in the unit of the second unless they are too far apart for that.
std::string BytesOf(int64_t part, int64_t whole);
// "12.9 ms"
std::string Ms(double ms);
// "23 %"
std::string Percent(double share);
// Values rounded to `decimals` so that the texts add up to the rounded sum: those with the largest
// remainders are rounded up.
std::vector<std::string> RoundedToAddUp(const std::vector<double>& values, int decimals);
int DecimalsFor(double total);

// Columns that a text takes in a terminal.
int Columns(std::string_view text);
// Filled up with blanks, the text on the left or right.
std::string Left(std::string text, int width);
std::string Right(std::string text, int width);
// At most `width` columns, of the end: it says most in a module path.
std::string Shorten(const std::string& text, int width);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_FORMAT_H_
