#include "tests/checkpoint/memory/sharded_model.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <variant>

#include "lib/core/as_size.hpp"

namespace crossrank::test {
namespace {

using checkpoint::DeviceMesh;
using checkpoint::Partial;
using checkpoint::Placement;
using checkpoint::Replicate;
using checkpoint::Shard;
using checkpoint::StridedShard;
using checkpoint::TensorPlacement;

using Indices = std::vector<std::int64_t>;

/// As `torch.chunk` pads it: pieces of ceil(n / count) entries.
Indices chunk(Indices const& all, std::int64_t count, std::int64_t number) {
  auto const n = static_cast<std::int64_t>(all.size());
  auto const size = (n + count - 1) / count;
  Indices out;
  for (auto i = number * size; i < std::min(n, (number + 1) * size); ++i) out.push_back(all[as_size(i)]);
  return out;
}

std::int64_t dim_of(Placement const& placement) {
  if (auto const* const shard = std::get_if<Shard>(&placement)) return shard->dim;
  auto const* const strided = std::get_if<StridedShard>(&placement);
  return strided == nullptr ? -1 : strided->dim;
}

/// Returns whether the first of two dimensions of a mesh shards the pieces of the second one, as FSDP2 does.
bool second_comes_first(std::vector<Placement> const& placements, std::vector<std::int64_t> const& mesh_shape) {
  if (placements.size() != 2 || dim_of(placements[0]) != dim_of(placements[1])) return false;
  auto const* const strided = std::get_if<StridedShard>(&placements[0]);
  return strided != nullptr && strided->split_factor == mesh_shape[1];
}

}  // namespace

Tensor random_tensor(std::mt19937& random, Shape const& shape, Dtype dtype) {
  auto tensor = Tensor::empty(shape, dtype);
  for (auto& byte : tensor.mutable_bytes()) byte = static_cast<std::byte>(random());
  return tensor;
}

Tensor piece_of(Tensor const& whole, TensorPlacement const& placement, std::size_t place) {
  auto mesh_shape = placement.mesh.shape;
  if (mesh_shape.empty()) mesh_shape = {1'000'000};  // one dimension
  std::vector<std::int64_t> at(mesh_shape.size());
  for (auto dim = mesh_shape.size(); dim-- > 0;) {
    at[dim] = static_cast<std::int64_t>(place) % mesh_shape[dim];
    place /= as_size(mesh_shape[dim]);
  }
  if (placement.mesh.shape.empty()) mesh_shape = {static_cast<std::int64_t>(placement.mesh.ranks.size())};
  std::vector<Indices> kept;
  for (auto const length : whole.shape()) {
    kept.emplace_back(as_size(length));
    std::iota(kept.back().begin(), kept.back().end(), 0);
  }
  bool zeros = false;
  bool const swapped = second_comes_first(placement.placements, mesh_shape);
  for (std::size_t step = 0; step < placement.placements.size(); ++step) {
    auto const i = swapped ? 1 - step : step;
    auto const& one = placement.placements[i];
    if (auto const* const shard = std::get_if<Shard>(&one)) {
      auto& dim = kept.at(as_size(shard->dim));
      dim = chunk(dim, mesh_shape[i], at[i]);
    } else if (auto const* const strided = std::get_if<StridedShard>(&one)) {
      auto& dim = kept.at(as_size(strided->dim));
      Indices out;
      auto const parts = swapped && i == 0 ? 1 : strided->split_factor;
      for (std::int64_t part = 0; part < parts; ++part) {
        auto const piece = chunk(chunk(dim, parts, part), mesh_shape[i], at[i]);
        out.insert(out.end(), piece.begin(), piece.end());
      }
      dim = out;
    } else if (std::holds_alternative<Partial>(one)) {
      zeros = zeros || at[i] > 0;
    }
  }
  std::vector<std::int64_t> lengths;
  for (auto const& dim : kept) lengths.push_back(static_cast<std::int64_t>(dim.size()));
  auto out = Tensor::zeros(lengths, whole.dtype());
  if (zeros || out.nbytes() == 0) return out;
  // Two F4 elements share a byte, and four F6 elements share three.
  auto const bits = bits_of(whole.dtype());
  std::size_t const group = bits == 4 ? 2 : bits == 6 ? 4 : 1;
  auto const width = bits * group / 8;
  auto const count = as_size(out.numel()) / group;
  for (std::size_t i = 0; i < count; ++i) {
    auto rest = i * group;
    std::size_t from = 0;
    std::size_t stride = 1;
    for (auto dim = kept.size(); dim-- > 0;) {
      from += stride * as_size(kept[dim][rest % kept[dim].size()]);
      rest /= kept[dim].size();
      stride *= as_size(whole.shape()[dim]);
    }
    std::memcpy(out.mutable_bytes().data() + i * width, whole.bytes().data() + from / group * width, width);
  }
  return out;
}

RankPart part_of(ShardedModel const& model, int rank, int ranks) {
  RankPart part;
  for (auto const& [name, tensor] : model) {
    auto placement = tensor.placement;
    auto filled = placement;
    if (filled.mesh.ranks.empty()) {
      filled.mesh.ranks.resize(as_size(ranks));
      std::iota(filled.mesh.ranks.begin(), filled.mesh.ranks.end(), 0);
    }
    auto const& members = filled.mesh.ranks;
    auto const found = std::find(members.begin(), members.end(), rank);
    if (found == members.end()) continue;
    part.weights.insert_or_assign(name, piece_of(tensor.whole, filled, as_size(found - members.begin())));
    part.placements.tensors.emplace(name, std::move(placement));
  }
  return part;
}

ModelBytes bytes_of(StateDict const& weights) {
  ModelBytes out;
  for (auto const& [name, tensor] : weights)
    out[name] = {std::string(name_of(tensor.dtype())) + to_string(tensor.shape()),
                 {tensor.bytes().begin(), tensor.bytes().end()}};
  return out;
}

ModelBytes bytes_of(ShardedModel const& model) {
  StateDict weights;
  for (auto const& [name, tensor] : model) weights.insert_or_assign(name, tensor.whole);
  return bytes_of(weights);
}

ShardedModel random_model(unsigned seed, int ranks) {
  std::mt19937 random(seed);
  auto const up_to = [&](std::int64_t max) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(max + 1));
  };
  static constexpr Dtype dtypes[] = {Dtype::f32,     Dtype::bf16, Dtype::f8_e4m3, Dtype::u8,  Dtype::f4,
                                     Dtype::f6_e2m3, Dtype::i64,  Dtype::boolean, Dtype::f16, Dtype::f8_e8m0};
  ShardedModel model;
  for (int i = 0; i < 12; ++i) {
    ShardedWeight tensor;
    auto const dtype = dtypes[as_size(up_to(std::size(dtypes) - 1))];
    std::vector<std::int64_t> shape;
    for (auto dims = up_to(3); dims > 0; --dims) shape.push_back(up_to(9));
    bool const packed = bits_of(dtype) < 8;
    if (packed) shape.push_back(8 * up_to(3));
    tensor.whole = random_tensor(random, shape, dtype);
    auto& mesh = tensor.placement.mesh;
    if (ranks == 4 && up_to(1) == 1) mesh.shape = {2, 2};
    auto const dims = mesh.shape.empty() ? 1 : mesh.shape.size();
    for (std::size_t m = 0; m < dims; ++m) {
      auto const shardable = static_cast<std::int64_t>(shape.size()) - (packed ? 1 : 0);
      auto const kind = up_to(3);
      if (kind == 0 || shardable < 1) {
        tensor.placement.placements.emplace_back(Replicate{});
      } else if (kind == 3) {
        tensor.placement.placements.emplace_back(StridedShard{up_to(shardable - 1), 1 + up_to(2)});
      } else {
        tensor.placement.placements.emplace_back(Shard{up_to(shardable - 1)});
      }
    }
    if (up_to(1) == 1) {
      mesh.ranks.resize(as_size(ranks));
      std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
      std::shuffle(mesh.ranks.begin(), mesh.ranks.end(), random);
    }
    // The whole length cannot be found from empty pieces of strided chunks; DTensor always knows the shape.
    tensor.placement.shape = tensor.whole.shape();
    if (up_to(3) == 0) tensor.placement.shape.reset();
    model.emplace("layers." + std::to_string(i) + ".tensor", std::move(tensor));
  }
  return model;
}

}  // namespace crossrank::test
