#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/codec/safetensors/state_image.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Reads one or several safetensors files as one shard. Also reads state images; `attributes()` has their config, and
/// the first read of a tensor reads all of it to compare its checksum.
class SafetensorsSource final : public DescribedSource {
 public:
  /// Opens the files. `name` appears in messages. Throws `IoError`, or `FormatError` for a damaged file or a tensor
  /// that is in two files.
  SafetensorsSource(std::string name, std::vector<std::filesystem::path> const& files,
                    std::shared_ptr<FilePool> const& pool);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override { return {file_of(tensor)}; }
  [[nodiscard]] std::span<codec::StateImage const> images() const noexcept { return images_; }
  /// Returns the path of an image's file.
  [[nodiscard]] std::string const& file_name(std::size_t image) const { return files_[image]->name(); }
  /// Returns the path of the file that holds a tensor.
  [[nodiscard]] std::string const& file_of(std::size_t tensor) const { return files_[ranges_[tensor].file]->name(); }

 private:
  struct Described;
  /// One file and its parsed header.
  struct Opened {
    std::shared_ptr<PooledFile const> file{};
    std::optional<codec::StateImage> image{};
  };
  [[nodiscard]] static std::vector<Opened> open_all(std::vector<std::filesystem::path> const& files, FilePool& pool);
  void add_file(Opened opened, Described& described);
  /// The bytes of a tensor.
  struct FileRange {
    std::size_t file = 0;
    std::uint64_t at = 0;  ///< first byte in the file
    std::uint64_t bytes = 0;
  };

  std::vector<std::shared_ptr<PooledFile const>> files_{};
  std::vector<codec::StateImage> images_{};
  std::vector<FileRange> ranges_{};
  std::unique_ptr<std::once_flag[]> compared_{};  ///< by tensor, whether its checksum has been compared
};

}  // namespace crossrank::checkpoint
