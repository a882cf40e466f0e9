#include "job.hpp"

#include <exception>
#include <span>
#include <string>

namespace tp_export {
namespace {

namespace fs = std::filesystem;

void require_new(fs::path const& file) {
  if (fs::exists(file))
    throw std::runtime_error(file.string() + " already exists; choose another folder, or remove it");
}

}  // namespace

Job::Job(fs::path const& model, int rank, int ranks)
    : source(model), plan(parse_llama_config(source.config()), ranks), units(read_shard(source, plan, rank)) {}

std::unique_ptr<Job const> open_job(xr::Collective const& world, fs::path const& model, fs::path const& out) {
  std::unique_ptr<Job const> job;
  std::string problem;
  try {
    if (world.is_master()) require_new(out / "model.safetensors");
    job = std::make_unique<Job const>(model, world.rank(), world.world_size());
  } catch (std::exception const& e) {
    problem = e.what();
  }
  // Without this round, ranks that succeeded would wait for ranks that failed.
  for (auto const& text : world.all_gatherv(std::as_bytes(std::span(problem)))) {
    if (!text.empty()) throw JobRefused(std::string(reinterpret_cast<char const*>(text.data()), text.size()));
  }
  return job;
}

}  // namespace tp_export
