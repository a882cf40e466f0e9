#pragma once
#include <array>
#include <cstddef>
#include <type_traits>

namespace device_test {

/// The properties that decide how a C call passes a value.
struct Passed {
  std::size_t size = 0;
  bool is_pointer = false;
  bool is_class = false;
  friend bool operator==(Passed const&, Passed const&) = default;
};

template <class T>
inline constexpr Passed passed{.size = sizeof(T), .is_pointer = std::is_pointer_v<T>, .is_class = std::is_class_v<T>};

template <class>
struct Signature;
template <class Result, class... Arguments>
struct Signature<Result (*)(Arguments...)> {
  static constexpr std::array<Passed, 1 + sizeof...(Arguments)> values{passed<Result>, passed<Arguments>...};
};

/// Returns whether two types of functions have the same number of parameters, and pass each, and the result, alike. The
/// names of types and enumerations may differ.
template <class Ours, class Vendors>
consteval bool same_signature() {
  if constexpr (Signature<Ours>::values.size() != Signature<Vendors>::values.size()) {
    return false;
  } else {
    return Signature<Ours>::values == Signature<Vendors>::values;
  }
}

}  // namespace device_test
