// Merges the tensor-parallel shards of a Llama into one Hugging Face checkpoint: through shared memory, and again
// through a shared directory. Run it with `crossrank run -n 4 -- tp_export`: each rank holds one shard, and rank 0
// prints the results.
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <crossrank/crossrank.hpp>

#include "shared_folder.hpp"
#include "export.hpp"
#include "leftovers.hpp"
#include "make_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace tp_export;

struct Options {
  fs::path model{};
  fs::path out{};
  fs::path work{};
  bool small = false;
};

/// Returns the model to export: the given one, or one that rank 0 generates. Collective.
fs::path prepare_model(xr::Collective const& world, Options const& options, fs::path const& work) {
  if (!options.model.empty()) return options.model;
  auto made = work / "model";
  if (world.is_master() && !fs::exists(made / "config.json")) {
    std::printf("generating a model in %s\n", made.c_str());
    make_model(made, options.small ? ModelSize::small : ModelSize::normal);
  }
  world.barrier();
  return made;
}

void introduce(xr::Collective const& world, Job const& job, fs::path const& out) {
  if (!world.is_master()) return;
  std::size_t shard = 0;
  for (auto const& unit : job.units) shard += unit.weights.nbytes();
  auto const& llama = job.plan.config();
  std::printf("model: %s, a Llama of %lld layers, %lld heads, %zu tensors\n", job.source.directory().c_str(),
              static_cast<long long>(llama.layers), static_cast<long long>(llama.heads), job.source.entries().size());
  std::printf("ranks: %d, backend %s; rank 0 holds %s\n", world.world_size(), std::string(world.backend()).c_str(),
              bytes_text(shard).c_str());
  std::printf("checkpoint: %s\n", out.c_str());
}

/// Prints the verdict. Returns the exit code.
int conclude(std::vector<std::string> const& problems) {
  for (auto const& problem : problems) std::printf("verdict: FAIL: %s\n", problem.c_str());
  if (problems.empty()) std::puts("verdict: pass");
  return problems.empty() ? 0 : 1;
}

int run(xr::Collective& world, Options const& options, Leftovers& leftovers) {
  SharedFolder const work(world, options.work);
  auto const model = prepare_model(world, options, work.path());
  auto const out = options.out.empty() ? work.path() / "checkpoint" : fs::weakly_canonical(options.out);
  leftovers.watch(work.path());
  leftovers.watch(out);
  auto const job = open_job(world, model, out);
  introduce(world, *job, out);
  auto const exchange = work.path() / "exchange";
  auto outcome = export_model(world, *job, out, exchange);
  bool const speaks = world.is_master();
  world.close();
  if (!speaks) return 0;

  std::error_code is_not_empty;  // if it is not empty, its content is listed as left behind
  fs::remove(exchange, is_not_empty);
  auto const left = leftovers.find(outcome.files);
  for (auto const& path : left) outcome.problems.push_back("left behind: " + path);
  if (left.empty()) std::puts("left behind: nothing, neither in shared memory nor in files");
  print_table(outcome.rows);
  return conclude(outcome.problems);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Merges the tensor-parallel shards of a Llama into one checkpoint");
  app.add_option("--model", options.model,
                 "folder of a Hugging Face Llama in safetensors format; default: a generated model");
  app.add_option("--out", options.out, "folder for the checkpoint; default: \"checkpoint\" below --work");
  app.add_option("--work", options.work,
                 "folder that all ranks can write to; default: a temporary folder, removed at the end");
  app.add_flag("--small", options.small, "generate a model of 230 KiB instead of 128 MiB");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);

  xr::Collective world;
  bool speaks = false;
  try {
    Leftovers leftovers;
    world = xr::connect({.timeout = std::chrono::minutes(15)});  // rank 0 writes and compares while the others wait
    speaks = world.is_master();
    return run(world, options, leftovers);
  } catch (JobRefused const& e) {
    return speaks ? conclude({e.what()}) : 0;
  } catch (std::exception const& e) {
    if (speaks) {
      (void)conclude({e.what()});  // print the verdict before the other ranks learn of the error and end the job
    } else {
      std::fprintf(stderr, "tp_export: %s\n", e.what());
    }
    if (world.connected()) world.abort(e.what());
    return 1;
  }
}
