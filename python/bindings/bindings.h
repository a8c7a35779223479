// What the binding files share. They convert, document and release the GIL; logic is elsewhere.
#ifndef AUTOPART_PYTHON_BINDINGS_BINDINGS_H_
#define AUTOPART_PYTHON_BINDINGS_BINDINGS_H_

#include <stdexcept>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
// Torch's casters of at::Tensor and of its holders; brings pybind11.
#include <torch/csrc/utils/pybind.h>

namespace autopart {

namespace py = pybind11;

// Planning answers with a status; Python gets ValueError for what the caller can mend in the
// arguments and RuntimeError for the rest ("does not fit").
inline void ThrowIfError(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kNotFound:
      throw std::invalid_argument(message);
    default:
      throw std::runtime_error(message);
  }
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  ThrowIfError(result.status());
  return *std::move(result);
}

void BindProfiler(py::module_& m);
void BindPipeline(py::module_& m);
void BindCommunicator(py::module_& m);
void BindExecutor(py::module_& m);

}  // namespace autopart

#endif  // AUTOPART_PYTHON_BINDINGS_BINDINGS_H_
