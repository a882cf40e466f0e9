#include "lib/device/borrowed_memory.hpp"

#include <exception>
#include <utility>

#include "lib/core/log.hpp"

namespace crossrank {

BorrowedMemory::BorrowedMemory(void* data, std::function<void(void*)> deleter)
    : data_(data), deleter_(std::move(deleter)) {}

BorrowedMemory::~BorrowedMemory() {
  if (!deleter_) return;
  try {
    deleter_(data_);
  } catch (std::exception const& e) {
    log_event(LogLevel::error, "the deleter of a borrowed tensor threw", {{"what", e.what()}});
  } catch (...) {
    log_event(LogLevel::error, "the deleter of a borrowed tensor threw");
  }
}

}  // namespace crossrank
