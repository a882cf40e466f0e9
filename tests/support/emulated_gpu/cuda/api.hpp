// How each exported function begins and ends: it is logged, refused where the real driver refuses it, and turns
// failures into result codes.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "tests/support/emulated_gpu/cuda/cuda_abi.hpp"

namespace emulated {

/// Thrown by the body of a call, and by an operation on a stream: the result code.
struct Failure {
  CUresult result;
};

inline void require(bool condition, CUresult otherwise) {
  if (!condition) throw Failure{otherwise};
}

/// The object that an output pointer names; a null pointer is an invalid value.
template <class T>
T& out(T* pointer) {
  require(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
  return *pointer;
}

enum class Needs { nothing, init, context };

/// Logs the call and returns why it may not run, or success.
CUresult enter(char const* name, Needs needs);

/// Marks the driver as initialized in this process.
void initialize();

template <class Body>
CUresult call(char const* name, Needs needs, Body&& body) noexcept {
  if (auto const refused = enter(name, needs); refused != CUDA_SUCCESS) return refused;
  try {
    body();
    return CUDA_SUCCESS;
  } catch (Failure const& failure) {
    return failure.result;
  } catch (std::bad_alloc const&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

/// Objects behind handles. A handle is a number that is used once, so that a stale one never names another object.
template <class Handle, class T>
class Registry {
 public:
  Handle add(std::shared_ptr<T> object) {
    std::lock_guard const lock(mutex_);
    next_ += 16;
    auto const handle = std::bit_cast<Handle>(next_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  std::shared_ptr<T> find(Handle handle, CUresult otherwise = CUDA_ERROR_INVALID_HANDLE) {
    std::lock_guard const lock(mutex_);
    auto const found = objects_.find(handle);
    require(found != objects_.end(), otherwise);
    return found->second;
  }
  std::shared_ptr<T> remove(Handle handle, CUresult otherwise = CUDA_ERROR_INVALID_HANDLE) {
    std::lock_guard const lock(mutex_);
    auto const found = objects_.find(handle);
    require(found != objects_.end(), otherwise);
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  std::mutex mutex_;
  std::map<Handle, std::shared_ptr<T>> objects_;
  std::uintptr_t next_ = 0x1000;
};

}  // namespace emulated
