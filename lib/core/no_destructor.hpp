#pragma once

namespace crossrank {

/// A static object that is initialized before any code runs and never destroyed. Code that runs after `main` may use
/// it.
template <class T>
union NoDestructor {
  constexpr NoDestructor() : value{} {}
  ~NoDestructor() {}  // NOLINT(modernize-use-equals-default): the default would be deleted
  NoDestructor(NoDestructor const&) = delete;
  NoDestructor& operator=(NoDestructor const&) = delete;

  T value;
};

}  // namespace crossrank
