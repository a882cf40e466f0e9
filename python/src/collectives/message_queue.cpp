#include <crossrank/message_queue.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "tensors/buffer.hpp"
#include "interpreter.hpp"
#include "collectives/group_handles.hpp"
#include "collectives/message_view.hpp"
#include "module.hpp"
#include "options.hpp"
#include "tensors/streams.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

QueueOptions options_of(int writer_rank, std::size_t chunk_bytes, std::size_t chunks, std::string name,
                        double warn_every) {
  return {.writer_rank = writer_rank,
          .chunk_bytes = chunk_bytes,
          .chunks = chunks,
          .name = std::move(name),
          .warn_every = milliseconds_of(warn_every, "warn_every")};
}

std::span<std::byte const> bytes_of(nb::bytes const& bytes) {
  return {static_cast<std::byte const*>(bytes.data()), bytes.size()};
}

nb::bytes to_bytes(std::vector<std::byte> const& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

/// Runs a call that waits at most `seconds`, or for the group's timeout.
template <class Call>
auto run_queue_call(std::optional<double> seconds, Call&& call) {
  std::stop_source stop;
  QueueWait const wait{.timeout = milliseconds_of(seconds), .stop = stop.get_token()};
  return run_waiting([&stop] { stop.request_stop(); }, [&] { return call(wait); });
}

void bind_queue_bytes(nb::class_<MessageQueue>& queue_class) {
  queue_class
      .def(
          "enqueue_bytes",
          [](MessageQueue const& queue, nb::bytes const& message, std::optional<double> timeout) {
            run_queue_call(timeout, [&](QueueWait const& wait) { queue.enqueue_bytes(bytes_of(message), wait); });
          },
          nb::arg(), nb::arg().none())
      .def(
          "enqueue_parts",
          [](MessageQueue const& queue, nb::list const& parts, std::optional<double> timeout) {
            std::deque<Buffer> buffers;
            std::vector<std::span<std::byte const>> spans;
            for (auto const part : parts) {
              auto& buffer = buffers.emplace_back();
              if (!buffer.open(part, PyBUF_SIMPLE)) throw nb::python_error();
              auto const& view = buffer.view();
              spans.emplace_back(static_cast<std::byte const*>(view.buf), static_cast<std::size_t>(view.len));
            }
            run_queue_call(timeout, [&](QueueWait const& wait) { queue.enqueue_parts(spans, wait); });
          },
          nb::arg(), nb::arg().none())
      .def(
          "read_bytes",
          [](MessageQueue const& queue, nb::object const& read, std::optional<double> timeout) {
            SharedObject result;
            run_queue_call(timeout, [&](QueueWait const& wait) {
              auto const call_read = [&](std::span<std::byte const> bytes) {
                AcquiredGil const acquired;
                result = SharedObject(read_in_place(queue, read, bytes));
              };
              return queue.read_bytes(call_read, wait);
            });
            return result.get().is_valid() ? nb::borrow(result.get()) : nb::object(nb::none());
          },
          nb::arg(), nb::arg().none())
      .def(
          "dequeue_bytes",
          [](MessageQueue const& queue, std::optional<double> timeout) {
            SharedObject result;
            auto const copy = [&](std::span<std::byte const> message) {
              auto* const to = run_python([&] {
                auto bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(message.size())));
                if (!bytes.is_valid()) throw nb::python_error();
                result = SharedObject(bytes);
                return PyBytes_AsString(bytes.ptr());
              });
              std::ranges::copy(message, reinterpret_cast<std::byte*>(to));
            };
            run_queue_call(timeout, [&](QueueWait const& wait) { return queue.read_bytes(copy, wait); });
            return result.get().is_valid() ? nb::borrow(result.get()) : nb::object(nb::none());
          },
          nb::arg().none());
}

/// Binds the calls that write and read one type of value.
template <auto Enqueue, auto Dequeue>
void bind_queue_values(nb::class_<MessageQueue>& queue_class, char const* enqueue, char const* dequeue,
                       auto from_python, auto to_python) {
  queue_class
      .def(
          enqueue,
          [from_python](MessageQueue const& queue, nb::handle object, std::optional<double> timeout) {
            auto const value = from_python(object);
            run_queue_call(timeout, [&](QueueWait const& wait) { (queue.*Enqueue)(value, wait); });
          },
          nb::arg(), nb::arg().none())
      .def(
          dequeue,
          [to_python](MessageQueue const& queue, std::optional<double> timeout) {
            follow_streams_of_results();
            auto const message = run_queue_call(timeout, [&](QueueWait const& wait) { return (queue.*Dequeue)(wait); });
            return message ? nb::object(to_python(*message)) : nb::object(nb::none());
          },
          nb::arg().none());
}

}  // namespace

void bind_message_queue(nb::module_& module) {
  bind_message_view(module);
  nb::class_<MessageQueue> queue_class(module, "MessageQueue");
  queue_class.def(nb::init<>())
      .def("connected", &MessageQueue::connected)
      .def("is_writer", &MessageQueue::is_writer)
      .def("name", [](MessageQueue const& queue) { return queue.name(); })
      .def("messages", &MessageQueue::messages)
      .def("handle", [](MessageQueue const& queue) { return to_bytes(queue.handle()); })
      .def("wait_for",
           [](MessageQueue const& queue, double seconds) {
             return run_queue_call(seconds,
                                   [&](QueueWait const& wait) { return queue.wait_for(*wait.timeout, wait.stop); });
           })
      .def("cancel", &MessageQueue::cancel)
      .def("close", [](MessageQueue const& queue) { run_without_gil([&] { queue.close(); }); });
  bind_queue_bytes(queue_class);
  bind_queue_values<&MessageQueue::enqueue_dict, &MessageQueue::dequeue_dict>(
      queue_class, "enqueue_dict", "dequeue_dict", tensor_dict_from, tensor_dict_to_python);
  bind_queue_values<&MessageQueue::enqueue_tensor, &MessageQueue::dequeue_tensor>(
      queue_class, "enqueue_tensor", "dequeue_tensor", tensor_from,
      [](Tensor const& tensor) { return to_python(tensor); });

  module.def("create_queue", [](Collective const& group, int writer_rank, std::size_t chunk_bytes, std::size_t chunks,
                                std::string name, double warn_every) {
    auto const options = options_of(writer_rank, chunk_bytes, chunks, std::move(name), warn_every);
    return run_waiting(group, [&] { return MessageQueue::create(group, options); });
  });
  module.def("create_queue_writer", [](Collective const& group, int readers, std::size_t chunk_bytes,
                                       std::size_t chunks, std::string name, double warn_every) {
    auto const options = options_of(0, chunk_bytes, chunks, std::move(name), warn_every);
    return run_without_gil([&] { return MessageQueue::create_writer(group, readers, options); });
  });
  module.def(
      "attach_queue",
      [](nb::bytes const& handle, int reader, std::optional<Collective> const& group) {
        auto const bytes = bytes_of(handle);
        return run_without_gil(
            [&] { return group ? MessageQueue::attach(*group, bytes, reader) : MessageQueue::attach(bytes, reader); });
      },
      nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace crossrank::python
