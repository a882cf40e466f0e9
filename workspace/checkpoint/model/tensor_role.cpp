#include "workspace/checkpoint/model/tensor_role.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "workspace/checkpoint/model/name_pattern.hpp"

namespace crossrank::checkpoint {
namespace {

struct Suffix {
  std::string_view text;
  TensorRole role;
};

constexpr std::array<Suffix, 44> suffixes{{
    {"weight", TensorRole::weight},
    {"qweight", TensorRole::weight},
    {"weight_packed", TensorRole::weight},
    {"blocks", TensorRole::weight},
    {"weight_blocks", TensorRole::weight},
    {"bias", TensorRole::bias},
    {"weight_bias", TensorRole::bias},
    {"weight_scale", TensorRole::weight_scale},
    {"weight_scale_inv", TensorRole::weight_scale},
    {"scale_inv", TensorRole::weight_scale},
    {"scales", TensorRole::weight_scale},
    {"weight_scales", TensorRole::weight_scale},
    {"weights_scaling_factor", TensorRole::weight_scale},
    {"per_channel_scale", TensorRole::weight_scale},
    {"weight_scale_2", TensorRole::weight_scale_2},
    {"weights_scaling_factor_2", TensorRole::weight_scale_2},
    {"weight_global_scale", TensorRole::global_scale},
    {"input_scale", TensorRole::input_scale},
    {"act_scale", TensorRole::input_scale},
    {"activation_scale", TensorRole::input_scale},
    {"activation_scaling_factor", TensorRole::input_scale},
    {"input_global_scale", TensorRole::input_divisor},
    {"output_scale", TensorRole::output_scale},
    {"input_zero_point", TensorRole::zero_point},
    {"output_zero_point", TensorRole::zero_point},
    {"pre_quant_scale", TensorRole::pre_quant},
    {"prequant_scaling_factor", TensorRole::pre_quant},
    {"smoothing_factor", TensorRole::pre_quant},
    {"smoother", TensorRole::pre_quant},
    {"qzeros", TensorRole::zeros},
    {"weight_zero_point", TensorRole::zeros},
    {"g_idx", TensorRole::group_ids},
    {"weight_g_idx", TensorRole::group_ids},
    {"weight_shape", TensorRole::weight_shape},
    {"k_scale", TensorRole::cache_scale},
    {"v_scale", TensorRole::cache_scale},
    {"kv_scale", TensorRole::cache_scale},
    {"q_scale", TensorRole::cache_scale},
    {"prob_scale", TensorRole::cache_scale},
    {"kv_cache_scaling_factor", TensorRole::cache_scale},
    {"k_cache_scaling_factor", TensorRole::cache_scale},
    {"v_cache_scaling_factor", TensorRole::cache_scale},
    {"svdquant_lora_a", TensorRole::low_rank_a},
    {"svdquant_lora_b", TensorRole::low_rank_b},
}};

/// Returns the longest suffix of `name` that follows the character `joint`.
Suffix const* find_suffix(std::string_view name, char joint) {
  Suffix const* best = nullptr;
  for (auto const& suffix : suffixes) {
    if (name.size() <= suffix.text.size() + 1 || !name.ends_with(suffix.text)) continue;
    if (name[name.size() - suffix.text.size() - 1] != joint) continue;
    if (best == nullptr || best->text.size() < suffix.text.size()) best = &suffix;
  }
  return best;
}

TensorName split_module(std::string_view name, Suffix const& suffix) {
  auto const dot = name.size() - suffix.text.size() - 1;
  return {.module = name.substr(0, dot), .role = suffix.role, .suffix = name.substr(dot)};
}

bool stands_in_experts(std::string_view name) {
  auto const last = name.rfind('.');
  if (last == std::string_view::npos) return false;
  auto const parent = name.substr(0, last);
  return parent.ends_with(".experts") || parent == "experts";
}

}  // namespace

TensorName parse_tensor_name(std::string_view name) {
  if (auto const* suffix = find_suffix(name, '.')) return split_module(name, *suffix);
  // Stacked experts are parameters of one module, so an underscore joins their suffix.
  if (stands_in_experts(name)) {
    if (auto const* suffix = find_suffix(name, '_')) return split_module(name, *suffix);
  }
  return {.module = name, .role = TensorRole::weight, .suffix = name.substr(name.size())};
}

bool is_scale(TensorRole role) noexcept {
  switch (role) {
    case TensorRole::weight_scale:
    case TensorRole::weight_scale_2:
    case TensorRole::global_scale:
    case TensorRole::input_scale:
    case TensorRole::input_divisor:
    case TensorRole::output_scale:
    case TensorRole::cache_scale: return true;
    default: return false;
  }
}

std::string_view to_string(TensorRole role) noexcept {
  switch (role) {
    case TensorRole::weight: return "weight";
    case TensorRole::bias: return "bias";
    case TensorRole::weight_scale: return "weight scale";
    case TensorRole::weight_scale_2: return "second weight scale";
    case TensorRole::global_scale: return "global weight scale (a divisor)";
    case TensorRole::input_scale: return "input scale";
    case TensorRole::input_divisor: return "global input scale (a divisor)";
    case TensorRole::output_scale: return "output scale";
    case TensorRole::zero_point: return "zero point of activations";
    case TensorRole::pre_quant: return "smoothing scale";
    case TensorRole::zeros: return "zero points";
    case TensorRole::group_ids: return "group ids";
    case TensorRole::weight_shape: return "original shape";
    case TensorRole::cache_scale: return "key/value cache scale";
    case TensorRole::low_rank_a: return "low-rank factor A";
    case TensorRole::low_rank_b: return "low-rank factor B";
  }
  return "tensor";
}

}  // namespace crossrank::checkpoint
