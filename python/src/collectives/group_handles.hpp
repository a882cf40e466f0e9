#pragma once
#include <memory>

#include <nanobind/nanobind.h>

#include <crossrank/collective.hpp>
#include <crossrank/group.hpp>
#include <crossrank/mesh.hpp>
#include <crossrank/message_queue.hpp>

#include "interpreter.hpp"

namespace crossrank::python {

/// Destroys a handle without the GIL. Dropping the last handle of a group may wait for another thread, which may need
/// the GIL.
template <class Handle>
void destroy_without_gil(void* handle) noexcept {
  ReleasedGil const released;
  std::destroy_at(static_cast<Handle*>(handle));
}

}  // namespace crossrank::python

// nanobind has no option for the destruction of a class, so these replace its own function for each class that holds a
// group. Include this file where the class is bound.
namespace nanobind::detail {

template <>
inline void wrap_destruct<crossrank::Collective>(void* handle) noexcept {
  crossrank::python::destroy_without_gil<crossrank::Collective>(handle);
}
template <>
inline void wrap_destruct<crossrank::JobCollective>(void* handle) noexcept {
  crossrank::python::destroy_without_gil<crossrank::JobCollective>(handle);
}
template <>
inline void wrap_destruct<crossrank::MeshCollective>(void* handle) noexcept {
  crossrank::python::destroy_without_gil<crossrank::MeshCollective>(handle);
}
template <>
inline void wrap_destruct<crossrank::Mesh>(void* handle) noexcept {
  crossrank::python::destroy_without_gil<crossrank::Mesh>(handle);
}
template <>
inline void wrap_destruct<crossrank::GroupCoordinator>(void* handle) noexcept {
  crossrank::python::destroy_without_gil<crossrank::GroupCoordinator>(handle);
}
template <>
inline void wrap_destruct<crossrank::ExpertRoute>(void* handle) noexcept {
  crossrank::python::destroy_without_gil<crossrank::ExpertRoute>(handle);
}
template <>
inline void wrap_destruct<crossrank::MessageQueue>(void* handle) noexcept {
  crossrank::python::destroy_without_gil<crossrank::MessageQueue>(handle);
}

}  // namespace nanobind::detail
