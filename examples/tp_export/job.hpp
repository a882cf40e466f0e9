#pragma once
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "examples/tp_export/llama_sharding.hpp"
#include "examples/tp_export/shards.hpp"
#include "examples/tp_export/source_model.hpp"

namespace tp_export {

/// What each rank of the job knows before the first merge: the source, how it is spread, and its own shard.
struct Job {
  Job(std::filesystem::path const& model, int rank, int ranks);
  SourceModel source;
  LlamaSharding plan;
  std::vector<Unit> units;
};

/// The job cannot begin. Thrown on all ranks, with the text of the first that found out.
class JobRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads model and shard on all ranks. Collective; `JobRefused` when that fails on one, or when there is a checkpoint
/// in `out`.
[[nodiscard]] std::unique_ptr<Job const> open_job(xr::Collective const& world, std::filesystem::path const& model,
                                                  std::filesystem::path const& out);

}  // namespace tp_export
