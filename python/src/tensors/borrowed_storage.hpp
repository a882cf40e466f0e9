#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include <crossrank/spi/storage.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::python {

/// Memory of another library. `release` gives it back; any thread may call it, without the GIL.
class BorrowedStorage final : public spi::Storage {
 public:
  struct Parts {
    void* data = nullptr;
    std::size_t bytes = 0;
    bool read_only = false;
    std::function<void()> release{};
  };

  explicit BorrowedStorage(Parts parts) : parts_(std::move(parts)) {}
  ~BorrowedStorage() override { parts_.release(); }
  BorrowedStorage(BorrowedStorage const&) = delete;
  BorrowedStorage& operator=(BorrowedStorage const&) = delete;

  [[nodiscard]] std::byte* data() noexcept override { return static_cast<std::byte*>(parts_.data); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return parts_.bytes; }
  [[nodiscard]] std::string frozen_by() const override {
    return parts_.read_only ? "read-only memory of a Python object" : "";
  }

 private:
  Parts parts_;
};

/// Describes a tensor of another library.
struct ForeignTensor {
  void* data = nullptr;
  Shape shape{};
  Dtype dtype = Dtype::u8;
  bool read_only = false;
};

/// Returns a view of it. `release` runs when the last view is gone, or at once when this function throws.
[[nodiscard]] inline Tensor view_of(ForeignTensor const& foreign, std::function<void()> release) {
  auto const storage =
      std::make_shared<BorrowedStorage>(BorrowedStorage::Parts{.data = foreign.data,
                                                               .bytes = dense_bytes(foreign.shape, foreign.dtype),
                                                               .read_only = foreign.read_only,
                                                               .release = std::move(release)});
  return spi::tensor_from_storage(storage, 0, foreign.shape, foreign.dtype);
}

}  // namespace crossrank::python
