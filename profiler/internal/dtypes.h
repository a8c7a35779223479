// Names of data types: "float32" as users write them, "f32" as graphs print them.
#ifndef AUTOPART_PROFILER_INTERNAL_DTYPES_H_
#define AUTOPART_PROFILER_INTERNAL_DTYPES_H_

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace autopart::internal {

std::string DtypeName(at::ScalarType dtype);       // "float32"
std::string ShortDtypeName(at::ScalarType dtype);  // "f32"
std::optional<at::ScalarType> ParseDtype(std::string_view name);
std::string DtypeNames();  // all of them, for error messages

}  // namespace autopart::internal

#endif  // AUTOPART_PROFILER_INTERNAL_DTYPES_H_
