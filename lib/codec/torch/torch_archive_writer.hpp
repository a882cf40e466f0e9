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

/// A tensor of an archive to be written.
struct TorchOutput {
  static constexpr std::size_t own = ~std::size_t{0};

  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::size_t same_as = own;  ///< index of an earlier tensor with which it shares its bytes
};

/// The structure of the archive's root.
enum class TorchRoot : std::uint8_t {
  state_dict,  ///< a dict of the tensors
  modelopt,    ///< {"config": values, "weight": a dict of the tensors}
  tensor,      ///< the only tensor itself
  value,       ///< plain values, without tensors
};

/// The plan of an archive that `torch.load` opens, also with `weights_only`: everything except the tensors' bytes.
class TorchArchivePlan {
 public:
  /// Plans an archive. `config` is written only with `TorchRoot::modelopt` and `TorchRoot::value`. `UsageError` for a
  /// dtype that torch does not have, for a dtype stored in pairs with an odd last dimension, and for a number of
  /// tensors that the root does not have.
  TorchArchivePlan(std::span<TorchOutput const> tensors, TorchRoot root, Json const& config = {});

  [[nodiscard]] std::uint64_t file_bytes() const { return zip_file_bytes(entries_); }
  [[nodiscard]] std::vector<ZipEntry> const& entries() const noexcept { return entries_; }
  [[nodiscard]] std::string const& pickle() const noexcept { return pickle_; }
  /// Returns the contents of the first records. The other records are the tensors, in order, except those that share
  /// the bytes of an earlier one.
  [[nodiscard]] std::array<std::string_view, 3> constants() const noexcept;

 private:
  std::vector<ZipEntry> entries_{};
  std::string pickle_{};
};

/// Writes a planned archive front to back. The bytes of the tensors pass through.
class TorchArchiveWriter {
 public:
  TorchArchiveWriter(TorchArchivePlan const& plan, ByteSink& sink);
  /// Writes the next bytes of the tensors, in order, without tensors that share the bytes of an earlier one.
  void write(std::span<std::byte const> bytes) { zip_.write(bytes); }
  /// Completes the archive. `UsageError` when bytes are missing.
  void finish();

 private:
  ZipWriter zip_;
};

/// Returns the tensors of `weights` as outputs. Tensors that view the same bytes share them. `UsageError` for an
/// undefined tensor.
[[nodiscard]] std::vector<TorchOutput> torch_outputs(StateDict const& weights);
/// Writes a whole archive that was planned for `outputs` of these `weights`.
void write_torch_archive(TorchArchivePlan const& plan, std::span<TorchOutput const> outputs, StateDict const& weights,
                         ByteSink& sink);

}  // namespace crossrank::codec
