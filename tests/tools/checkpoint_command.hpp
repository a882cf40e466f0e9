#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/tensor/concat.hpp>
#include <crossrank/json.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/tools/command_run.hpp"

namespace crossrank::test {

/// Provides two shards of a small model, and the model.
class CheckpointCommand : public testing::Test {
 protected:
  CheckpointCommand() {
    auto const whole = sample_weights(3, 8, 12, 17);
    std::filesystem::create_directories(shards());
    std::filesystem::create_directories(folder_.path() / "whole");
    save_safetensors(folder_.path() / "whole" / "model.safetensors", whole);
    for (int rank = 0; rank < 2; ++rank) {
      StateDict mine;
      for (auto const& [name, tensor] : whole) {
        bool const is_sharded = tensor.shape().size() == 2;
        mine.insert_or_assign(name, is_sharded ? slice(tensor, Dim{1}, 6 * rank, 6) : tensor);
      }
      save_safetensors(shards() / ("rank" + std::to_string(rank) + ".safetensors"), mine);
    }
    std::ofstream(shards() / "config.json")
        << R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3, "hidden_size": 8, "intermediate_size": 12})";
  }

  [[nodiscard]] std::filesystem::path shards() const { return folder_.path() / "shards"; }
  [[nodiscard]] std::filesystem::path out() const { return folder_.path() / "out"; }
  [[nodiscard]] ModelBytes whole() const { return read_model(folder_.path() / "whole"); }
  [[nodiscard]] CommandEnd consolidate(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"consolidate", shards().string(), out().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }

  TemporaryDirectory folder_;
};

/// Creates a shard set of one gigabyte in sparse files, which use no disk space.
inline void make_large_shards(std::filesystem::path const& directory) {
  constexpr std::uint64_t rows = 4096;
  constexpr std::uint64_t columns = 16384;
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json")
      << Json{{"num_hidden_layers", 8}, {"hidden_size", rows}, {"intermediate_size", 2 * columns}};
  for (int rank = 0; rank < 2; ++rank) {
    Json header = Json::object();
    std::uint64_t at = 0;
    for (int layer = 0; layer < 8; ++layer) {
      auto const end = at + rows * columns;
      header["model.layers." + std::to_string(layer) + ".mlp.down_proj.weight"] = {
          {"dtype", "I8"}, {"shape", {rows, columns}}, {"data_offsets", {at, end}}};
      at = end;
    }
    auto text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::uint64_t const length = text.size();
    auto const path = directory / ("rank" + std::to_string(rank) + ".safetensors");
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<char const*>(&length), sizeof length);
    file << text;
    file.close();
    std::filesystem::resize_file(path, sizeof length + text.size() + at);
  }
}

}  // namespace crossrank::test
