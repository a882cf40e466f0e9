// JSON documents with many keys: a config, the index of a model, the metadata of a safetensors file. The time per key
// must not depend on the number of keys.
#include <cstdint>
#include <span>
#include <string>

#include <benchmark/benchmark.h>

#include "lib/codec/safetensors/header_parser.hpp"
#include "lib/codec/json/json_document.hpp"

namespace {

namespace codec = crossrank::codec;

std::string name_of(std::int64_t number) {
  return "model.layers." + std::to_string(number / 8) + ".mlp.experts." + std::to_string(number % 8) +
         ".down_proj.weight";
}

/// Returns `before`, `keys` members with the same value, `after`.
std::string document(std::string const& before, std::string const& value, std::string const& after, std::int64_t keys) {
  auto text = before;
  for (std::int64_t i = 0; i < keys; ++i) text += (i == 0 ? "\"" : ",\"") + name_of(i) + "\":" + value;
  return text + after;
}

void count(benchmark::State& state, std::string const& text) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * state.range(0));
}

void read_config(benchmark::State& state) {
  auto const text = document(R"({"quantized_layers":{)", R"({"quant_algo":"FP8"})", "}}", state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(codec::parse_json(text, {.limits = codec::listing_limits}));
  count(state, text);
}

void read_index(benchmark::State& state) {
  auto const text = document(R"({"weight_map":{)", R"("model-00001-of-00100.safetensors")", "}}", state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(codec::parse_json(text, {.limits = codec::listing_limits}));
  count(state, text);
}

void read_metadata(benchmark::State& state) {
  auto const text = document(R"({"__metadata__":{)", R"("value")", "}}", state.range(0));
  auto const length = static_cast<std::uint64_t>(text.size());
  auto const file = std::string(reinterpret_cast<char const*>(&length), sizeof length) + text;
  for (auto _ : state) benchmark::DoNotOptimize(codec::parse_header(std::as_bytes(std::span(file)), file.size(), {}));
  count(state, text);
}

BENCHMARK(read_config)->Name("json/config")->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(read_index)->Name("json/index")->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(read_metadata)->Name("json/metadata")->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

}  // namespace
