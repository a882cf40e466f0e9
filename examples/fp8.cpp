// Joins FP8 weights whose ranks chose different scales: all ranks agree on the largest scale, each requantizes its
// part, and rank 0 joins them. Run it alone, or with `crossrank run -n 4 -- fp8`. With `--gpu` the weights are on the
// ranks' GPUs.
#include <crossrank/crossrank.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "fp8_codec.hpp"

/// Returns `weight`, whose values count in units of `from`, with the same values in units of `to`, on the same device.
xr::Tensor requantize(xr::Tensor const& weight, float from, float to) {
  if (from == to) return weight;
  auto const host = weight.to(xr::Device::cpu());  // the library has no kernel for this arithmetic
  auto out = xr::Tensor::empty(weight.shape(), weight.dtype());
  std::ranges::transform(host.bytes(), out.mutable_bytes().begin(), [&](std::byte bits) {
    // Exact except for the division, whose rounding is far below the precision of E4M3.
    auto const value =
        fp8::decode_e4m3(std::to_integer<std::uint8_t>(bits)) * static_cast<double>(from) / static_cast<double>(to);
    return std::byte{fp8::encode_e4m3(value)};
  });
  return out.to(weight.device());
}

void merge_fp8(xr::StateDict& sd, std::span<std::string const> linears, xr::Collective const& tp) {
  std::vector<float> amax;
  for (auto const& n : linears) amax.push_back(sd.at(n + ".weight_scale").item<float>());
  auto merged = amax;
  tp.all_reduce(std::span(merged), xr::ReduceOp::max);
  xr::StateDict mine;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    mine.insert_or_assign(linears[i], requantize(sd.at(linears[i] + ".weight"), amax[i], merged[i]));
  }
  xr::GatherOptions options;
  // Rank 0 gets the parts where its own are.
  options.to = mine.at(linears[0]).device();
  auto const shards = xr::get_tensors_parallel(mine, tp, options).take();  // two barrier rounds for all layers
  for (std::size_t i = 0; i < linears.size() && !shards.empty(); ++i) {
    std::vector<xr::Tensor> parts;
    for (auto const& shard : shards) parts.push_back(shard.at(linears[i]));
    sd.insert_or_assign(linears[i] + ".weight", xr::concat(parts, {.dim = 0}));
    sd.insert_or_assign(linears[i] + ".weight_scale", xr::Tensor::scalar(merged[i]));
  }
}

/// Returns two rows of each linear layer. All values are 1, in units of 1, 1/2, 1/4 and so on, on ranks 0, 1, 2 and so
/// on.
xr::StateDict make_part(std::span<std::string const> linears, int rank, xr::Device device) {
  auto const scale = std::ldexp(1.0F, -(rank % 8));
  xr::StateDict sd;
  for (auto const& n : linears) {
    auto weight = xr::Tensor::empty({2, 4}, xr::Dtype::f8_e4m3);
    std::ranges::fill(weight.mutable_bytes(), std::byte{fp8::encode_e4m3(1 / static_cast<double>(scale))});
    sd.insert_or_assign(n + ".weight", weight.to(device));
    sd.insert_or_assign(n + ".weight_scale", xr::Tensor::scalar(scale));
  }
  return sd;
}

int main(int argc, char** argv) {
  auto const world = xr::connect();
  bool const wants_gpu = argc > 1 && std::strcmp(argv[1], "--gpu") == 0;
  auto const device = wants_gpu ? xr::default_device() : xr::Device::cpu();
  if (wants_gpu && device == xr::Device::cpu()) std::puts("no GPU found: the weights stay on the CPU");
  std::array<std::string, 2> const linears{"gate_proj", "up_proj"};
  auto sd = make_part(linears, world.rank(), device);
  merge_fp8(sd, linears, world);
  for (auto const& n : linears) {
    if (world.rank() != 0) break;
    auto const& merged = sd.at(n + ".weight");
    auto const weight = merged.to(xr::Device::cpu());
    auto const scale = static_cast<double>(sd.at(n + ".weight_scale").item<float>());
    auto const is_one = [&](std::byte bits) {
      return fp8::decode_e4m3(std::to_integer<std::uint8_t>(bits)) * scale == 1;
    };
    std::printf("%s: %s, scale %.3f, %td of %zu are 1\n", n.c_str(), to_string(merged).c_str(), scale,
                std::ranges::count_if(weight.bytes(), is_one), weight.nbytes());
  }
}
