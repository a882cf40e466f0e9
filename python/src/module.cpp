#include "module.hpp"

#include <crossrank/version.hpp>

#include "errors.hpp"
#include "interpreter.hpp"
#include "waiting.hpp"

NB_MODULE(_core, module) {
  namespace python = crossrank::python;
  module.doc() = "The C++ library behind the package. Its interface is private; use the classes of crossrank.";
  module.attr("__version__") = CROSSRANK_VERSION;
  // A program that ends by an exception keeps its objects in the traceback, which is not a leak.
  nanobind::set_leak_warnings(false);
  python::watch_interpreter(module);
  python::translate_errors();
  python::poll_signals_in_waits();
  python::bind_tensor(module);
  python::bind_streams(module);
  python::bind_collective(module);
  python::bind_objects(module);
  python::bind_gather(module);
  python::bind_workspace(module);
  python::bind_message_queue(module);
  python::bind_coordinator(module);
  python::bind_mesh(module);
  python::bind_checkpoint(module);
  python::bind_parts(module);
  python::bind_memory_export(module);
  python::bind_log(module);
}
