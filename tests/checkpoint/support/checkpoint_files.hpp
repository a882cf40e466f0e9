#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <crossrank/state.hpp>

namespace crossrank::test {

/// Dtype, shape and bytes of a tensor, for comparisons.
struct TensorBytes {
  std::string type{};
  std::vector<std::byte> bytes{};
  bool operator==(TensorBytes const&) const = default;
};

using ModelBytes = std::map<std::string, TensorBytes>;

/// Returns all tensors of the safetensors files in a directory, or of one file. Fails the test if a name occurs twice.
[[nodiscard]] ModelBytes read_model(std::filesystem::path const& path);

/// Returns the checkpoint that a loader would read: all files of an index, or else model.safetensors. Returns nothing
/// if there is none, or if `with_config` is set and there is no config.
[[nodiscard]] ModelBytes read_checkpoint(std::filesystem::path const& directory, bool with_config);

/// Does the same for a checkpoint of any format that `consolidate` reads, such as torch archives.
[[nodiscard]] ModelBytes read_any_checkpoint(std::filesystem::path const& directory);

/// Returns the names of the tensors that differ, one per line; empty if the models are equal.
[[nodiscard]] std::string difference(ModelBytes const& expected, ModelBytes const& got);

/// Returns a reproducible state dict of `count` matrices of the given shape and a scalar.
[[nodiscard]] StateDict sample_weights(int count, std::int64_t rows, std::int64_t columns, unsigned seed);

/// Returns the names in a directory, with hidden ones, sorted.
[[nodiscard]] std::vector<std::string> names_in(std::filesystem::path const& directory);

/// Returns all bytes of a file.
[[nodiscard]] std::string text_of_file(std::filesystem::path const& path);

}  // namespace crossrank::test
