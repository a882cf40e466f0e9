#include <crossrank/checkpoint/memory_export.hpp>

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/vector.h>

#include "checkpoint/checkpoint_job.hpp"
#include "errors.hpp"
#include "module.hpp"
#include "tensors/tensor.hpp"

namespace crossrank::python {
namespace {

// The names of PyTorch.
constexpr std::pair<char const*, ReduceOp> partial_ops[] = {
    {"sum", ReduceOp::sum}, {"avg", ReduceOp::avg},   {"product", ReduceOp::prod}, {"min", ReduceOp::min},
    {"max", ReduceOp::max}, {"band", ReduceOp::band}, {"bor", ReduceOp::bor},      {"bxor", ReduceOp::bxor}};

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

/// Reads the place of a rank in a grid of ranks.
cp::Placements grid_from(nb::dict given) {
  cp::Placements placements;
  OptionReader reader(std::move(given));
  reader.read("tp_rank", placements.tp_rank);
  reader.read("tp", placements.tp);
  reader.read("pp_rank", placements.pp_rank);
  reader.read("pp", placements.pp);
  reader.read("ep_rank", placements.ep_rank);
  reader.read("ep", placements.ep);
  reader.read("moe_ep", placements.moe_ep);
  reader.finish("Grid");
  return placements;
}

/// Reads a dict of tensor names to dicts with mesh_shape, mesh_ranks, placements and shape.
void read_placements(nb::dict const& given, cp::Placements& placements) {
  for (auto const [name, value] : given) {
    auto const fields = nb::cast<nb::dict>(value);
    cp::TensorPlacement one{.mesh = {.shape = nb::cast<std::vector<std::int64_t>>(fields["mesh_shape"]),
                                     .ranks = nb::cast<std::vector<int>>(fields["mesh_ranks"])},
                            .shape = shape_from(fields["shape"])};
    for (auto const placement : nb::cast<nb::list>(fields["placements"]))
      one.placements.push_back(placement_from(placement));
    placements.tensors.emplace(nb::cast<std::string>(name), std::move(one));
  }
}

constexpr std::pair<char const*, cp::RuleDirection> directions[] = {{"forward", cp::RuleDirection::forward},
                                                                    {"backward", cp::RuleDirection::backward}};

cp::ModelDescription model_from(OptionReader& reader) {
  cp::ModelDescription model;
  reader.read("config", model.config);
  reader.read("assets", model.directory);
  reader.read("rules", model.rules);
  reader.read("direction", directions, model.direction);
  reader.read("fused_layout", fused_layouts, model.fused_layout);
  return model;
}

cp::ExportOptions export_options_from(OptionReader& reader) {
  cp::ExportOptions options{.model = model_from(reader)};
  read_writing_options(reader, options);
  reader.read("max_shard_bytes", options.max_shard_bytes);
  reader.read("single_file", options.single_file);
  return options;
}

/// The arguments of one rank: its tensors, their placements and the options.
template <class Options>
struct Arguments {
  StateDict tensors{};
  cp::Placements placements{};
  Options options{};
};

/// Reads the arguments that the Python function `given` returns: a dict of tensors, their placements, and a dict of
/// options, among them the `grid`. If one rank's arguments are wrong, its exception ends the call there, and a
/// `RemoteError` on the others.
template <class Options>
Arguments<Options> read_arguments(Collective const& world, char const* operation, nb::handle given,
                                  std::function<Options(OptionReader&)> const& read_options) {
  Arguments<Options> arguments;
  read_on_all_ranks(world, operation, [&] {
    auto const parts = nb::cast<nb::tuple>(given());
    OptionReader reader(nb::cast<nb::dict>(parts[2]));
    nb::dict grid;
    reader.read("grid", grid);
    arguments.options = read_options(reader);
    reader.finish(operation);
    arguments.tensors = state_dict_from(parts[0]);
    arguments.placements = grid_from(std::move(grid));
    read_placements(nb::cast<nb::dict>(parts[1]), arguments.placements);
  });
  return arguments;
}

nb::dict export_checkpoint(Collective const& world, nb::handle given, nb::object on_progress) {
  struct Target {
    std::filesystem::path out{};
    cp::ExportOptions options{};
  };
  Job job(std::move(on_progress));
  auto arguments = read_arguments<Target>(world, "export_checkpoint", given, [](OptionReader& reader) {
    Target target{.options = export_options_from(reader)};
    reader.read("out", target.out);
    return target;
  });
  auto& [out, options] = arguments.options;
  options.on_progress = job.reporter();
  options.stop = job.token();
  return summary_to_python(job.run(world, [&, &out = out, &options = options] {
    return cp::consolidate(world, arguments.tensors, arguments.placements, out, options);
  }));
}

/// Reports progress to a Python function from a thread of the library. An exception of the function ends the export.
class ThreadReporter {
 public:
  ThreadReporter(nb::object on_progress, std::stop_source stop)
      : on_progress_(std::move(on_progress)), stop_(std::move(stop)) {}

