#pragma once

namespace crossrank {

/// A static object that is there before anything runs and is never destroyed: what outlives `main` may still use it.
template <class T>
union Immortal {
  constexpr Immortal() : value{} {}
  ~Immortal() {}  // NOLINT(modernize-use-equals-default): the default would be deleted
  Immortal(Immortal const&) = delete;
  Immortal& operator=(Immortal const&) = delete;

  T value;
};

}  // namespace crossrank
