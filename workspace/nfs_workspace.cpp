#include <crossrank/nfs_workspace.hpp>

#include <utility>

#include <crossrank/error.hpp>

#include "workspace/nfs_medium.hpp"

namespace crossrank {

using workspace::NfsMedium;

NFSWorkspace::NFSWorkspace() noexcept = default;

NFSWorkspace::NFSWorkspace(std::filesystem::path const& path, WorkspaceOptions options)
    : medium_(NfsMedium::of_rank(path, options)) {}

NFSWorkspace::NFSWorkspace(std::shared_ptr<NfsMedium> medium) noexcept : medium_(std::move(medium)) {}

NFSWorkspace NFSWorkspace::open(std::filesystem::path const& path) {
  return NFSWorkspace(NfsMedium::for_reading(path));
}

NfsMedium& NFSWorkspace::initialized(char const* operation) const {
  if (medium_ != nullptr) return *medium_;
  throw UsageError(ErrorInfo{
      .operation = operation, .message = "this workspace is not initialized", .remedy = "construct it with a path"});
}

std::filesystem::path const& NFSWorkspace::path() const { return initialized("NFSWorkspace.path").path(); }

int NFSWorkspace::rank() const {
  auto const rank = initialized("NFSWorkspace.rank").rank();
  if (rank) return *rank;
  throw UsageError(ErrorInfo{.operation = "NFSWorkspace.rank",
                             .message = "a workspace that was opened for reading only has no rank",
                             .resource = medium_->path().string()});
}

void NFSWorkspace::write_configs_and_weights(Json const& config, StateDict const& weights) {
  initialized("NFSWorkspace.write").write(config, weights);
}

std::optional<RankState> NFSWorkspace::read_configs_and_weights_from_rank(int rank,
                                                                          StateReadOptions const& options) const {
  return initialized("NFSWorkspace.read").read_newest(rank, options.damaged);
}

void NFSWorkspace::clean() { initialized("NFSWorkspace.clean").clean(); }

}  // namespace crossrank
