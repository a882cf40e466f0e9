#include "lib/platform/io_error.hpp"

#include <cstring>
#include <utility>

namespace crossrank::platform {

std::string errno_text(int error) {
  char const* const name = ::strerrorname_np(error);
  char const* const meaning = ::strerrordesc_np(error);
  std::string text = name != nullptr ? name : "errno " + std::to_string(error);
  if (meaning != nullptr) text += std::string(" (") + meaning + ')';
  return text;
}

void throw_io(std::string operation, std::string resource, int error, std::string remedy) {
  throw_io(ErrorInfo{.operation = std::move(operation),
                     .message = "the operating system refused",
                     .resource = std::move(resource),
                     .remedy = std::move(remedy)},
           error);
}

void throw_io(ErrorInfo info, int error) {
  info.system = errno_text(error);
  info.system_errno = error;
  throw IoError(std::move(info));
}

}  // namespace crossrank::platform
