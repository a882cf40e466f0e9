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

/// All tensors of the safetensors files in a directory, or of one file. Fails the test when a name comes twice.
[[nodiscard]] ModelBytes read_model(std::filesystem::path const& path);

/// What is there as a checkpoint that a loader would take: with an index all files it lists, else model.safetensors; a
/// config where `with_config`. Empty when there is none.
[[nodiscard]] ModelBytes read_checkpoint(std::filesystem::path const& directory, bool with_config);

/// Names of the tensors that differ, one line each; empty when the models are equal.
[[nodiscard]] std::string difference(ModelBytes const& expected, ModelBytes const& got);

/// A reproducible state dict: `count` matrices of the given shape and a scalar.
[[nodiscard]] StateDict sample_weights(int count, std::int64_t rows, std::int64_t columns, unsigned seed);

/// Names in a directory, hidden ones too, sorted.
[[nodiscard]] std::vector<std::string> names_in(std::filesystem::path const& directory);

/// All bytes of a file.
[[nodiscard]] std::string text_of_file(std::filesystem::path const& path);

}  // namespace crossrank::test
