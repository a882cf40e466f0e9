#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/codec/torch/torch_tree.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Reads a torch archive, or the part of it that holds the model. Tensor names are dotted paths.
class TorchSource final : public DescribedSource {
 public:
  TorchSource(std::string name, std::shared_ptr<codec::TorchArchive const> archive, codec::TorchContents contents);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

  [[nodiscard]] codec::TorchArchive const& archive() const noexcept { return *archive_; }
  /// Returns the archive's description of a tensor.
  [[nodiscard]] codec::TorchTensor const& at(std::size_t tensor) const noexcept { return *views_[tensor]; }

 private:
  std::shared_ptr<codec::TorchArchive const> archive_;
  std::vector<codec::TorchTensor const*> views_{};
};

/// Options of `open_torch_archive` and of the readers of Megatron and DeepSpeed files.
struct TorchSourceOptions {
  codec::CrcPolicy crc = codec::CrcPolicy::require;
  std::vector<std::string> extra_globals{};  ///< more names that the pickle may mention: "module.name"
  std::string model_key{};                   ///< dotted path to the model; empty: a known key; ".": everything
  std::shared_ptr<FilePool> pool{};          ///< pool of the open files; null: a new one
};

/// Name of the attribute that lists the keys that were left out beside the model.
inline constexpr char const* left_out_keys = "left_out_keys";

/// Name of the attribute that lists the files that were left out.
inline constexpr char const* left_out_files = "left_out_files";

/// Name of the attribute that lists objects that were left out because they are neither tensors nor plain values, and
/// attributes of tensors that hold tensors.
inline constexpr char const* left_out_objects = "left_out_objects";

/// Name of the attribute that lists files and objects that were left out because they are no weights.
inline constexpr char const* left_out_states = "left_out_states";

/// Opens a file that `torch.save` wrote.
///
/// The file holds a state dict, or a dict with plain values, training state and the model under a key such as
/// "state_dict", "model" or "module", which is removed from the names. It may also be a rank file of ModelOpt; then
/// `attributes()` has its config. Throws `IoError`, or `FormatError`, also if several parts might be the model.
[[nodiscard]] std::shared_ptr<TorchSource const> open_torch_archive(std::filesystem::path const& path,
                                                                    TorchSourceOptions const& options = {});
/// Returns whether a file begins like a zip archive or like an old torch file, so that `open_torch_archive` can read
/// it. Throws `IoError`.
[[nodiscard]] bool is_torch_archive(std::filesystem::path const& path);

}  // namespace crossrank::checkpoint
