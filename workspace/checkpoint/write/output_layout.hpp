#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/json.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// One tensor of an output file.
struct OutputTensor {
  std::size_t tensor = 0;   ///< index in the source
  std::uint64_t begin = 0;  ///< first byte in the file
  std::uint64_t bytes = 0;
};

/// Bytes of an output file that do not come from a tensor.
struct OutputText {
  std::uint64_t begin = 0;
  std::string text{};
};

/// A file whose tensors have been written, but not yet the texts that depend on them. Input of its seal.
struct UnsealedFile {
  std::function<void(std::uint64_t offset, std::span<std::byte> out)> read{};
  std::span<std::uint32_t const> crcs{};  ///< CRC-32 of each tensor if the file has `takes_crcs`
};

/// One file of the result.
struct OutputFile {
  std::string name{};
  std::shared_ptr<ShardSource const> source{};
  std::vector<OutputTensor> tensors{};  ///< in data order
  std::vector<OutputText> texts{};      ///< in order
  std::uint64_t bytes = 0;              ///< size of the file
  int owner = 0;                        ///< rank that writes it
  /// Returns the texts that depend on the written data, such as checksums, in order. Called once, by one thread. The
  /// file has zeros in their places until then.
  std::function<std::vector<OutputText>(UnsealedFile const& file)> seal{};
  bool takes_crcs = false;  ///< compute CRCs of the tensors while they are written, so that the seal reads nothing
};

/// Sizes and format of the output files.
struct LayoutOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;  ///< limit for the tensors in a file; 0: no limit
  int ranks = 1;                                 ///< number of ranks that share the writing
  OutputFormat format = OutputFormat::safetensors;
  std::function<bool(SourceTensor const&)> wants{};  ///< which tensors the files hold; empty: all
  std::string stem = "model";  ///< beginning of the file names; torch archives have "pytorch_" before it
};

/// Returns the files of a model in safetensors or torch format. Keeps the order of the source and begins a new file
/// where the limit would be exceeded. There is at least one file. Throws `UsageError` for a name that the format cannot
/// hold.
[[nodiscard]] std::vector<OutputFile> lay_out_model(std::shared_ptr<ShardSource const> const& source,
                                                    LayoutOptions const& options);

/// Keys and values of a safetensors file's metadata.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

/// Returns one safetensors file or torch archive with all tensors of a source. Archives ignore `metadata`. Throws
/// `UsageError` for a dtype or a name that the format cannot hold.
[[nodiscard]] OutputFile lay_out_file(std::shared_ptr<ShardSource const> const& source, std::string name,
                                      OutputFormat format = OutputFormat::safetensors,
                                      FileMetadata const& metadata = {});

/// Returns one file with tensors `[first, first + count)` of a source, as `lay_out_model` lays out its files.
[[nodiscard]] OutputFile lay_out_file_of(std::shared_ptr<ShardSource const> const& source, std::string name,
                                         std::size_t first, std::size_t count, OutputFormat format);

/// The rank and the writer that a state image records.
struct ImagePlace {
  int rank = 0;
  int world_size = 1;
  std::uint64_t writer = 0;   ///< writer number in the file name
  std::uint32_t counter = 1;  ///< counter in the file name
};

/// Returns a state image with all tensors of a source and a config, as a workspace reads it.
[[nodiscard]] OutputFile lay_out_image(std::shared_ptr<ShardSource const> const& source, Json const& config,
                                       ImagePlace const& place);

/// Assigns each file to a rank: the largest file first, to the rank with the fewest bytes.
void assign_owners(std::vector<OutputFile>& files, int ranks);

/// Returns "model.safetensors.index.json", or the index name of torch archives.
[[nodiscard]] std::string index_name(OutputFormat format);
/// Returns the text of the index.
[[nodiscard]] std::string index_text(std::span<OutputFile const> files);

}  // namespace crossrank::checkpoint
