#include "workspace/checkpoint/discovery/model_description.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/json/json_text.hpp"
#include "workspace/checkpoint/discovery/module_folders.hpp"
#include "workspace/checkpoint/discovery/weight_files.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
// Files that say how the weights are quantized.
constexpr char const* quantization_files[] = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"};
// Larger files beside the weights are not part of a model's description.
constexpr std::uintmax_t largest_companion = std::uintmax_t{256} << 20;

// These files describe the input directory, not the model.
constexpr std::string_view not_of_model[] = {"latest", "latest_checkpointed_iteration.txt", "training_state.json",
                                             "zero_to_fp32.py", "zero_to_torch.py"};
// Weights in formats of other programs, and what editors, downloads and interrupted copies leave.
constexpr std::string_view other_endings[] = {".h5",  ".msgpack", ".ot",  ".onnx", ".gguf",       ".bak",
                                              ".tmp", ".lock",    ".swp", ".part", ".incomplete", "~"};
// It describes a distributed checkpoint of Megatron-core. Elsewhere a model may have a file of this name.
constexpr std::string_view of_distributed = "metadata.json";

/// Returns whether it is the name of a hidden file, or of a file that is no part of a checkpoint.
bool is_foreign(std::string const& name) {
  return name.starts_with('.') || std::any_of(std::begin(other_endings), std::end(other_endings),
                                              [&](auto const ending) { return name.ends_with(ending); });
}

/// Returns whether there are weights of a model. An adapter beside them is copied as it is.
bool has_model_weights(DirectoryListing const& listing) {
  return std::any_of(listing.files.begin(), listing.files.end(), [](auto const& name) {
    return !is_foreign(name) && is_weights(name) && !is_adapter(name) && !is_other_state(name);
  });
}

std::vector<SidecarFile> sidecars_of(DirectoryListing const& listing) {
  std::vector<SidecarFile> found;
  bool const copies_adapter = has_model_weights(listing);
  for (auto const& name : listing.files) {
    std::error_code error;
    if (is_foreign(name) || (is_weights(name) && !(copies_adapter && is_adapter(name)))) continue;
    if (std::find(std::begin(not_of_model), std::end(not_of_model), name) != std::end(not_of_model)) continue;
    if (name == of_distributed && listing.has(dcp_metadata_name)) continue;
    if (fs::file_size(listing.path / name, error) > largest_companion || error) continue;
    if (codec::find_bad_utf8(name) != std::string::npos) {  // the record of the job could not name it
      throw FormatError({.message = "the name of a file beside the weights is not UTF-8",
                         .resource = (listing.path / name).string(),
                         .hint = "rename the file"});
    }
    found.push_back({listing.path / name, name});
  }
  for (auto& companion : module_sidecars(listing, largest_companion)) found.push_back(std::move(companion));
  return found;
}

/// Returns the lengths in Meta's and Mistral's params.json, under the names that config.json has for them.
Json sizes_in(Json const& params) {
  constexpr std::pair<char const*, char const*> names[] = {{"dim", "hidden_size"},
                                                           {"n_layers", "num_hidden_layers"},
                                                           {"n_heads", "num_attention_heads"},
                                                           {"n_kv_heads", "num_key_value_heads"},
                                                           {"head_dim", "head_dim"},
                                                           {"hidden_dim", "intermediate_size"},
                                                           {"vocab_size", "vocab_size"}};
  Json sizes = Json::object();
  for (auto const& [given, name] : names) {
    auto const found = params.find(given);
    // Meta's Llama 2 has the size -1 for a vocabulary that the tokenizer knows.
    if (found != params.end() && found->is_number_integer() && *found > 0) sizes[name] = *found;
  }
  return sizes;
}

}  // namespace

bool describes_model(std::string_view name) {
  return name == "config.json" ||
         std::find(std::begin(quantization_files), std::end(quantization_files), name) != std::end(quantization_files);
}

void take_description(ShardSet& set, DirectoryListing const& listing) {
  auto const& directory = listing.path;
  if (auto config = read_json_object(directory / "config.json")) set.config = std::move(*config);
  if (set.config.empty()) {
    if (auto const params = read_json_object(directory / "params.json")) set.sizes = sizes_in(*params);
  }
  for (auto const* name : quantization_files) {
    auto quantization = read_json_object(directory / name);
    if (!quantization) continue;
    set.quantization = std::move(*quantization);
    break;
  }
  auto const inside = set.config.find("quantization_config");
  if (set.quantization.empty() && inside != set.config.end() && inside->is_object()) set.quantization = *inside;
  for (auto const& name : listing.unreachable) {
    if (!is_foreign(name)) set.unreachable.push_back((directory / name).string());
  }
  auto sidecars = sidecars_of(listing);
  for (auto& known : set.sidecars) {
    auto const same = [&](auto const& companion) { return companion.name == known.name; };
    if (std::none_of(sidecars.begin(), sidecars.end(), same)) sidecars.push_back(std::move(known));
  }
  set.sidecars = std::move(sidecars);
}

}  // namespace crossrank::checkpoint
