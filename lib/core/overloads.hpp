#pragma once

namespace crossrank {

/// A visitor of a `std::variant` made of lambdas: `std::visit(Overloads{[](int) {}, [](auto const&) {}}, value)`.
template <class... Functions>
struct Overloads : Functions... {
  using Functions::operator()...;
};
// Clang 14 does not deduce the arguments of an aggregate.
template <class... Functions>
Overloads(Functions...) -> Overloads<Functions...>;

}  // namespace crossrank
