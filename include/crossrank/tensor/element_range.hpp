#pragma once
#include <concepts>
#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

#include <crossrank/tensor/dtype.hpp>

namespace crossrank {

namespace detail {

/// The element type of a contiguous range, including `const`.
template <class R>
using ElementOf = std::remove_pointer_t<decltype(std::data(std::declval<std::remove_reference_t<R>&>()))>;

template <class R>
inline constexpr bool is_span = false;
template <class T, std::size_t Extent>
inline constexpr bool is_span<std::span<T, Extent>> = true;

}  // namespace detail

/// A contiguous range of `Element`s: a vector, an array, a C array or a span, but not `std::vector<bool>`.
template <class R>
concept ElementRange = requires(std::remove_reference_t<R>& range) {
  { std::size(range) } -> std::convertible_to<std::size_t>;
  requires Element<std::remove_cv_t<detail::ElementOf<R>>>;
};

/// A range whose elements outlive the expression: a variable, or any span.
template <class R>
concept BorrowedElementRange = ElementRange<R> &&
    (std::is_lvalue_reference_v<R> || detail::is_span<std::remove_cvref_t<R>>);

/// A writable range whose elements outlive the expression.
template <class R>
concept MutableElementRange = BorrowedElementRange<R> && !std::is_const_v<detail::ElementOf<R>>;

/// A range with the same element type as `Other`.
template <class R, class Other>
concept ElementRangeLike =
    ElementRange<R> && std::same_as<std::remove_cv_t<detail::ElementOf<R>>, std::remove_cv_t<detail::ElementOf<Other>>>;

/// A range with the same element type as `Other`, whose elements outlive the expression.
template <class R, class Other>
concept BorrowedElementRangeLike = BorrowedElementRange<R> && ElementRangeLike<R, Other>;

}  // namespace crossrank
