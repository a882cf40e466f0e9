#include "lib/device/cuda/driver_errors.hpp"

#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"

namespace crossrank::cuda {
namespace {

using api::Result;

/// Returns whether a call failed because it cannot be captured, or because of what an earlier call did to the capture.
bool is_of_capture(Result result) noexcept {
  return result >= Result::stream_capture_unsupported && result <= Result::stream_capture_wrong_thread;
}

}  // namespace

std::string text_of(api::Functions const& functions, Result result) {
  char const* name = nullptr;
  char const* text = nullptr;
  if (functions.cuGetErrorName(result, &name) != Result::success || name == nullptr)
    return "error " + std::to_string(static_cast<unsigned>(result));
  if (functions.cuGetErrorString(result, &text) != Result::success || text == nullptr) return name;
  return std::string(name) + ": " + text;
}

bool is_sticky(Result result) noexcept {
  switch (result) {
    case Result::ecc_uncorrectable:
    case Result::nvlink_uncorrectable:
    case Result::contained:
    case Result::illegal_address:
    case Result::launch_timeout:
    case Result::context_is_destroyed:
    case Result::device_assert:
    case Result::hardware_stack_error:
    case Result::illegal_instruction:
    case Result::misaligned_address:
    case Result::invalid_address_space:
    case Result::invalid_pc:
    case Result::launch_failed:
    case Result::external_device:
    case Result::unknown: return true;
    default: return false;
  }
}

void throw_driver_error(api::Functions const& functions, Result result, char const* function, char const* operation,
                        std::string resource) {
  ErrorInfo info{.operation = operation,
                 .message = std::string(function) + " failed",
                 .resource = std::move(resource),
                 .system = text_of(functions, result)};
  if (result == Result::no_device) {
    info.message = "there is no GPU";
    info.hint = "check nvidia-smi, the device nodes of a container, and CUDA_VISIBLE_DEVICES";
    throw UnavailableError(std::move(info));
  }
  if (result == Result::out_of_memory) {
    info.message = "not enough memory";
    throw UnavailableError(std::move(info));
  }
  if (is_of_capture(result)) {
    info.message = std::string(function) + " failed because of a capture";
    info.hint = "in a capture, do not wait for its streams, and order other streams by events that are recorded in it";
    throw UsageError(std::move(info));
  }
  if (is_sticky(result)) {
    info.message = "work on the GPU has failed, and " + std::string(function) + " reports it";
    info.hint = "this process cannot use CUDA any more; end it, and look for the cause with compute-sanitizer";
    info.group_usable = false;
  }
  throw BackendError(std::move(info));
}

void log_driver_error(api::Functions const& functions, Result result, char const* function) noexcept {
  if (result == Result::success || result == Result::deinitialized) return;
  try {
    log_event(LogLevel::warning, "a CUDA call failed while memory was freed",
              {{"function", function}, {"error", text_of(functions, result)}});
  } catch (...) {  // no memory for the text
    log_event(LogLevel::warning, "a CUDA call failed while memory was freed");
  }
}

}  // namespace crossrank::cuda
