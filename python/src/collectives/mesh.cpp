#include <crossrank/mesh.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "collectives/group_handles.hpp"
#include "module.hpp"
#include "options.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

void all_gather_to_list(JobCollective const& job, nb::handle outs, nb::handle in) {
  std::vector<Tensor> parts;
  for (auto const out : outs) parts.push_back(writable_tensor_from(out));
  auto const mine = tensor_from(in);
  run_waiting(job, [&] { job.all_gather_to_list(parts, mine); });
}

MeshCollective make_mesh_collective(Collective const& world, int tp_size, std::optional<int> sharding_world_size,
                                    std::optional<int> local_world_size, std::vector<int> ranks) {
  MeshOptions const options{.tp_size = tp_size,
                            .sharding_world_size = sharding_world_size,
                            .local_world_size = local_world_size,
                            .ranks = std::move(ranks)};
  return run_waiting(world, [&] { return MeshCollective(world, options); });
}

void bind_job(nb::module_& module) {
  nb::class_<JobCollective>(module, "JobCollective")
      .def("world", [](JobCollective const& job) { return job.world(); })
      .def("mesh", [](JobCollective const& job) { return job.mesh() ? std::optional(*job.mesh()) : std::nullopt; })
      .def("dp_rank", &JobCollective::dp_rank)
      .def("dp_world_size", &JobCollective::dp_world_size)
      .def("tp_rank", &JobCollective::tp_rank)
      .def("tp_world_size", &JobCollective::tp_world_size)
      .def("local", [](JobCollective const& job) { return job.local(); })
      .def("tp_world", [](JobCollective const& job) { return job.tp_world(); })
      .def("dp_world", [](JobCollective const& job) { return job.dp_world(); })
      .def("all_gather_to_list", &all_gather_to_list)
      .def("close", [](JobCollective const& job) { run_waiting(job, [&] { job.close(); }); });
  nb::class_<MeshCollective, JobCollective>(module, "MeshCollective")
      .def("dp_mesh", [](MeshCollective const& job) { return job.dp_mesh(); })
      .def("tp_mesh", [](MeshCollective const& job) { return job.tp_mesh(); })
      .def("node_mesh", [](MeshCollective const& job) { return job.node_mesh(); });
  module.def("make_mesh_collective", &make_mesh_collective, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
             nb::arg());
}

}  // namespace

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
  bind_job(module);
}

}  // namespace crossrank::python
