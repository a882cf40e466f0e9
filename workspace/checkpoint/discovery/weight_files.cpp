#include "workspace/checkpoint/discovery/weight_files.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "lib/codec/safetensors/state_file_name.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::array<std::string_view, 1> safetensors_endings{".safetensors"};
constexpr std::array<std::string_view, 4> torch_endings{".pt", ".pth", ".bin", ".ckpt"};
// Name prefixes of other files that training scripts save beside a model.
constexpr std::array<std::string_view, 9> other_states{"training_args", "optim",         "scheduler",
                                                       "lr_scheduler",  "scaler",        "rng_state",
                                                       "random_states", "distrib_optim", "common.pt"};

std::span<std::string_view const> endings_of(WeightFormat family) {
  if (family == WeightFormat::safetensors) return safetensors_endings;
  return torch_endings;
}

bool ends_with_any(std::string_view name, std::span<std::string_view const> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](auto ending) { return name.ends_with(ending); });
}

}  // namespace

bool is_other_state(std::string_view name) {
  if (name.find("optim_states") != std::string_view::npos) return true;
  return std::any_of(other_states.begin(), other_states.end(), [&](auto start) { return name.starts_with(start); });
}

bool is_adapter(std::string_view name) { return name.starts_with("adapter_model."); }

std::vector<std::string> weights_of(DirectoryListing const& listing, WeightFormat family) {
  std::vector<std::string> found;
  for (auto const& name : listing.files) {
    if (name.starts_with('.') || !ends_with_any(name, endings_of(family))) continue;
    if (auto const state = codec::parse_state_file_name(name); state && state->of_gather) continue;
    if (!is_other_state(name)) found.push_back(name);
  }
  if (!std::ranges::all_of(found, is_adapter)) std::erase_if(found, is_adapter);
  return found;
}

std::string index_of(DirectoryListing const& listing, WeightFormat family) {
  bool const safe = family == WeightFormat::safetensors;
  std::string usual = safe ? "model.safetensors.index.json" : "pytorch_model.bin.index.json";
  if (listing.has(usual)) return usual;
  auto const found = std::find_if(listing.files.begin(), listing.files.end(), [&](auto const& name) {
    return name.ends_with(safe ? ".safetensors.index.json" : ".bin.index.json");
  });
  return found == listing.files.end() ? std::string{} : *found;
}

bool is_weights(std::string_view name) {
  return ends_with_any(name, safetensors_endings) || ends_with_any(name, torch_endings) ||
         name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json") || name.ends_with(".distcp");
}

}  // namespace crossrank::checkpoint
