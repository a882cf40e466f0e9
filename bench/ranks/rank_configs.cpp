// Runs get_configs_parallel over all ranks of a job with the configs of the ModelOpt peer: a decoder layer of 9
// tensors, the same layer with its scales (23), and a small model of 400.
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "bench/harness/consume.h"
#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

namespace {

constexpr std::int64_t hidden = 64;

xr::Tensor filled(xr::Shape const& shape, xr::Dtype dtype, int rank) {
  auto tensor = xr::Tensor::empty(shape, dtype);
  bench_fill(tensor.mutable_bytes().data(), tensor.nbytes(), rank);
  return tensor;
}

void add_linear(xr::RankState& state, xr::Json& config, std::string const& key, bool scales, int rank) {
  config = {{"quantization", scales ? xr::Json("fp8") : xr::Json()},
            {"linear_type", "column"},
            {"awq_block_size", 0},
            {"tp", true}};
  config["weight"] = key + ".weight";
  state.weights.insert_or_assign(key + ".weight", filled({hidden, hidden}, xr::Dtype::bf16, rank));
  if (!scales) return;
  for (char const* const scale : {"activation_scaling_factor", "weights_scaling_factor"}) {
    config[scale] = key + "." + scale;
    state.weights.insert_or_assign(key + "." + scale, filled({1}, xr::Dtype::f32, rank));
  }
}

void add_layer(xr::RankState& state, xr::Json& config, std::string const& prefix, bool scales, int rank) {
  config["decoder_type"] = "llama";
  config["num_attention_heads"] = 8;
  config["rotary_dim"] = -std::numeric_limits<double>::infinity();
  for (char const* const norm : {"input_layernorm", "post_layernorm"}) {
    auto const key = prefix + "." + norm + ".weight";
    config[norm] = {{"weight", key}, {"eps", 1e-5}};
    state.weights.insert_or_assign(key, filled({hidden}, xr::Dtype::bf16, rank));
  }
  for (char const* const linear :
       {"attention.q", "attention.k", "attention.v", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"}) {
    add_linear(state, config[linear], prefix + "." + linear, scales, rank);
  }
}

xr::RankState state_with(std::size_t tensors, int rank) {
  xr::RankState state;
  if (tensors < 400) {
    state.config["__name__"] = "DecoderLayerConfig";
    add_layer(state, state.config, "transformer", tensors == 23, rank);
    return state;
  }
  for (std::size_t i = 0; i < 44; ++i) {
    add_layer(state, state.config["layers"].emplace_back(), "transformer.layers." + std::to_string(i), false, rank);
  }
  for (char const* const name :
       {"transformer.vocab_embedding.weight", "transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"}) {
    state.weights.insert_or_assign(name, filled({hidden}, xr::Dtype::bf16, rank));
  }
  return state;
}

/// Makes one call. The consumer looks up one tensor by name and reads it, or reads all tensors and the config.
void call(xr::RankState const& mine, std::vector<xr::RankState> const& expected, xr::Collective const& world,
          bool reads) {
  auto items = xr::get_configs_parallel(mine, world);
  for (std::size_t i = 1; i < items.size(); ++i) {
    auto const& state = items[i].state;
    auto const& first = *expected[i].weights.begin();
    bench::require(state.weights.size() == expected[i].weights.size(), "tensors are missing");
    bench::require(state.weights.at(first.first).bytes()[0] == first.second.bytes()[0],
                   "received another rank's tensor");
    if (!reads) continue;
    bench::require(state.config == expected[i].config, "received another config");
    for (auto const& [name, tensor] : expected[i].weights) {
      auto const& theirs = state.weights.at(name);
      bench::require(theirs.nbytes() == tensor.nbytes() &&
                         std::memcmp(theirs.bytes().data(), tensor.bytes().data(), tensor.nbytes()) == 0,
                     "wrong bytes in ", name);
    }
  }
  items.close();
}

}  // namespace

int main(int argc, char** argv) {
  auto const arguments = bench::parse(argc, argv);
  auto world = xr::connect();
  bench::UsageMeter const meter;
  for (std::size_t const tensors : std::array<std::size_t, 3>{9, 23, 400}) {
    std::vector<xr::RankState> expected;
    for (int rank = 0; rank < world.world_size(); ++rank) expected.push_back(state_with(tensors, rank));
    auto const& mine = expected[static_cast<std::size_t>(world.rank())];
    bench::require(mine.weights.size() == tensors, "the config has an unexpected number of tensors");
    for (bool const reads : {false, true}) {
      bench::Row row{.path = "configs",
                     .variant = "warm",
                     .rank = world.rank(),
                     .ranks = world.world_size(),
                     .bytes = tensors,
                     .reads = reads};
      row.payload = world.rank() != 0 ? static_cast<double>(mine.weights.nbytes()) : 0.0;
      for (int i = 0; i < 20; ++i) call(mine, expected, world, true);
      bench::measure(row, meter, arguments.quick ? 200 : 1000, 1, 0,
                     [&](std::uint64_t) { call(mine, expected, world, reads); });
      bench::append(arguments.out, {row});
    }
  }
  world.close();
}
