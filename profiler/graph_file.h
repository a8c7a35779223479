// The graph of a model from either kind of file that holds one.
#ifndef AUTOPART_PROFILER_GRAPH_FILE_H_
#define AUTOPART_PROFILER_GRAPH_FILE_H_

#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "profiler/model.h"
#include "profiler/op_graph.h"

namespace autopart {

// Whether the file begins as JSON or gzip does; models are zip archives.
bool IsGraphFile(const std::string& path);

// Of a JSON file, plain or gzip, as `autopart capture` writes it, or of a model (LoadModelFile). A
// JSON file holds its shapes: INVALID_ARGUMENT for `inputs` beside one, and for other JSON.
absl::StatusOr<OpGraph> LoadGraphFile(const std::string& path,
                                      const std::vector<InputSpec>& inputs = {});

}  // namespace autopart

#endif  // AUTOPART_PROFILER_GRAPH_FILE_H_
