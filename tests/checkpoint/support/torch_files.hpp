#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "tests/codec/torch/torch_fixture.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Composes archives like those of training frameworks, value by value. Values are pickled text from the functions here
/// and below, and must be used in the order in which they were made.
class TorchFile {
 public:
  using Entries = std::vector<std::pair<std::string, std::string>>;

  /// Returns a dense tensor of 32-bit floats with its own storage.
  std::string floats(std::vector<float> const& values, std::vector<std::int64_t> const& lengths) {
    storages_.emplace_back(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(float));
    std::vector<std::int64_t> strides(lengths.size(), 1);
    for (std::size_t i = lengths.size(); i-- > 1;) strides[i - 1] = strides[i] * lengths[i];
    auto const storage = codec::pickled_storage("FloatStorage", std::to_string(storages_.size() - 1),
                                                static_cast<std::int64_t>(values.size()));
    return codec::pickled_tensor(storage, 0, lengths, strides);
  }
  /// Returns a vector of `count` equal values.
  std::string filled(std::int64_t count, float value) {
    return floats(std::vector<float>(as_size(count), value), {count});
  }
  [[nodiscard]] std::string bytes(std::string const& root) const {
    return codec::torch_of("\x80\x02" + root + ".", storages_);
  }
  void write(std::filesystem::path const& path, std::string const& root) const {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes(root);
  }

 private:
  std::vector<std::string> storages_{};
};

inline std::string dict_of(TorchFile::Entries const& entries) {
  std::string out = "}(";
  for (auto const& [key, value] : entries) out += codec::pickled(key) + value;
  return out + "u";
}

inline std::string list_of(std::vector<std::string> const& items) {
  std::string out = "](";
  for (auto const& item : items) out += item;
  return out + "e";
}

inline std::string boolean(bool value) { return value ? "\x88" : "\x89"; }

/// Returns an `argparse.Namespace`.
inline std::string arguments_of(TorchFile::Entries const& entries) {
  return "cargparse\nNamespace\n)\x81" + dict_of(entries) + "b";
}

/// Returns a `torch.Size`.
inline std::string size_of(std::vector<std::int64_t> const& lengths) {
  return "ctorch\nSize\n" + codec::pickled(lengths) + "\x85R";
}

/// Returns all values of a tensor.
inline std::vector<float> values_of(ShardSource const& source, std::string const& name) {
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    auto const& tensor = source.tensors()[i];
    if (tensor.name != name) continue;
    std::vector<float> values(as_size(tensor.shape.numel()));
    source.read(i, 0, std::as_writable_bytes(std::span(values)));
    return values;
  }
  ADD_FAILURE() << "no tensor " << name << " in " << source.name();
  return {};
}

}  // namespace crossrank::checkpoint
