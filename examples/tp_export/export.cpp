#include "export.hpp"

#include <cstdio>
#include <utility>

#include <crossrank/safetensors.hpp>

#include "checkpoint.hpp"
#include "merge.hpp"

namespace tp_export {
namespace {

namespace fs = std::filesystem;

class Export {
 public:
  Export(xr::Collective const& world, Job const& job) : world_(world), job_(job) {}

  xr::StateDict merge(std::string const& exchange, xr::GatherOptions const& options) {
    Merged merged;
    Progress progress(world_, exchange, job_.units.size());
    outcome.rows.push_back(measure(world_, exchange, [&]() -> Step {
      merged = merge_shards(job_.units, job_.plan, world_, options, [&](std::size_t done) { progress(done); });
      return {merged.weights.nbytes(), merged.joined};
    }));
    check(merged.weights, exchange);
    return std::move(merged.weights);
  }

  void write(xr::StateDict const& weights, fs::path const& out) {
    outcome.rows.push_back(measure(world_, "checkpoint written", [&]() -> Step {
      if (world_.is_master()) outcome.files = write_checkpoint(out, weights, job_.source);
      return {weights.nbytes(), 0};
    }));
  }

  void read_back(fs::path const& out) {
    xr::StateDict weights;
    outcome.rows.push_back(measure(world_, "checkpoint read", [&]() -> Step {
      if (world_.is_master()) weights = xr::load_safetensors(out / "model.safetensors");
      return {weights.nbytes(), 0};
    }));
    check(weights, "checkpoint");
  }

  Outcome outcome{};

 private:
  void check(xr::StateDict const& weights, std::string const& where) {
    if (!world_.is_master()) return;
    auto const difference = compare(weights, job_.source, job_.plan, world_);
    if (difference.empty()) {
      std::printf("%s: all %zu tensors equal the source, bit for bit\n", where.c_str(), weights.size());
    } else {
      outcome.problems.push_back(where + ": " + difference);
    }
  }

  xr::Collective const& world_;
  Job const& job_;
};

}  // namespace

Outcome export_model(xr::Collective const& world, Job const& job, fs::path const& out, fs::path const& exchange) {
  Export exporting(world, job);
  (void)exporting.merge("shared memory", {});  // the first merge touches fresh memory, and each page costs a fault
  exporting.write(exporting.merge("shared memory, warm", {}), out);
  exporting.read_back(out);
  (void)exporting.merge("shared directory", {.workspace_path = exchange});
  return std::move(exporting.outcome);
}

}  // namespace tp_export
