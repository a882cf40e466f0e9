#include "workspace/checkpoint/discovery/vllm_names.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {
namespace {

/// A source with other names for its tensors.
class RenamedSource final : public ShardSource {
 public:
  RenamedSource(std::shared_ptr<ShardSource const> stored, std::vector<SourceTensor> tensors)
      : stored_(std::move(stored)), tensors_(std::move(tensors)) {}
  [[nodiscard]] std::string const& name() const noexcept override { return stored_->name(); }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept override { return tensors_; }
  [[nodiscard]] Json const& attributes() const noexcept override { return stored_->attributes(); }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept override { return stored_->bytes_on_disk(); }
  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override {
    return stored_->files_of(tensor);
  }
  [[nodiscard]] bool is_in_memory() const noexcept override { return stored_->is_in_memory(); }
  [[nodiscard]] ShardSource const& stored() const noexcept override { return stored_->stored(); }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override {
    stored_->read(tensor, offset, out);
  }

 private:
  std::shared_ptr<ShardSource const> stored_;
  std::vector<SourceTensor> tensors_;
};

/// Replaces `from` until `name` has none left. `to` must not contain it.
void replace(std::string& name, std::string_view from, std::string_view to) {
  for (auto at = name.find(from); at != std::string::npos; at = name.find(from, at)) name.replace(at, from.size(), to);
}

/// Returns the part of the name between the layer's number and the experts, such as "mlp."; it may be empty.
std::string block_of(std::string_view name) {
  auto const layer = find_layer(name);
  if (!layer || !layer->after.starts_with('.')) return {};
  auto const experts = layer->after.find(".experts.");
  if (experts == 0 || experts == std::string_view::npos) return {};
  return std::string(layer->after.substr(1, experts));
}

/// Returns the place of the router's correction in the model. Where the experts do not hold the router, it is saved
/// among the experts.
std::string correction_of(std::string_view name, ModelNames const& model) {
  constexpr std::string_view correction = "e_score_correction_bias";
  auto const block = block_of(name);
  for (std::string_view const place : {"gate.", "moe_statics.", ""}) {
    if (model.has(block + std::string(place) + std::string(correction)))
      return std::string(place) + std::string(correction);
  }
  return "gate." + std::string(correction);
}

/// Returns the name of the module of shared experts beside the routed ones, in whose block `name` is.
std::string_view shared_experts_of(std::string_view name, ModelNames const& model) {
  auto const block = block_of(name);
  for (std::string_view const shared : {"shared_expert", "share_expert", "shared_mlp"}) {
    if (model.has(block + std::string(shared) + ".up_proj")) return shared;
  }
  return "shared_experts";
}

/// Returns whether vLLM's experts and their router go by the name "mlp" in this model, as with Mixtral.
bool calls_experts_mlp(ModelNames const& model) {
  return model.has("mlp.experts.gate_up_proj") && !model.has("block_sparse_moe.experts.gate_up_proj");
}

std::shared_ptr<ShardSource const> renamed(std::shared_ptr<ShardSource const> source, ModelNames const& model) {
  std::vector<SourceTensor> tensors(source->tensors().begin(), source->tensors().end());
  std::unordered_set<std::string> taken;
  for (auto const& tensor : tensors) taken.insert(tensor.name);
  bool changed = false;
  for (auto& tensor : tensors) {
    auto own = name_before_vllm(tensor.name, model);
    if (own == tensor.name || !taken.insert(own).second) continue;
    tensor.name = std::move(own);
    changed = true;
  }
  if (!changed) return source;
  return std::make_shared<RenamedSource const>(std::move(source), std::move(tensors));
}

}  // namespace

std::string name_before_vllm(std::string_view name, ModelNames const& model) {
  constexpr std::string_view shared = ".experts._shared_experts._layer.";
  constexpr std::string_view correction = ".experts.routed_experts.e_score_correction_bias";
  std::string own(name);
  if (name.find(shared) != std::string_view::npos)
    replace(own, shared, "." + std::string(shared_experts_of(name, model)) + ".");
  replace(own, ".shared_expert.expert_gate.", ".shared_expert_gate.");
  replace(own, ".experts.shared_expert_gate.", ".shared_expert_gate.");
  if (name.find(correction) != std::string_view::npos) replace(own, correction, "." + correction_of(name, model));
  replace(own, ".experts.routed_experts.", ".experts.");
  replace(own, ".experts.gate.", ".gate.");
  replace(own, ".experts.routed_input_transform.", ".fc1_latent_proj.");
  replace(own, ".experts.routed_output_transform.", ".fc2_latent_proj.");
  replace(own, ".mla_attn.", ".");
  if (name.find(".block_sparse_moe.") != std::string_view::npos && calls_experts_mlp(model))
    replace(own, ".block_sparse_moe.", ".mlp.");
  return own;
}

void rename_from_vllm(ShardSet& set) {
  ModelNames const model(set.config);
  for (auto& source : set.sources) source = renamed(std::move(source), model);
}

}  // namespace crossrank::checkpoint
