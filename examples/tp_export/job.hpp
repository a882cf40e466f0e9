#pragma once
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "llama_sharding.hpp"
#include "shards.hpp"
#include "source_model.hpp"

namespace tp_export {

/// The state of each rank before the first merge: the source, its sharding, and this rank's shard.
struct Job {
  Job(std::filesystem::path const& model, int rank, int ranks);
  SourceModel source;
  LlamaSharding plan;
  std::vector<Unit> units;
};

/// The job cannot start. Thrown on all ranks, with the text of the first rank that failed.
class JobRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads the model's headers and this rank's shard. Collective. Throws `JobRefused` when that fails on any rank, or
/// when `out` already contains a checkpoint.
[[nodiscard]] std::unique_ptr<Job const> open_job(xr::Collective const& world, std::filesystem::path const& model,
                                                  std::filesystem::path const& out);

}  // namespace tp_export
