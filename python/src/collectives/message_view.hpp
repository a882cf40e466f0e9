#pragma once
#include <cstddef>
#include <span>

#include <nanobind/nanobind.h>

#include <crossrank/message_queue.hpp>

namespace crossrank::python {

namespace nb = nanobind;

/// Calls `read` with a read-only memoryview of the next message of `queue`, which is `bytes`, and returns its result.
/// The view ends with the call. `BufferError` if others of it are left. Those read undetermined bytes.
[[nodiscard]] nb::object read_in_place(MessageQueue const& queue, nb::handle read, std::span<std::byte const> bytes);

/// Defines the class that exports the bytes.
void bind_message_view(nb::module_& module);

}  // namespace crossrank::python
