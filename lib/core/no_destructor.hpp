#pragma once

namespace crossrank {

/// A static object that is there before anything runs and is never destroyed: what outlives `main` may still use it.
template <class T>
union NoDestructor {
  constexpr NoDestructor() : value{} {}
  ~NoDestructor() {}  // NOLINT(modernize-use-equals-default): the default would be deleted
  NoDestructor(NoDestructor const&) = delete;
  NoDestructor& operator=(NoDestructor const&) = delete;

  T value;
};

}  // namespace crossrank
