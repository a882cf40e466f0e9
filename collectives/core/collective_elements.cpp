#include <crossrank/collective/elements.hpp>

namespace crossrank::detail {
namespace {

/// Returns a pointer for a tensor over elements that a call only reads. The call takes that tensor as a constant.
void* pointer(void const* data) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the call only reads the elements
  return const_cast<void*>(data);
}

}  // namespace

ElementsOfCall::ElementsOfCall(void const* data, std::size_t count, Dtype dtype)
    : data_(static_cast<std::byte*>(pointer(data))), bytes_(count * bits_of(dtype) / 8) {
  // Unowned: the storage lives on the caller's stack, so a reference count would be useless.
  std::shared_ptr<spi::Storage> const unowned(std::shared_ptr<void>(), this);
  tensor_ = spi::tensor_from_storage(unowned, 0, {static_cast<std::int64_t>(count)}, dtype);
}

ElementsOfCall::~ElementsOfCall() = default;

Tensor ElementsOfRequest::over(void const* data, std::size_t count, Dtype dtype) {
  return Tensor::from_blob(pointer(data), {static_cast<std::int64_t>(count)}, dtype);
}

}  // namespace crossrank::detail
