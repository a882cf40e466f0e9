#include <crossrank/checkpoint.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <crossrank/safetensors.hpp>

#include "checkpoint/checkpoint_job.hpp"
#include "json.hpp"
#include "module.hpp"
#include "options.hpp"
#include "own_thread.hpp"
#include "tensors/tensor.hpp"

namespace crossrank::python {
namespace {

constexpr std::pair<char const*, cp::ScalePolicy> policies[] = {{"exact", cp::ScalePolicy::exact},
                                                                {"rescale", cp::ScalePolicy::rescale},
                                                                {"requantize", cp::ScalePolicy::requantize}};

constexpr std::pair<char const*, cp::ArchiveCrc> crcs[] = {
    {"require", cp::ArchiveCrc::require}, {"warn", cp::ArchiveCrc::warn}, {"ignore", cp::ArchiveCrc::ignore}};

/// Reads the options of a plan. `split` calls the layout of its input otherwise, because its result has one too.
cp::PlanOptions plan_options(OptionReader& options, char const* moe_ep = "moe_ep") {
  cp::PlanOptions plan;
  options.read("rules", plan.rules);
  options.read("source_tp", plan.tp);
  options.read("pp", plan.pp);
  options.read("ep", plan.ep);
  options.read("pattern", plan.pattern);
  options.read("policy", policies, plan.policy);
  options.read("model_key", plan.model_key);
  options.read(moe_ep, plan.moe_ep);
  options.read("crc", crcs, plan.crc);
  options.read("extra_globals", plan.extra_globals);
  options.read("fused_layout", fused_layouts, plan.fused_layout);
  return plan;
}

cp::MergePlan make_plan(Collective const& world, std::filesystem::path const& shards, nb::dict given) {
  OptionReader reader(std::move(given));
  auto const options = plan_options(reader);
  reader.finish("MergePlan");
  return run_waiting(world, [&] { return cp::MergePlan::make(world, shards, options); });
}

/// Makes a plan for this process alone.
cp::MergePlan make_local_plan(std::filesystem::path const& shards, nb::dict given) {
  OptionReader reader(std::move(given));
  auto const options = plan_options(reader);
  reader.finish("load");
  return run_in_own_thread([=] { return cp::MergePlan::make(shards, options); });
}

cp::MergePlan load_plan(Collective const& world, std::filesystem::path const& file) {
  return run_waiting(world, [&] { return cp::MergePlan::load(world, file); });
}

void bind_plan(nb::module_& module) {
  nb::class_<cp::MergePlan>(module, "MergePlan")
      .def("tensors", &cp::MergePlan::tensors)
      .def("explain", [](cp::MergePlan const& plan, std::string const& tensor) { return plan.explain(tensor); })
      .def("read", [](cp::MergePlan const& plan,
                      std::string const& tensor) { return run_in_own_thread([=] { return plan.read(tensor); }); })
      .def("to_json", [](cp::MergePlan const& plan) { return to_python(plan.to_json()); })
      .def("save", [](cp::MergePlan const& plan,
                      std::filesystem::path const& file) { run_in_own_thread([=] { plan.save(file); }); })
      .def("bytes", &cp::MergePlan::bytes)
      .def("hash", &cp::MergePlan::hash)
      .def("requantized", [](cp::MergePlan const& plan) {
        nb::list changed;
        for (auto const& one : plan.requantized()) changed.append(nb::make_tuple(one.tensor, one.bound));
        return changed;
      });
  module.def("make_plan", &make_plan);
  module.def("make_local_plan", &make_local_plan);
  module.def("load_plan", &load_plan);
}

/// Merges by a finished plan, or by the plan of a directory of shards.
nb::dict consolidate(Collective const& world, nb::handle shards, std::filesystem::path const& out,
                     nb::object on_progress, nb::dict given) {
  Job job(std::move(on_progress));
  OptionReader reader(std::move(given));
  bool const has_plan = nb::isinstance<cp::MergePlan>(shards);
  auto const finished = has_plan ? nb::cast<cp::MergePlan>(shards) : cp::MergePlan();
  auto const place = has_plan ? std::filesystem::path() : nb::cast<std::filesystem::path>(shards);
  auto const plan = has_plan ? cp::PlanOptions() : plan_options(reader);
  cp::ConsolidateOptions options{.on_progress = job.reporter(), .stop = job.token()};
  read_writing_options(reader, options);
  reader.read("max_shard_bytes", options.max_shard_bytes);
  reader.read("resume", options.resume);
  reader.read("single_file", options.single_file);
  reader.finish("consolidate");
  return summary_to_python(job.run(world, [&] {
    return cp::consolidate(world, has_plan ? finished : cp::MergePlan::make(world, place, plan), out, options);
  }));
}

nb::dict split(Collective const& world, std::filesystem::path const& model, std::filesystem::path const& out, int tp,
               nb::object on_progress, nb::dict given) {
  Job job(std::move(on_progress));
  OptionReader reader(std::move(given));
  auto const plan = plan_options(reader, "source_moe_ep");
  cp::SplitOptions options{.tp = tp, .rules = plan.rules, .on_progress = job.reporter(), .stop = job.token()};
  read_writing_options(reader, options);
  reader.read("resume", options.resume);
  reader.read("moe_ep", options.moe_ep);
  reader.finish("split");
  return summary_to_python(
      job.run(world, [&] { return cp::split(world, cp::MergePlan::make(world, model, plan), out, options); }));
}

nb::dict verify(Collective const& world, std::filesystem::path const& path, nb::object on_progress, nb::dict given) {
  Job job(std::move(on_progress));
  OptionReader reader(std::move(given));
  auto const plan = plan_options(reader);
  cp::VerifyOptions options{.on_progress = job.reporter(), .stop = job.token()};
  reader.read("numbers", options.numbers);
  reader.read("checksums", options.checksums);
  reader.read("threads", options.threads);
  reader.finish("verify");
  auto const report = job.run(world, [&] { return cp::verify(world, path, plan, options); });
  nb::list defects;
  for (auto const& defect : report.defects)
    defects.append(nb::make_tuple(cp::to_string(defect.kind), defect.resource, defect.text, defect.hint));
  nb::dict dict;
  dict["defects"] = defects;
  dict["files"] = report.files;
  dict["tensors"] = report.tensors;
  dict["bytes"] = report.bytes;
  dict["bytes_read"] = report.bytes_read;
  return dict;
}

/// Saves the tensors that the Python function `given` returns together with a dict of options.
nb::dict save_sharded(Collective const& world, nb::handle given, std::filesystem::path const& out,
                      nb::object on_progress) {
  Job job(std::move(on_progress));
  StateDict tensors;
  cp::SaveOptions options{.on_progress = job.reporter(), .stop = job.token()};
  read_on_all_ranks(world, "save_sharded", [&] {
    auto const parts = nb::cast<nb::tuple>(given());
    tensors = state_dict_from(parts[0]);
    OptionReader reader(nb::cast<nb::dict>(parts[1]));
    reader.read("config", options.config);
    reader.read("force", options.force);
    reader.read("threads", options.threads);
    reader.read("read_back", read_backs, options.read_back);
    reader.read("format", formats, options.format);
    reader.finish("save_sharded");
  });
  return summary_to_python(job.run(world, [&] { return cp::save_sharded(world, tensors, out, options); }));
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  bind_plan(module);
  module.def("consolidate", &consolidate, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("split", &split, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("verify", &verify, nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("save_sharded", &save_sharded, nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  module.def("save_safetensors", [](std::filesystem::path const& path, nb::handle weights,
                                    std::vector<std::pair<std::string, std::string>> metadata, bool force) {
    auto const tensors = state_dict_from(weights);
    SafetensorsOptions const options{.metadata = std::move(metadata), .force = force};
    run_in_own_thread([=] { save_safetensors(path, tensors, options); });
  });
  nb::class_<SafetensorsFile>(module, "SafetensorsFile")
      .def("__init__",
           [](SafetensorsFile* self, std::filesystem::path path) {
             std::construct_at(self, run_in_own_thread([=] { return SafetensorsFile(path); }));
           })
      .def("names",
           [](SafetensorsFile const& file) {
             std::vector<std::string> names;
             for (auto const& entry : file.entries()) names.push_back(entry.name);
             return names;
           })
      .def("metadata", [](SafetensorsFile const& file) { return file.metadata(); })
      .def("read", [](SafetensorsFile const& file,
                      std::string const& name) { return run_in_own_thread([=] { return file.read(name); }); })
      .def("map", [](SafetensorsFile const& file, std::string const& name) {
        return run_without_gil([&] { return file.map(name); });
      });
}

}  // namespace crossrank::python
