#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/json.hpp>

#include "lib/codec/torch/dcp_metadata.hpp"
#include "lib/codec/torch/torch_archive_writer.hpp"
#include "lib/codec/torch/zip/zip_layout.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// One rank's file of a distributed checkpoint, and the places of its items. Each item is a torch archive.
struct DcpOutput {
  OutputFile file{};
  std::vector<codec::DcpItem> tensors{};  ///< one for each tensor of the source
  std::vector<codec::DcpItem> objects{};
};

/// Lays out the files of a distributed checkpoint (`torch.distributed.checkpoint`).
///
/// All ranks know the size of each file, but only its owner has the bytes between the tensors.
class DcpLayout {
 public:
  /// `own` is this rank.
  explicit DcpLayout(int own) : own_(own) {}

  /// Returns the file of `rank` with all tensors of a source and then some plain values. Throws `UsageError` for a
  /// dtype that torch does not have.
  [[nodiscard]] DcpOutput lay_out(int rank, std::shared_ptr<ShardSource const> const& source,
                                  std::span<Json const> objects);

 private:
  /// The archive of a tensor. Tensors of equal dtype and shape share one.
  struct Archive {
    codec::TorchArchivePlan plan;
    codec::ZipLayout zip;
    std::vector<std::uint32_t> crcs{};  ///< of the records before the tensor
  };
  using Archives = std::vector<std::pair<std::uint64_t, std::shared_ptr<Archive const>>>;

  [[nodiscard]] std::shared_ptr<Archive const> archive_of(SourceTensor const& tensor);
  static void add_texts(OutputFile& file, std::uint64_t begin, Archive const& archive);
  [[nodiscard]] static std::vector<OutputText> seal(Archives const& archives, UnsealedFile const& written);

  int own_;
  std::map<std::pair<Dtype, std::vector<std::int64_t>>, std::shared_ptr<Archive const>> archives_{};
};

}  // namespace crossrank::checkpoint
