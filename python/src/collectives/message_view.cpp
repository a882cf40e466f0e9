#include "collectives/message_view.hpp"

namespace crossrank::python {
namespace {

/// Exports the bytes of a message, and counts its views. Their memory stays as long as the queue does.
struct MessageView {
  MessageQueue queue;
  std::span<std::byte const> bytes;
  int views = 0;
  bool has_ended = false;
};

int export_message(PyObject* self, Py_buffer* view, int flags) {
  auto& message = *nb::inst_ptr<MessageView>(self);
  if (message.has_ended) {
    PyErr_SetString(PyExc_BufferError, "the message has been consumed");
    return -1;
  }
  auto* const data = const_cast<std::byte*>(message.bytes.data());  // read-only by the next but one argument
  auto const size = static_cast<Py_ssize_t>(message.bytes.size());
  if (PyBuffer_FillInfo(view, self, data, size, 1, flags) != 0) return -1;
  ++message.views;
  return 0;
}

void release_message(PyObject* self, Py_buffer*) { --nb::inst_ptr<MessageView>(self)->views; }

/// Ends the view that a function got, and throws if it has left others.
void end_views(MessageView& message, nb::handle view) {
  message.has_ended = true;
  view.attr("release")();
  if (message.views == 0) return;
  throw nb::buffer_error("a view of the message is left, whose bytes are now undetermined; copy what is needed later");
}

}  // namespace

nb::object read_in_place(MessageQueue const& queue, nb::handle read, std::span<std::byte const> bytes) {
  auto const exporter = nb::cast(MessageView{.queue = queue, .bytes = bytes});
  auto& message = *nb::inst_ptr<MessageView>(exporter);
  auto const view = nb::steal(PyMemoryView_FromObject(exporter.ptr()));
  if (!view.is_valid()) throw nb::python_error();
  nb::object result;
  try {
    result = read(view);
  } catch (nb::python_error const&) {
    end_views(message, view);
    throw;
  }
  end_views(message, view);
  return result;
}

void bind_message_view(nb::module_& module) {
  PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&export_message)},
                         {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_message)},
                         {0, nullptr}};
  nb::class_<MessageView>(module, "MessageView", nb::type_slots(slots));
}

}  // namespace crossrank::python
