#include "pipeline/internal/json_visit.h"

namespace autopart::internal {
namespace {

void Layout(const Json& json, int indent, std::string& out) {
  const std::string inner(indent + 2, ' ');
  const bool nested = json.is_array() && !json.empty() && json[0].is_object();
  if (!json.is_object() && !nested) {
    out += json.dump();
    return;
  }
  out += json.is_object() ? "{" : "[";
  const char* separator = "\n";
  for (const auto& [key, value] : json.items()) {
    absl::StrAppend(&out, separator, inner);
    if (json.is_object()) absl::StrAppend(&out, "\"", key, "\": ");
    Layout(value, indent + 2, out);
    separator = ",\n";
  }
  absl::StrAppend(&out, "\n", std::string(indent, ' '), json.is_object() ? "}" : "]");
}

}  // namespace

std::string Layout(const Json& json) {
  std::string text;
  Layout(json, 0, text);
  return text + "\n";
}

}  // namespace autopart::internal
