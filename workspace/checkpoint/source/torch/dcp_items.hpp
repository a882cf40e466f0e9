#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/torch/dcp_metadata.hpp"
#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/chunked_source.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/torch/dcp_tensor.hpp"

namespace crossrank::checkpoint {

class DcpItemData;

/// The items in the `.distcp` files of a distributed checkpoint. Opens each file once and checks that it is large
/// enough for each of its items.
class DcpItems {
 public:
  DcpItems(std::filesystem::path directory, std::shared_ptr<FilePool> pool, codec::CrcPolicy crc)
      : directory_(std::move(directory)), pool_(std::move(pool)), crc_(crc) {}

  /// Returns a tensor whose data is read from its items. Throws `FormatError` if a file is missing or too short, and
  /// `IoError`.
  [[nodiscard]] ChunkedTensor open(DcpModelTensor tensor);
  /// Returns the file of an item; `of` names its tensor or object in errors. Errors as for `open`.
  [[nodiscard]] std::shared_ptr<PooledFile const> const& file_of(codec::DcpItem const& item, std::string const& of);
  /// Throws `FormatError` if a rank's file is a copy of another rank's file, judged by the largest tensors in several
  /// pieces.
  void require_no_copies() const;
  /// Returns the size of all files.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  using ItemPointer = std::shared_ptr<DcpItemData const>;
  /// A tensor with its pieces.
  struct ItemsOfTensor {
    std::string name{};
    std::uint64_t bytes = 0;
    std::vector<ItemPointer> items{};
  };
  [[nodiscard]] std::shared_ptr<PooledFile const> open_file(std::string const& name) const;
  [[nodiscard]] ItemPointer item_of(DcpRows const& rows, DcpModelTensor const& tensor);
  [[nodiscard]] ItemPointer shared_item_of(DcpRows const& rows, DcpModelTensor const& tensor);

  std::filesystem::path directory_;
  std::shared_ptr<FilePool> pool_;
  codec::CrcPolicy crc_;
  std::map<std::string, std::shared_ptr<PooledFile const>> files_{};
  std::map<std::pair<std::string, std::uint64_t>, ItemPointer> shared_{};  ///< items with rows of several tensors
  std::vector<ItemsOfTensor> in_pieces_{};
  std::uint64_t bytes_ = 0;
};

}  // namespace crossrank::checkpoint
