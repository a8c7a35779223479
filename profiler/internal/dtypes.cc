#include "profiler/internal/dtypes.h"

#include <vector>

#include <absl/strings/str_join.h>

namespace autopart::internal {
namespace {

struct Row {
  at::ScalarType dtype;
  const char* name;
  const char* short_name;
};

constexpr Row kRows[] = {
    {at::kFloat, "float32", "f32"},
    {at::kDouble, "float64", "f64"},
    {at::kHalf, "float16", "f16"},
    {at::kBFloat16, "bfloat16", "bf16"},
    {at::kLong, "int64", "i64"},
    {at::kInt, "int32", "i32"},
    {at::kShort, "int16", "i16"},
    {at::kChar, "int8", "i8"},
    {at::kByte, "uint8", "u8"},
    {at::kBool, "bool", "bool"},
    {at::kComplexFloat, "complex64", "c64"},
    {at::kComplexDouble, "complex128", "c128"},
    {at::ScalarType::Float8_e4m3fn, "float8_e4m3fn", "f8e4m3"},
    {at::ScalarType::Float8_e5m2, "float8_e5m2", "f8e5m2"},
};

}  // namespace

std::string DtypeName(at::ScalarType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return row.name;
  }
  return c10::toString(dtype);
}

std::string ShortDtypeName(at::ScalarType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return row.short_name;
  }
  return c10::toString(dtype);
}

std::optional<at::ScalarType> ParseDtype(std::string_view name) {
  if (name == "float") return at::kFloat;
  if (name == "double") return at::kDouble;
  if (name == "half") return at::kHalf;
  if (name == "long") return at::kLong;
  if (name == "int") return at::kInt;
  for (const Row& row : kRows) {
    if (name == row.name || name == row.short_name) return row.dtype;
  }
  return std::nullopt;
}

std::string DtypeNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.push_back(row.name);
  return absl::StrJoin(names, ", ");
}

}  // namespace autopart::internal
