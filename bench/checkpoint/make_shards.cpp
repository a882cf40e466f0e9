// Writes the shards of a tensor-parallel model, and checksums of the tensors that a merge must produce.
//
// Usage: bench_make_shards bf16|nvfp4 BYTES RANKS DIRECTORY
//
// Writes rank<r>.safetensors and the configs to DIRECTORY/shards, and a checksum of each merged tensor to
// DIRECTORY/expected.json.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/checkpoint/shard_shapes.hpp"
#include "bench/harness/run_main.hpp"
#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/safetensors/header_writer.hpp"

namespace bench = crossrank::bench;
namespace codec = crossrank::codec;
namespace fs = std::filesystem;
using crossrank::Dtype;
using crossrank::Json;

namespace {

/// Random bytes: each tensor is copied from another position of the same block.
class Noise {
 public:
  Noise() : block_(std::size_t{64} << 20) {
    std::mt19937_64 random(20260719);
    for (std::size_t at = 0; at < block_.size(); at += sizeof(std::uint64_t)) {
      auto const bits = random();
      std::memcpy(block_.data() + at, &bits, sizeof bits);
    }
  }
  void fill(std::span<std::byte> out) {
    for (std::size_t done = 0; done < out.size();) {
      auto const size = std::min(block_.size() - at_, out.size() - done);
      std::memcpy(out.data() + done, block_.data() + at_, size);
      done += size;
      at_ = (at_ + size + 4099) % block_.size();  // a prime, so that no two tensors are equal
    }
  }

 private:
  std::vector<std::byte> block_;
  std::size_t at_ = 0;
};

crossrank::Shape shard_shape(bench::ModelTensor const& tensor, int ranks) {
  if (tensor.axis < 0) return tensor.shape;
  auto const axis = static_cast<std::size_t>(tensor.axis);
  if (tensor.shape[axis] % ranks != 0)
    throw std::runtime_error(tensor.name + " is not divisible by the number of ranks");
  return tensor.shape.with(axis, tensor.shape[axis] / ranks);
}

class Shards {
 public:
  Shards(bench::Model const& model, int ranks, fs::path const& folder) : ranks_(ranks) {
    codec::HeaderWriter writer;
    writer.add_metadata("format", "pt");
    std::uint64_t at = 0;
    for (auto const& tensor : model.tensors) {
      auto const shape = shard_shape(tensor, ranks);
      auto const bytes = dense_bytes(shape, tensor.dtype);
      writer.add_tensor(tensor.name, tensor.dtype, shape, at, at + bytes);
      at += bytes;
    }
    auto const header = std::move(writer).finish(8);
    for (int rank = 0; rank < ranks; ++rank) {
      files_.emplace_back(folder / ("rank" + std::to_string(rank) + ".safetensors"), std::ios::binary);
      files_.back() << header;
    }
  }

  void add(bench::ModelTensor const& tensor, std::span<std::byte const> whole) {
    // Copies the bytes of one rank's part of each row.
    std::size_t rows = 1;
    for (int d = 0; d < tensor.axis; ++d) rows *= static_cast<std::size_t>(tensor.shape[static_cast<std::size_t>(d)]);
    auto const row = whole.size() / rows;
    auto const part = tensor.axis < 0 ? row : row / static_cast<std::size_t>(ranks_);
    std::vector<char> shard(rows * part);
    for (int rank = 0; rank < ranks_; ++rank) {
      auto const skip = tensor.axis < 0 ? 0 : static_cast<std::size_t>(rank) * part;
      for (std::size_t i = 0; i < rows; ++i) std::memcpy(shard.data() + i * part, whole.data() + i * row + skip, part);
      files_[static_cast<std::size_t>(rank)].write(shard.data(), static_cast<std::streamsize>(shard.size()));
    }
  }

  void close() {
    for (auto& file : files_) {
      file.close();
      if (!file) throw std::runtime_error("cannot write the shards; is the disk full?");
    }
  }

 private:
  int ranks_;
  std::vector<std::ofstream> files_{};
};

void save(fs::path const& path, Json const& value) {
  std::ofstream out(path);
  out << value.dump(1) << "\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

int make(std::string const& kind, std::uint64_t bytes, int ranks, fs::path const& folder) {
  auto const model = bench::llama(kind, bytes);
  fs::create_directories(folder / "shards");
  Shards shards(model, ranks, folder / "shards");
  Noise noise;
  Json expected = Json::object();
  std::uint64_t total = 0;
  std::uint64_t largest = 0;
  std::vector<std::byte> whole;
  for (auto const& tensor : model.tensors) {
    whole.resize(static_cast<std::size_t>(dense_bytes(tensor.shape, tensor.dtype)));
    noise.fill(whole);
    // Uses scales in the range of real models.
    float const scale = 0.0078125F + static_cast<float>(total % 1024) / 65536.0F;
    if (tensor.dtype == Dtype::f32) std::memcpy(whole.data(), &scale, sizeof scale);
    shards.add(tensor, whole);
    expected[tensor.name] = codec::to_hex(codec::checksum(whole));
    total += whole.size();
    largest = std::max<std::uint64_t>(largest, whole.size());
  }
  shards.close();
  save(folder / "shards" / "config.json", model.config);
  if (!model.quantization.empty()) save(folder / "shards" / "hf_quant_config.json", model.quantization);
  save(folder / "expected.json", {{"bytes", total}, {"largest", largest}, {"tensors", std::move(expected)}});
  std::printf("%llu\n", static_cast<unsigned long long>(total));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_main(argc, argv, "bf16|nvfp4 BYTES RANKS DIRECTORY", [](char** arguments) {
    return make(arguments[1], std::strtoull(arguments[2], nullptr, 10), std::atoi(arguments[3]), arguments[4]);
  });
}
