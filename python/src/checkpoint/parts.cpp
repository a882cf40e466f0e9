#include <crossrank/checkpoint/parts.hpp>

#include <string>
#include <utility>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "checkpoint/checkpoint_job.hpp"
#include "module.hpp"
#include "options.hpp"
#include "own_thread.hpp"

namespace crossrank::python {
namespace {

constexpr std::pair<char const*, cp::PartCheck> part_checks[] = {
    {"changed", cp::PartCheck::changed}, {"all", cp::PartCheck::all}, {"none", cp::PartCheck::none}};

cp::PartsPlan make_parts(cp::MergePlan const& plan, std::filesystem::path const& out, nb::dict given) {
  OptionReader reader(std::move(given));
  cp::PartsOptions options;
  reader.read("parts", options.parts);
  reader.read("max_shard_bytes", options.max_shard_bytes);
  reader.read("single_file", options.single_file);
  reader.read("format", formats, options.format);
  reader.read("force", options.force);
  reader.finish("PartsPlan");
  return run_in_own_thread([=] { return cp::PartsPlan::make(plan, out, options); });
}

nb::dict consolidate_part(cp::PartsPlan const& plan, int part, nb::object on_progress, nb::dict given) {
  Job job(std::move(on_progress));
  OptionReader reader(std::move(given));
  cp::PartOptions options{.on_progress = job.reporter(), .stop = job.token()};
  reader.read("read_back", read_backs, options.read_back);
  reader.read("threads", options.threads);
  reader.finish("consolidate_part");
  return summary_to_python(job.run([&] { return cp::consolidate_part(plan, part, options); }));
}

nb::dict finish_parts(cp::PartsPlan const& plan, nb::object on_progress, nb::dict given) {
  Job job(std::move(on_progress));
  OptionReader reader(std::move(given));
  cp::FinishOptions options{.on_progress = job.reporter(), .stop = job.token()};
  reader.read("force", options.force);
  reader.read("check", part_checks, options.check);
  reader.read("dry_run", options.dry_run);
  reader.read("threads", options.threads);
  reader.finish("finish_parts");
  return summary_to_python(job.run([&] { return cp::finish_parts(plan, options); }));
}

}  // namespace

void bind_parts(nb::module_& module) {
  nb::class_<cp::PartsPlan>(module, "PartsPlan")
      .def("save", [](cp::PartsPlan const& plan,
                      std::filesystem::path const& file) { run_in_own_thread([=] { plan.save(file); }); })
      .def("parts", &cp::PartsPlan::parts)
      .def("out", [](cp::PartsPlan const& plan) { return plan.out(); })
      .def("files", &cp::PartsPlan::files)
      .def("bytes", &cp::PartsPlan::bytes)
      .def("missing", [](cp::PartsPlan const& plan) { return run_in_own_thread([=] { return plan.missing(); }); });
  module.def("make_parts", &make_parts);
  module.def("load_parts", [](std::filesystem::path const& file) {
    return run_in_own_thread([=] { return cp::PartsPlan::load(file); });
  });
  module.def("part_from_environment", &cp::part_from_environment);
  module.def("consolidate_part", &consolidate_part, nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("finish_parts", &finish_parts, nb::arg(), nb::arg().none(), nb::arg());
}

}  // namespace crossrank::python
