#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/shard_source.hpp"

namespace crossrank::checkpoint {

/// One tensor of an output file.
struct OutputTensor {
  std::size_t tensor = 0;   ///< its number in the source
  std::uint64_t begin = 0;  ///< first byte in the file
  std::uint64_t bytes = 0;
};

/// One safetensors file of the result.
struct OutputFile {
  std::string name{};
  std::shared_ptr<ShardSource const> source{};
  std::vector<OutputTensor> tensors{};  ///< in the order of the data
  std::string header{};                 ///< length field and header
  std::uint64_t bytes = 0;              ///< of the file
  int owner = 0;                        ///< rank that writes it
};

/// Sizes of the files, and how they are named.
struct LayoutOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;  ///< 0: no limit
  int ranks = 1;                                 ///< that share the writing
};

/// The files of a sharded checkpoint: tensors in the order of the source, a new file where the limit would be passed.
[[nodiscard]] std::vector<OutputFile> lay_out_model(std::shared_ptr<ShardSource const> const& source,
                                                    LayoutOptions const& options);

/// One file that holds all of a source.
[[nodiscard]] OutputFile lay_out_file(std::shared_ptr<ShardSource const> const& source, std::string name);

/// Gives each file to a rank: the largest first, to the one that has the least.
void assign_owners(std::vector<OutputFile>& files, int ranks);

/// `model.safetensors.index.json` for these files.
[[nodiscard]] Json make_index(std::span<OutputFile const> files);

}  // namespace crossrank::checkpoint
