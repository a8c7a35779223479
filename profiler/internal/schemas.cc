#include "profiler/internal/schemas.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "profiler/internal/dropout_mask.h"

namespace autopart::internal {
namespace {

bool HasTag(const std::string& op, const std::string& overload, at::Tag tag) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
  return handle && handle->hasTag(tag);
}

}  // namespace

const c10::FunctionSchema* FindSchema(const std::string& op, const std::string& overload) {
  RegisterDropoutMask();
  const c10::OperatorName name(op, overload);
  if (const auto handle = c10::Dispatcher::singleton().findSchema(name)) return &handle->schema();
  if (const auto found = torch::jit::findOperatorFor(name)) return &found->schema();
  return nullptr;
}

bool DrawsRandomNumbers(const std::string& op, const std::string& overload) {
  return op != "autopart::dropout_mask" && HasTag(op, overload, at::Tag::nondeterministic_seeded);
}

bool DependsOnData(const std::string& op, const std::string& overload) {
  if (op == "aten::Int" || op == "aten::Float" || op == "aten::Bool" || op == "aten::IntImplicit" ||
      op == "aten::FloatImplicit" || op == "aten::ScalarImplicit" || op == "aten::tolist" ||
      op == "prim::tolist") {
    // Of a tensor; conversions between numbers have other overloads.
    return overload == "Tensor" || overload.empty();
  }
  return HasTag(op, overload, at::Tag::data_dependent_output) ||
         HasTag(op, overload, at::Tag::dynamic_output_shape);
}

}  // namespace autopart::internal
