#include <crossrank/checkpoint/memory_export.hpp>

#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/vector.h>

#include "checkpoint_job.hpp"
#include "errors.hpp"
#include "json.hpp"
#include "module.hpp"
#include "tensor.hpp"

namespace crossrank::python {
namespace {

constexpr std::pair<char const*, ReduceOp> partial_ops[] = {
    {"sum", ReduceOp::sum}, {"avg", ReduceOp::avg}, {"min", ReduceOp::min}, {"max", ReduceOp::max}};

/// Reads a placement such as ("shard", 0), ("strided_shard", 0, 2), ("partial", "sum") or ("replicate",).
cp::Placement placement_from(nb::handle value) {
  auto const parts = nb::cast<nb::tuple>(value);
  auto const kind = nb::cast<std::string>(parts[0]);
  if (kind == "replicate") return cp::Replicate{};
  if (kind == "shard") return cp::Shard{.dim = nb::cast<std::int64_t>(parts[1])};
  if (kind == "partial") return cp::Partial{.op = named(partial_ops, "placement", nb::cast<std::string>(parts[1]))};
  if (kind == "strided_shard")
    return cp::StridedShard{.dim = nb::cast<std::int64_t>(parts[1]), .split_factor = nb::cast<std::int64_t>(parts[2])};
  refuse("placement", "there is no such placement", "replicate, shard, strided_shard, partial", kind);
}

/// Reads the place of this rank, and a dict of tensor names to dicts with mesh_shape, mesh_ranks, placements and shape.
cp::Placements placements_from(nb::dict grid, nb::dict const& given) {
  cp::Placements placements;
  OptionReader reader(std::move(grid));
  reader.read("tp_rank", placements.tp_rank);
  reader.read("tp", placements.tp);
  reader.read("pp_rank", placements.pp_rank);
  reader.read("pp", placements.pp);
  reader.read("ep_rank", placements.ep_rank);
  reader.read("ep", placements.ep);
  reader.read("moe_ep", placements.moe_ep);
  reader.finish("Grid");
  for (auto const [name, value] : given) {
    auto const fields = nb::cast<nb::dict>(value);
    cp::TensorPlacement one{.mesh = {.shape = nb::cast<std::vector<std::int64_t>>(fields["mesh_shape"]),
                                     .ranks = nb::cast<std::vector<int>>(fields["mesh_ranks"])},
                            .shape = shape_from(fields["shape"])};
    for (auto const placement : nb::cast<nb::list>(fields["placements"]))
      one.placements.push_back(placement_from(placement));
    placements.tensors.emplace(nb::cast<std::string>(name), std::move(one));
  }
  return placements;
}

constexpr std::pair<char const*, cp::RuleDirection> directions[] = {{"forward", cp::RuleDirection::forward},
                                                                    {"backward", cp::RuleDirection::backward}};

cp::ModelDescription model_from(OptionReader& reader) {
  cp::ModelDescription model;
  nb::object config = nb::none();
  reader.read("config", config);
  if (!config.is_none()) model.config = to_json(config);
  reader.read("assets", model.directory);
  reader.read("rules", model.rules);
  reader.read("direction", directions, model.direction);
  return model;
}

cp::ExportOptions export_options_from(OptionReader& reader) {
  cp::ExportOptions options{.model = model_from(reader)};
  reader.read("max_shard_bytes", options.max_shard_bytes);
  reader.read("single_file", options.single_file);
  reader.read("force", options.force);
  reader.read("threads", options.threads);
  reader.read("format", formats, options.format);
  return options;
}

nb::dict export_checkpoint(Collective const& world, nb::handle weights, nb::dict grid, nb::dict const& placements,
                           std::filesystem::path const& out, nb::object on_progress, nb::dict given) {
  Job job(std::move(on_progress));
  OptionReader reader(std::move(given));
  auto options = export_options_from(reader);
  reader.finish("export_checkpoint");
  options.on_progress = job.reporter();
  options.stop = job.token();
  auto const tensors = state_dict_from(weights);
  auto const sharding = placements_from(std::move(grid), placements);
  return summary_to_python(job.run([&] { return cp::consolidate(world, tensors, sharding, out, options); }));
}

/// An export that goes on while Python computes. Its end is awaited without the GIL, also by the destructor.
class BackgroundExport {
 public:
  BackgroundExport(Collective const& world, nb::handle weights, nb::dict grid, nb::dict const& placements,
                   std::filesystem::path const& out, nb::dict given) {
    OptionReader reader(std::move(given));
    cp::BackgroundOptions options{.write = export_options_from(reader)};
    reader.read("max_copy_bytes", options.max_copy_bytes);
    reader.finish("async_export_checkpoint");
    options.write.stop = stop_.get_token();
    auto const tensors = state_dict_from(weights);
    auto const sharding = placements_from(std::move(grid), placements);
    request_ = run_waiting(world, [&] { return cp::iconsolidate(world, tensors, sharding, out, options); });
  }
  ~BackgroundExport() {
    run_without_gil([this] { request_ = {}; });
  }
  BackgroundExport(BackgroundExport const&) = delete;
  BackgroundExport& operator=(BackgroundExport const&) = delete;

  [[nodiscard]] bool done() const { return request_.done(); }
  nb::dict wait() {
    return summary_to_python(run_waiting([this] { stop_.request_stop(); }, [this] { return request_.wait(); }));
  }

 private:
  std::stop_source stop_;
  cp::ExportRequest request_;
};

nb::dict full_state_dict(Collective const& world, nb::handle weights, nb::dict grid, nb::dict const& placements,
                         int dst, nb::dict given) {
  OptionReader reader(std::move(given));
  auto model = model_from(reader);
  reader.finish("gather_full_state_dict");
  auto const tensors = state_dict_from(weights);
  auto const sharding = placements_from(std::move(grid), placements);
  Job job{nb::none()};
  cp::FullStateOptions const options{.model = std::move(model), .dst = dst, .stop = job.token()};
  return state_dict_to_python(job.run([&] { return cp::get_full_state_dict(world, tensors, sharding, options); }));
}

/// Returns this rank's shards in the grid `to`. `wants` is None, or chooses among the names of the whole model.
nb::dict reshard(Collective const& world, nb::handle weights, nb::dict grid, nb::dict const& placements, nb::dict to,
                 nb::handle wants, nb::dict given) {
  OptionReader reader(std::move(given));
  Job job{nb::none()};
  cp::ReshardOptions options{.model = model_from(reader), .stop = job.token()};
  reader.finish("reshard");
  auto const tensors = state_dict_from(weights);
  auto const from = placements_from(std::move(grid), placements);
  auto const target = placements_from(std::move(to), nb::dict());
  if (!wants.is_none()) {
    options.wants = [&](std::string const& name) {
      bool wanted = false;
      job.call_python([&] { wanted = nb::cast<bool>(wants(name)); });
      return wanted;
    };
  }
  return state_dict_to_python(job.run([&] { return cp::reshard(world, tensors, from, target, options); }));
}

}  // namespace

void bind_memory_export(nb::module_& module) {
  module.def("export_checkpoint", &export_checkpoint, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg().none(), nb::arg());
  module.def("get_full_state_dict", &full_state_dict);
  module.def("reshard", &reshard, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  nb::class_<BackgroundExport>(module, "BackgroundExport")
      .def(nb::init<Collective const&, nb::handle, nb::dict, nb::dict const&, std::filesystem::path const&, nb::dict>())
      .def("done", &BackgroundExport::done)
      .def("wait", &BackgroundExport::wait);
}

}  // namespace crossrank::python
