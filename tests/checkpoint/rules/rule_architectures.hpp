#pragma once
#include <ostream>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/checkpoint/support/rule_reference.hpp"

namespace crossrank::checkpoint {

/// One line of an architecture's plan: how a tensor is split for two ranks. `rank1` is the part of the second rank, in
/// entries of `axis`. With `axis` -1 it is empty, and the rank gets the whole tensor.
struct Line {
  char const* name;
  Shape shape;
  int axis;
  std::vector<SplitRange> rank1;
};

struct Architecture {
  char const* title;
  Json config;
  std::vector<Line> lines;
};

inline void PrintTo(Architecture const& architecture, std::ostream* out) { *out << architecture.title; }

/// Returns a config with hidden size 64, 8 heads of 8, 4 key/value heads, feed-forward size 96 and 160 tokens.
inline Json config(char const* type, char const* act = "silu") {
  return {{"model_type", type},       {"hidden_size", 64},       {"num_attention_heads", 8},
          {"num_key_value_heads", 4}, {"intermediate_size", 96}, {"vocab_size", 160},
          {"num_hidden_layers", 2},   {"hidden_act", act},       {"tie_word_embeddings", false}};
}

inline Json with(Json base, Json const& more) {
  for (auto const& [key, value] : more.items()) base[key] = value;
  return base;
}

inline std::vector<SplitRange> second_half(std::int64_t length) { return {{length / 2, 0, length / 2}}; }

/// Returns the second halves of consecutive parts.
inline std::vector<SplitRange> halves(std::vector<std::int64_t> const& widths) {
  std::vector<SplitRange> pieces;
  std::int64_t begin = 0;
  std::int64_t to = 0;
  for (auto const width : widths) {
    pieces.push_back({begin + width / 2, to, width / 2});
    begin += width;
    to += width / 2;
  }
  return pieces;
}

/// Returns families with special names or layouts.
std::vector<Architecture> other_families();

}  // namespace crossrank::checkpoint