  void report(cp::Progress const& progress) {
    InterpreterHold const hold;
    if (raised_ || !hold) return;
    report_progress(on_progress_.get(), progress, raised_, stop_);
  }
  /// Returns the exception of the function, or null. Call it after the end of the export.
  [[nodiscard]] std::exception_ptr raised() const noexcept { return raised_; }

 private:
  SharedObject on_progress_;
  std::stop_source stop_;
  std::exception_ptr raised_;
};

/// An export that goes on while Python computes. Its end is awaited without the GIL, also by the destructor.
class BackgroundExport {
 public:
  BackgroundExport() = default;
  ~BackgroundExport() { cancel(); }
  BackgroundExport(BackgroundExport const&) = delete;
  BackgroundExport& operator=(BackgroundExport const&) = delete;

  /// Returns once all ranks have copied their weights. Call it once.
  void start(Collective const& world, nb::handle given, nb::object on_progress) {
    struct Target {
      std::filesystem::path out{};
      cp::BackgroundOptions options{};
    };
    auto arguments = read_arguments<Target>(world, "async_export_checkpoint", given, [](OptionReader& reader) {
      Target target{.options = {.write = export_options_from(reader)}};
      reader.read("out", target.out);
      reader.read("max_copy_bytes", target.options.max_copy_bytes);
      return target;
    });
    auto& [out, options] = arguments.options;
    options.write.stop = stop_.get_token();
    if (!on_progress.is_none()) {
      reporter_ = std::make_shared<ThreadReporter>(std::move(on_progress), stop_);
      options.write.on_progress = [reporter = reporter_](cp::Progress const& progress) { reporter->report(progress); };
    }
    request_ = run_waiting(world, [&, &out = out, &options = options] {
      return cp::iconsolidate(world, arguments.tensors, arguments.placements, out, options);
    });
    started_ = true;
  }
  /// Ends the export on all ranks, unless it has ended, and waits for that.
  void cancel() {
    ReleasedGil const released;
    request_ = {};
  }

  [[nodiscard]] bool started() const noexcept { return started_; }
  [[nodiscard]] bool done() const { return request_.done(); }
  nb::dict wait() {
    return summary_to_python(run_waiting([this] { stop_.request_stop(); }, [this] { return result(); }));
  }

 private:
  cp::Summary result() {
    bool all_told = false;
    try {
      return request_.wait();
    } catch (CallbackError const&) {
      all_told = true;
    } catch (Error const&) {
      if (!reporter_ || !reporter_->raised()) throw;
    }
    try {
      std::rethrow_exception(reporter_->raised());
    } catch (nb::python_error const& raised) {
      AcquiredGil const gil;
      if (all_told) mark_usable(raised);
      throw;
    }
  }

  std::stop_source stop_;
  std::shared_ptr<ThreadReporter> reporter_;
  cp::ExportRequest request_;
  bool started_ = false;
};

nb::dict full_state_dict(Collective const& world, nb::handle given) {
  Job job{nb::none()};
  auto const read_options = [&job](OptionReader& reader) {
    cp::FullStateOptions options{.model = model_from(reader), .stop = job.token()};
    reader.read("dst", options.dst);
    return options;
  };
  auto const arguments = read_arguments<cp::FullStateOptions>(world, "gather_full_state_dict", given, read_options);
  auto const& options = arguments.options;
  return state_dict_to_python(
      job.run(world, [&] { return cp::get_full_state_dict(world, arguments.tensors, arguments.placements, options); }));
}

/// Returns this rank's shards in the grid `to`. `wants` is None, or chooses among the names of the whole model.
nb::dict reshard(Collective const& world, nb::handle given, nb::handle wants) {
  struct Target {
    cp::Placements to{};
    cp::ModelDescription model{};
  };
  auto const arguments = read_arguments<Target>(world, "reshard", given, [](OptionReader& reader) {
    nb::dict to;
    reader.read("to", to);
    return Target{.to = grid_from(std::move(to)), .model = model_from(reader)};
  });
  Job job{nb::none()};
  cp::ReshardOptions options{.model = arguments.options.model, .stop = job.token()};
  auto const& target = arguments.options.to;
  if (!wants.is_none()) {
    options.wants = [&](std::string const& name) {
      bool wanted = false;
      job.call_python([&] { wanted = static_cast<bool>(nb::bool_(wants(name))); });
      return wanted;
    };
  }
  return state_dict_to_python(
      job.run(world, [&] { return cp::reshard(world, arguments.tensors, arguments.placements, target, options); }));
}

}  // namespace

void bind_memory_export(nb::module_& module) {
  module.def("export_checkpoint", &export_checkpoint, nb::arg(), nb::arg(), nb::arg().none());
  module.def("get_full_state_dict", &full_state_dict);
  module.def("reshard", &reshard, nb::arg(), nb::arg(), nb::arg().none());
  nb::class_<BackgroundExport>(module, "BackgroundExport")
      .def(nb::init<>())
      .def("start", &BackgroundExport::start, nb::arg(), nb::arg(), nb::arg().none())
      .def("started", &BackgroundExport::started)
      .def("cancel", &BackgroundExport::cancel)
      .def("done", &BackgroundExport::done)
      .def("wait", &BackgroundExport::wait);
}

}  // namespace crossrank::python
