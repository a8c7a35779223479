// What an exception says, without LibTorch's C++ backtrace.
#ifndef AUTOPART_RUNTIME_INTERNAL_ERROR_TEXT_H_
#define AUTOPART_RUNTIME_INTERNAL_ERROR_TEXT_H_

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace autopart::internal {

inline std::string ErrorText(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_INTERNAL_ERROR_TEXT_H_
