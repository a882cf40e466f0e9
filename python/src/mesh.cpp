#include <crossrank/mesh.hpp>

#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.hpp"
#include "waiting.hpp"

namespace crossrank::python {

void bind_mesh(nb::module_& module) {
  nb::class_<Mesh>(module, "Mesh")
      .def("group", [](Mesh const& mesh, std::string const& axis) { return mesh[axis]; })
      .def("groups", [](Mesh const& mesh, std::string const& axis) { return mesh.groups(axis); })
      .def("coordinate", [](Mesh const& mesh, std::string const& axis) { return mesh.coordinate(axis); });
  module.def("make_mesh", [](Collective const& world, std::vector<std::pair<std::string, int>> const& axes) {
    std::vector<Axis> named;
    for (auto const& [name, size] : axes) named.push_back({name, size});
    return run_waiting(world, [&] { return Mesh(world, named); });
  });
}

}  // namespace crossrank::python
