#pragma once
#include <cstddef>
#include <functional>

namespace crossrank {

/// Memory of the caller. Its end calls the caller's deleter, if any; an exception of the deleter goes to the log.
class BorrowedMemory {
 public:
  BorrowedMemory(void* data, std::function<void(void*)> deleter);
  ~BorrowedMemory();
  BorrowedMemory(BorrowedMemory const&) = delete;
  BorrowedMemory& operator=(BorrowedMemory const&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  std::function<void(void*)> deleter_;
};

}  // namespace crossrank
