// Writes a model with many small tensors in many files. The data of the files is a hole, so they need little space.
//
// Usage: bench_make_headers TENSORS TENSORS_PER_FILE DIRECTORY
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "bench/harness/run_main.hpp"
#include "lib/codec/safetensors/header_writer.hpp"

namespace bench = crossrank::bench;
namespace codec = crossrank::codec;
namespace fs = std::filesystem;
using crossrank::Dtype;
using crossrank::Json;
using crossrank::Shape;

namespace {

constexpr int layers = 50;
constexpr std::int64_t hidden = 64;
constexpr std::int64_t intermediate = 32;

struct SmallTensor {
  std::string name{};
  Shape shape{};
};

/// Returns the tensors of a model with about `count` of them: in each layer an attention, and experts.
std::vector<SmallTensor> small_tensors(std::size_t count, std::size_t& experts) {
  experts = (count / layers - 6) / 3;
  std::vector<SmallTensor> all;
  for (int layer = 0; layer < layers; ++layer) {
    auto const prefix = "model.layers." + std::to_string(layer) + ".";
    for (auto const* const name : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      all.push_back({prefix + name, {hidden}});
    for (auto const* const name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      all.push_back({prefix + "self_attn." + name + ".weight", {hidden, hidden}});
    for (std::size_t expert = 0; expert < experts; ++expert) {
      auto const of_expert = prefix + "mlp.experts." + std::to_string(expert) + ".";
      all.push_back({of_expert + "gate_proj.weight", {intermediate, hidden}});
      all.push_back({of_expert + "up_proj.weight", {intermediate, hidden}});
      all.push_back({of_expert + "down_proj.weight", {hidden, intermediate}});
    }
  }
  return all;
}

void write_file(fs::path const& path, std::vector<SmallTensor> const& tensors, std::size_t first, std::size_t end) {
  codec::HeaderWriter writer;
  std::uint64_t at = 0;
  for (auto i = first; i < end; ++i) {
    auto const bytes = dense_bytes(tensors[i].shape, Dtype::bf16);
    writer.add_tensor(tensors[i].name, Dtype::bf16, tensors[i].shape, at, at + bytes);
    at += bytes;
  }
  auto const header = std::move(writer).finish(8);
  std::ofstream(path, std::ios::binary) << header;
  fs::resize_file(path, header.size() + at);
}

void write_model(std::size_t count, std::size_t per_file, fs::path const& folder) {
  std::size_t experts = 0;
  auto const tensors = small_tensors(count, experts);
  auto const files = (tensors.size() + per_file - 1) / per_file;
  Json map = Json::object();
  fs::create_directories(folder);
  for (std::size_t file = 0; file < files; ++file) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, files);
    auto const end = std::min(tensors.size(), (file + 1) * per_file);
    write_file(folder / name, tensors, file * per_file, end);
    for (auto i = file * per_file; i < end; ++i) map.get_ref<Json::object_t&>().push_back({tensors[i].name, name});
  }
  std::ofstream(folder / "model.safetensors.index.json") << Json{{"metadata", Json::object()}, {"weight_map", map}};
  std::ofstream(folder / "config.json") << Json{{"num_hidden_layers", layers},       {"hidden_size", hidden},
                                                {"num_attention_heads", 4},          {"num_key_value_heads", 4},
                                                {"intermediate_size", intermediate}, {"num_local_experts", experts}};
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_main(argc, argv, "TENSORS TENSORS_PER_FILE DIRECTORY", [](char** arguments) {
    write_model(std::strtoull(arguments[1], nullptr, 10), std::strtoull(arguments[2], nullptr, 10), arguments[3]);
    return 0;
  });
}
