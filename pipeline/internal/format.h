// Sizes for people.
#ifndef AUTOPART_PIPELINE_INTERNAL_FORMAT_H_
#define AUTOPART_PIPELINE_INTERNAL_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace autopart::internal {

// 0 B, 512 B, 6.25 MiB, 71.2 GiB: three digits that count.
std::string HumanBytes(int64_t bytes);
// A number with about three digits that count: 0.0123, 6.45, 12.9, 400.
std::string HumanNumber(double value);
// 1284 -> 1,284
std::string Grouped(int64_t number);
// 1 stage, 2 stages, 3 micro-batches
std::string Count(int64_t number, std::string_view noun);
// "71.2 of 80.0 GiB", both in the unit of the second where it is the larger.
std::string BytesOf(int64_t part, int64_t whole);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_FORMAT_H_
