#include <crossrank/workspace/nfs_workspace.hpp>

#include <utility>

#include <crossrank/error.hpp>

#include "lib/tensor/transfer/tensor_mover.hpp"
#include "workspace/nfs/file_state_store.hpp"

namespace crossrank {

using workspace::FileStateStore;

NFSWorkspace::NFSWorkspace() noexcept = default;

NFSWorkspace::NFSWorkspace(std::filesystem::path const& path, WorkspaceOptions options)
    : store_(FileStateStore::open_for_rank(path, options)) {}

NFSWorkspace::NFSWorkspace(std::shared_ptr<FileStateStore> store) noexcept : store_(std::move(store)) {}

NFSWorkspace NFSWorkspace::open(std::filesystem::path const& path) {
  return NFSWorkspace(FileStateStore::open_for_reading(path));
}

FileStateStore& NFSWorkspace::initialized(char const* operation) const {
  if (store_ != nullptr) return *store_;
  throw UsageError(ErrorInfo{
      .operation = operation, .message = "this workspace is not initialized", .hint = "construct it with a path"});
}

std::filesystem::path const& NFSWorkspace::path() const { return initialized("NFSWorkspace.path").path(); }

int NFSWorkspace::rank() const {
  auto const rank = initialized("NFSWorkspace.rank").rank();
  if (rank) return *rank;
  throw UsageError(ErrorInfo{.operation = "NFSWorkspace.rank",
                             .message = "this workspace was opened for reading only and has no rank",
                             .resource = store_->path().string(),
                             .hint = "construct it with NFSWorkspace(path) instead of NFSWorkspace::open(path)"});
}

void NFSWorkspace::write_configs_and_weights(Json const& config, StateDict const& weights) {
  initialized("NFSWorkspace.write").write(config, weights);
}

std::optional<RankState> NFSWorkspace::read_configs_and_weights_from_rank(int rank,
                                                                          StateReadOptions const& options) const {
  auto state = initialized("NFSWorkspace.read").read_newest(rank, options.damaged);
  if (state) TensorMover(options.to).move_all(state->weights);
  return state;
}

void NFSWorkspace::clean() { initialized("NFSWorkspace.clean").clean(); }

}  // namespace crossrank
