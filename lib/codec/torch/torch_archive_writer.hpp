#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/codec/torch/zip/zip_writer.hpp"

namespace crossrank::codec {

/// One tensor of an archive that will be written.
struct TorchOutput {
  static constexpr std::size_t own = ~std::size_t{0};

  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::size_t same_as = own;  ///< an earlier tensor whose bytes are this one's as well
};

/// What the archive's root is.
enum class TorchRoot : std::uint8_t {
  state_dict,  ///< a dict of the tensors
  modelopt,    ///< {"config": values, "weight": a dict of the tensors}
};

/// An archive that `torch.load` opens, also `weights_only`: all of it but the tensors' bytes.
class TorchArchivePlan {
 public:
  /// `config` is written with `TorchRoot::modelopt` only. `UsageError` for a dtype that torch has not, and for one
  /// whose pairs a last dimension splits.
  TorchArchivePlan(std::span<TorchOutput const> tensors, TorchRoot root, Json const& config = {});

  [[nodiscard]] std::uint64_t file_bytes() const { return zip_file_bytes(entries_); }
  [[nodiscard]] std::vector<ZipEntry> const& entries() const noexcept { return entries_; }
  [[nodiscard]] std::string const& pickle() const noexcept { return pickle_; }
  /// Contents of the first records; those of the others are the tensors, in order, without such as are the same as an
  /// earlier one.
  [[nodiscard]] std::array<std::string_view, 3> constants() const noexcept;

 private:
  std::vector<ZipEntry> entries_{};
  std::string pickle_{};
};

/// Writes such an archive front to back, in any memory: the bytes of the tensors pass through.
class TorchArchiveWriter {
 public:
  TorchArchiveWriter(TorchArchivePlan const& plan, ByteSink& sink);
  /// The next bytes of the tensors, one tensor behind the other, without those that are the same as an earlier one.
  void write(std::span<std::byte const> bytes) { zip_.write(bytes); }
  /// `UsageError` when bytes are missing.
  void finish();

 private:
  ZipWriter zip_;
};

/// Tensors of `weights` as outputs; those that view the same bytes are tied. `UsageError` for an absent one.
[[nodiscard]] std::vector<TorchOutput> torch_outputs(StateDict const& weights);
/// Writes all of an archive that was planned for `outputs` of these `weights`.
void write_torch_archive(TorchArchivePlan const& plan, std::span<TorchOutput const> outputs, StateDict const& weights,
                         ByteSink& sink);

}  // namespace crossrank::codec
