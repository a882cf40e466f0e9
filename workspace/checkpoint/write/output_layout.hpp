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
  std::size_t tensor = 0;   ///< its number in the source
  std::uint64_t begin = 0;  ///< first byte in the file
  std::uint64_t bytes = 0;
};

/// Bytes of an output file that come from no tensor.
struct OutputText {
  std::uint64_t begin = 0;
  std::string text{};
};

/// A file whose tensors have been written, as its seal sees it.
struct WrittenFile {
  std::function<void(std::uint64_t offset, std::span<std::byte> out)> read{};
  std::span<std::uint32_t const> crcs{};  ///< CRC-32 of each tensor, where the file asks for them
};

/// One file of the result.
struct OutputFile {
  std::string name{};
  std::shared_ptr<ShardSource const> source{};
  std::vector<OutputTensor> tensors{};  ///< in the order of the data
  std::vector<OutputText> texts{};      ///< in order
  std::uint64_t bytes = 0;              ///< of the file
  int owner = 0;                        ///< rank that writes it
  /// What can be said only of written data: checksums. Called once, by one thread. Its texts, in order, come where
  /// zeros stand until then.
  std::function<std::vector<OutputText>(WrittenFile const& file)> seal{};
  bool takes_crcs = false;  ///< of the tensors, while they are written; the seal then reads nothing
};

/// Sizes of the files, and how they are named.
struct LayoutOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;  ///< of the tensors in it; 0: no limit
  int ranks = 1;                                 ///< that share the writing
  OutputFormat format = OutputFormat::safetensors;
};

/// The files of a sharded checkpoint in safetensors or torch format: tensors in the order of the source, a new file
/// where the limit would be passed.
[[nodiscard]] std::vector<OutputFile> lay_out_model(std::shared_ptr<ShardSource const> const& source,
                                                    LayoutOptions const& options);

/// Keys and values of a safetensors file's metadata.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

/// One safetensors file or torch archive that holds all of a source. Archives have no place for metadata. `UsageError`
/// for a dtype that torch has not.
[[nodiscard]] OutputFile lay_out_file(std::shared_ptr<ShardSource const> const& source, std::string name,
                                      OutputFormat format = OutputFormat::safetensors,
                                      FileMetadata const& metadata = {});

/// Who a state image says it is from.
struct ImagePlace {
  int rank = 0;
  int world_size = 1;
  std::uint64_t writer = 0;   ///< of the file's name
  std::uint32_t counter = 1;  ///< likewise
};

/// A state image that holds all of a source and a config, as a workspace reads it.
[[nodiscard]] OutputFile lay_out_image(std::shared_ptr<ShardSource const> const& source, Json const& config,
                                       ImagePlace const& place);

/// Gives each file to a rank: the largest first, to the one that has the least.
void assign_owners(std::vector<OutputFile>& files, int ranks);

/// "model.safetensors.index.json", or that of torch archives.
[[nodiscard]] std::string index_name(OutputFormat format);
/// What stands in it.
[[nodiscard]] Json make_index(std::span<OutputFile const> files);

}  // namespace crossrank::checkpoint
