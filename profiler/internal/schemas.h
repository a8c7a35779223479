// Schema of an operator by name, wherever torch keeps it: dispatcher or TorchScript registry.
#ifndef AUTOPART_PROFILER_INTERNAL_SCHEMAS_H_
#define AUTOPART_PROFILER_INTERNAL_SCHEMAS_H_

#include <string>

#include <ATen/core/function_schema.h>

namespace autopart::internal {

// nullptr for control flow, hand-written primitives and unknown operators.
const c10::FunctionSchema* FindSchema(const std::string& op, const std::string& overload);

// Draws random numbers with these arguments taken into account by the caller: the operator's tag.
bool DrawsRandomNumbers(const std::string& op, const std::string& overload);
// Output shape or value read out of a tensor's data.
bool DependsOnData(const std::string& op, const std::string& overload);

}  // namespace autopart::internal

#endif  // AUTOPART_PROFILER_INTERNAL_SCHEMAS_H_
