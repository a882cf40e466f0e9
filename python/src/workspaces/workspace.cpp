#include <optional>
#include <string>
#include <utility>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <crossrank/workspace.hpp>

#include "json.hpp"
#include "module.hpp"
#include "options.hpp"
#include "own_thread.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"
#include "workspaces/workspaces.hpp"

namespace crossrank::python {
namespace {

constexpr std::pair<char const*, Existing> existing_files[] = {{"remove", Existing::remove},
                                                               {"keep", Existing::keep},
                                                               {"remove_killed", Existing::remove_killed},
                                                               {"force", Existing::force}};
constexpr std::pair<char const*, StateFormat> state_formats[] = {{"safetensors", StateFormat::safetensors},
                                                                 {"torch", StateFormat::torch}};
constexpr std::pair<char const*, Damaged> damaged_files[] = {{"refuse", Damaged::refuse},
                                                             {"take_older", Damaged::take_older}};

NFSWorkspace make_nfs(std::filesystem::path const& path, std::optional<int> rank, std::string_view existing,
                      std::string_view format, std::optional<int> world_size) {
  WorkspaceOptions const options{.rank = rank,
                                 .existing = named(existing_files, "existing", existing),
                                 .format = named(state_formats, "format", format),
                                 .world_size = world_size};
  return run_in_own_thread([=] { return NFSWorkspace(path, options); });
}

/// Runs a call that changes the workspace. If it is interrupted, its thread goes on alone and keeps the workspace,
/// which two threads must not use, so the caller's handle becomes empty.
template <class Work>
void change(NFSWorkspace& workspace, Work const& work) {
  auto own = std::exchange(workspace, NFSWorkspace());
  try {
    run_in_own_thread([work, own]() mutable { work(own); });
  } catch (nb::python_error const&) {  // of a signal handler
    throw;
  } catch (...) {
    workspace = own;
    throw;
  }
  workspace = own;
}

void write_nfs(NFSWorkspace& workspace, nb::handle config, nb::handle weights) {
  auto const json = to_json(config);
  auto const tensors = state_dict_from(weights);
  change(workspace, [=](NFSWorkspace& own) { own.write_configs_and_weights(json, tensors); });
}

void write_shared_memory(SharedMemoryWorkspace& workspace, nb::handle config, nb::handle weights, bool in_place) {
  auto const json = to_json(config);
  auto const tensors = state_dict_from(weights);
  run_copy([&] { workspace.write_configs_and_weights(json, tensors, {.in_place = in_place}); });
}

nb::object optional_state(std::optional<RankState> const& state) {
  return state ? nb::object(state_to_python(*state)) : nb::object(nb::none());
}

}  // namespace

nb::tuple state_to_python(RankState const& state) {
  return nb::make_tuple(to_python(state.config), state_dict_to_python(state.weights));
}

void bind_workspace(nb::module_& module) {
  nb::class_<NFSWorkspace>(module, "NFSWorkspace")
      .def("path", [](NFSWorkspace const& workspace) { return workspace.path(); })
      .def("rank", &NFSWorkspace::rank)
      .def("write", &write_nfs, nb::arg().none(), nb::arg())
      .def("read",
           [](NFSWorkspace const& workspace, int rank, std::string_view damaged, nb::handle to) {
             StateReadOptions const options{.damaged = named(damaged_files, "damaged", damaged),
                                            .to = followed_device(to)};
             return optional_state(
                 run_in_own_thread([=] { return workspace.read_configs_and_weights_from_rank(rank, options); }));
           })
      .def("clean", [](NFSWorkspace& workspace) { change(workspace, [](NFSWorkspace& own) { own.clean(); }); });
  module.def("make_nfs_workspace", &make_nfs, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
  module.def("open_nfs_workspace", [](std::filesystem::path const& path) {
    return run_in_own_thread([=] { return NFSWorkspace::open(path); });
  });

  nb::class_<SharedMemoryWorkspace>(module, "SharedMemoryWorkspace")
      .def(nb::init<Collective const&>())
      .def("empty",
           [](SharedMemoryWorkspace const& workspace, nb::handle shape, std::string_view dtype, nb::handle device) {
             auto const lengths = shape_from(shape);
             auto const type = dtype_named(dtype);
             auto const where = followed_device(device);
             return run_without_gil([&] { return workspace.empty(lengths, type, where); });
           })
      .def("zeros",
           [](SharedMemoryWorkspace const& workspace, nb::handle shape, std::string_view dtype) {
             auto const lengths = shape_from(shape);
             auto const type = dtype_named(dtype);
             return run_without_gil([&] { return workspace.zeros(lengths, type); });
           })
      .def("write", &write_shared_memory, nb::arg().none(), nb::arg(), nb::arg())
      .def("read",
           [](SharedMemoryWorkspace const& workspace, int rank, nb::handle to, bool in_place) {
             StateReadOptions const options{.to = followed_device(to), .in_place = in_place};
             return optional_state(
                 run_copy([&] { return workspace.read_configs_and_weights_from_rank(rank, options); }));
           })
      .def("clean", [](SharedMemoryWorkspace& workspace) { run_without_gil([&] { workspace.clean(); }); })
      .def("trim",
           [](SharedMemoryWorkspace const& workspace) { return run_without_gil([&] { return workspace.trim(); }); });
}

}  // namespace crossrank::python
