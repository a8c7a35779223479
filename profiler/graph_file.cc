#include "profiler/graph_file.h"

#include <cctype>
#include <fstream>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "partitioner/read_file.h"

namespace autopart {

bool IsGraphFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  int first = file.get();
  if (first == 0x1f) return file.get() == 0x8b;
  while (first != EOF && std::isspace(first)) first = file.get();
  return first == '{';
}

absl::StatusOr<OpGraph> LoadGraphFile(const std::string& path,
                                      const std::vector<InputSpec>& inputs) {
  if (!IsGraphFile(path)) {
    absl::StatusOr<Model> model = LoadModelFile(path, inputs);
    if (!model.ok()) return model.status();
    return std::move(model->graph);
  }
  if (!inputs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is a captured graph, whose shapes are fixed: leave --input out, or "
                     "capture it again with other example inputs"));
  }
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<OpGraph> graph = OpGraphFromJson(*text);
  if (graph.ok()) return graph;
  return absl::Status(graph.status().code(), absl::StrCat(path, ": ", graph.status().message()));
}

}  // namespace autopart
