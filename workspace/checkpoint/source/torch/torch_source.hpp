#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/codec/torch/torch_tree.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// A torch archive, or the part of one that holds a model. Tensors are named by the way to them, joined by dots.
class TorchSource final : public DescribedSource {
 public:
  TorchSource(std::string name, std::shared_ptr<codec::TorchArchive const> archive, codec::TorchContents contents);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

  [[nodiscard]] codec::TorchArchive const& archive() const noexcept { return *archive_; }
  /// The archive's own description of a tensor.
  [[nodiscard]] codec::TorchTensor const& at(std::size_t tensor) const noexcept { return *views_[tensor]; }

 private:
  std::shared_ptr<codec::TorchArchive const> archive_;
  std::vector<codec::TorchTensor const*> views_{};
};

struct TorchSourceOptions {
  codec::CrcPolicy crc = codec::CrcPolicy::require;
  std::vector<std::string> extra_globals{};  ///< names that the pickle may mention besides: "module.name"
  std::string model_key{};                   ///< the way to the model, with dots; empty: as known keys say; ".": all
  std::shared_ptr<FilePool> pool{};          ///< of the descriptors; its own when there is none
};

/// The attribute that lists what was left out beside the model.
inline constexpr char const* left_out_keys = "left_out_keys";

/// The attribute that lists files that were left out.
inline constexpr char const* left_out_files = "left_out_files";

/// Opens a file of `torch.save`: a state dict, one beside plain values and states of a training ("state_dict", "model",
/// "module": the way to it is left out of the names), or what ModelOpt keeps for a rank (its config is `attributes()`).
/// `FormatError` also where several parts might be the model.
[[nodiscard]] std::shared_ptr<TorchSource const> open_torch_archive(std::filesystem::path const& path,
                                                                    TorchSourceOptions const& options = {});
/// Whether a file begins as a zip archive does, or as older files of torch's do: whether `open_torch_archive` is the
/// one to ask. `IoError`.
[[nodiscard]] bool is_torch_archive(std::filesystem::path const& path);

}  // namespace crossrank::checkpoint
