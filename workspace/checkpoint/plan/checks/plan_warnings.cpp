#include "workspace/checkpoint/plan/checks/plan_warnings.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/log.hpp"
#include "workspace/checkpoint/discovery/megatron/training_arguments.hpp"
#include "workspace/checkpoint/model/model_names.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/plan/checks/check_layers.hpp"
#include "workspace/checkpoint/plan/checks/check_model.hpp"
#include "workspace/checkpoint/plan/checks/missing_scales.hpp"
#include "workspace/checkpoint/rules/rule_set/unused_rules.hpp"
#include "workspace/checkpoint/rules/towers.hpp"
#include "workspace/checkpoint/source/torch/dcp_safetensors.hpp"

namespace crossrank::checkpoint {
namespace {

// A model has thousands of layers with the same defect.
constexpr std::size_t max_of_a_kind = 20;

/// Returns the sizes in the caller's rules, or else those that the model's files give.
Json config_of(PlannedMerge const& merge) {
  auto const config = merge.rules.find("config");
  return config != merge.rules.end() ? *config : merge.layout.set.lengths();
}

ModelSizes sizes_of(PlannedMerge const& merge) { return ModelSizes(config_of(merge)); }

/// Returns the layers of the result that lack a scale.
std::vector<Defect> layers_without_scales(PlannedMerge const& merge) {
  std::vector<SourceTensor> tensors;
  for (auto const& tensor : merge.layout.tensors) tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  return check_missing_scales(tensors, merge.where, merge.layout.set.config, merge.layout.set.quantization);
}

/// Returns the fused layers that are in no table of a model's names: those of unknown models, and of encoders.
std::vector<Defect> layers_of_unknown_names(std::vector<std::string> names, Json const& config) {
  if (ModelNames(config).known()) std::erase_if(names, [](auto const& name) { return !Towers::contain(name); });
  return check_fused_layers(names, config);
}

/// Warns of tensors that the model may lack by design, or because a part was not saved.
void warn_of_missing_tensors(PlannedMerge const& merge) {
  auto const& layout = merge.layout;
  auto const names = names_of(layout);
  auto findings = check_missing_tensors(names);
  auto const add = [&](std::vector<Defect> more) {
    findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  add(check_vocabulary(layout.tensors, sizes_of(merge)));
  // Only some serving programs fuse these layers.
  if (layout.set.saved_by_vllm) add(layers_of_unknown_names(names, config_of(merge)));
  add(check_stacked_layers(names));
  add(layers_without_scales(merge));
  add(check_layer_names(names, config_of(merge), merge.where));
  std::map<std::string_view, std::size_t> counts;
  for (auto const& finding : findings) {
    if (++counts[finding.text] <= max_of_a_kind)
      log_event(LogLevel::warning, finding.text, {{"tensor", finding.resource}});
  }
  for (auto const& [text, count] : counts) {
    if (count > max_of_a_kind)
      log_event(LogLevel::warning, text, {{"more tensors", std::to_string(count - max_of_a_kind)}});
  }
}

/// Warns of layers and experts beyond the number in the config.
void warn_of_surplus_layers(PlannedMerge const& merge) {
  for (auto gap : find_gaps(names_of(merge.layout), config_of(merge))) {
    gap.missing.clear();
    if (!gap.extra.empty()) log_event(LogLevel::warning, gap.text(), {{"input", merge.where}});
  }
}

/// Warns of assumptions that change the model if they are wrong.
void warn_of_assumptions(MergeLayout const& layout) {
  auto const found = std::find_if(layout.tensors.begin(), layout.tensors.end(), [](auto const& tensor) {
    auto const* const concat = std::get_if<Concatenate>(&tensor.rule->kind);
    return concat != nullptr && concat->assumed_layout;
  });
  if (found == layout.tensors.end()) return;
  log_event(LogLevel::warning,
            "assumed that fused layers are sharded part by part (`fused_layout` per_rank); transformers' own tensor "
            "parallelism shards them as one block: `fused_layout` plain merges such shards",
            {{"tensor", found->name}});
}

/// Warns of rows beyond the config's tokens. They are padding, unless the config does not count all tokens.
void warn_of_padding(MergeLayout const& layout) {
  if (has_padded_vocabulary(layout.set.sources.front()->attributes())) return;
  for (auto const& tensor : layout.tensors) {
    auto const* const concat = std::get_if<Concatenate>(&tensor.rule->kind);
    if (concat != nullptr && concat->true_size >= 0)
      log_event(LogLevel::warning, "the last rows are dropped as padding: " + tensor.rule->reason,
                {{"tensor", tensor.name}});
  }
}

/// Warns if a missing last rank could not be noticed, because neither a number of ranks nor the model's sizes are
/// known.
void warn_of_uncounted_ranks(PlannedMerge const& merge) {
  auto const& set = merge.layout.set;
  if (!set.uncounted || sizes_of(merge)[SizeName::hidden]) return;
  if (set.has_uncounted_pieces()) {
    return log_event(LogLevel::warning,
                     "nothing tells how many ranks saved the pieces, so that a missing last rank is not noticed: put "
                     "config.json beside the files",
                     {{"files found", std::to_string(set.files.size())}, {"input", merge.where}});
  }
  log_event(
      LogLevel::warning,
      std::string("nothing tells how many ranks the job had, so that a missing last rank is not noticed: set `tp`, ") +
          (set.config.empty() ? "or put config.json beside the shards" : "or give \"hidden_size\" in config.json"),
      {{"ranks found", std::to_string(set.sources.size())}, {"input", merge.where}});
}

/// Warns of files of a distributed checkpoint that are missing, unless their ranks had nothing to save in them.
void warn_of_missing_parts(ShardSet const& set) {
  if (!set.has_uncounted_pieces()) return;
  std::vector<std::string> names;
  for (auto const& file : set.files) names.push_back(std::filesystem::path(file.path).filename().string());
  for (auto const& name : missing_parts(names, max_of_a_kind))
    log_event(LogLevel::warning, "a part of a rank is missing, unless the rank has no tensor in it", {{"file", name}});
}

/// Warns of files that are not copied because nothing is there.
void warn_of_unreachable_files(ShardSet const& set) {
  for (auto const& path : set.unreachable)
    log_event(LogLevel::warning, "a dangling link, device or pipe beside the weights is left out", {{"file", path}});
}

/// Warns of an input that would become an empty model, such as a torch archive that holds no state dict.
void warn_of_no_tensors(PlannedMerge const& merge) {
  if (merge.layout.tensors.empty())
    log_event(LogLevel::warning, "there are no tensors, so the model is empty", {{"input", merge.where}});
}

/// Warns of rules that apply to no tensor, which are probably mistakes.
void warn_of_unused_rules(PlannedMerge const& merge) {
  if (merge.rule_file == nullptr) return;
  for (auto const& text : unused_rules(*merge.rule_file, merge.layout.set, sizes_of(merge).model_type()))
    log_event(LogLevel::warning, text, {{"file", merge.rule_path}});
}

}  // namespace

void log_plan_warnings(PlannedMerge const& merge) {
  warn_of_no_tensors(merge);
  warn_of_uncounted_ranks(merge);
  warn_of_missing_parts(merge.layout.set);
  warn_of_unreachable_files(merge.layout.set);
  warn_of_missing_tensors(merge);
  warn_of_surplus_layers(merge);
  warn_of_assumptions(merge.layout);
  warn_of_padding(merge.layout);
  warn_of_unused_rules(merge);
}

}  // namespace crossrank::checkpoint
