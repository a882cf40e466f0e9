#include "workspace/checkpoint/plan/checks/single_shard.hpp"

#include <set>
#include <string>
#include <utility>

#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"
#include "workspace/checkpoint/discovery/grid/one_model.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/rules/towers.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
// If this many kinds of layers are pieces, it is not a coincidence.
constexpr std::size_t enough_kinds = 2;

bool is_of_one_rank(fs::path const& file) { return parse_shard_name(file.filename().string()).has_place(); }

bool is_in_folder_of_one_rank(fs::path const& file) { return is_only_a_place(file.parent_path().filename().string()); }

FormatError wrong_length(ShardSet const& set, std::string expected, std::string got) {
  return FormatError({.operation = "merge plan",
                      .message =
                          "the pieces do not add up to the lengths that the config gives: the files of a rank are "
                          "missing, or the config is of another model",
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .resource = set.sources.front()->name(),
                      .hint = "copy all files of the save to the directory, or correct config.json; with a rule file "
                              "(`rules`), the lengths are not compared",
                      .section = to_string(ErrorSection::coverage)});
}

/// Checks pieces whose files do not give the lengths of whole tensors. Without the last rank, the pieces of the others
/// look like whole tensors, and some layers have a length by chance or along another dimension. So every layer counts.
std::optional<FormatError> check_joined_pieces(ShardSet const& set, RuleSet const& rule_set) {
  auto const hidden = ModelSizes(set.config)[SizeName::hidden];
  Towers const towers(set.config);
  for (auto const& tensor : set.sources.front()->tensors()) {
    if (towers.sizes_of(parse_tensor_name(tensor.name).module) != nullptr) continue;
    // Some models have longer norms.
    if (hidden && is_norm_of_hidden(tensor) && tensor.shape[0] < *hidden)
      return wrong_length(set, std::to_string(*hidden) + " in " + tensor.name, std::to_string(tensor.shape[0]));
    auto const [fit, error] = rule_set.fit_of(tensor);
    if (error) return wrong_length(set, error->info().expected + " in " + error->info().resource, error->info().got);
  }
  return std::nullopt;
}

}  // namespace

std::optional<FormatError> check_single_shard(ShardSet const& set, std::optional<fs::path> const& rule_file) {
  if (set.sources.size() != 1 || set.known_whole) return std::nullopt;
  bool const in_memory = set.files.empty();
  if (in_memory && !ModelSizes(set.config).known()) return std::nullopt;  // a split of unknown parts is refused later
  auto const& source = *set.sources.front();
  bool const named_by_file = is_of_one_rank(source.name());
  bool const named = named_by_file || is_in_folder_of_one_rank(source.name());
  auto const rule_set = RuleSet::make(set, rule_file);
  if (set.has_uncounted_pieces()) return check_joined_pieces(set, rule_set);
  std::optional<FormatError> finding;
  std::set<std::string> kinds;
  for (auto const& tensor : source.tensors()) {
    auto const [fit, error] = rule_set.fit_of(tensor);
    // If some layers are whole, the rules may misread the lengths in the config.
    if (!named && (fit == Fit::whole || fit == Fit::neither)) return std::nullopt;
    if (!error) continue;
    if (!finding) finding = error;
    kinds.insert(generalized(error->info().resource));
    if (named) break;
  }
  if (!finding || (!named && kinds.size() < enough_kinds)) return std::nullopt;
  if (in_memory) {
    return FormatError({.operation = "merge plan",
                        .message = "the weights do not have the lengths that the config gives",
                        .expected = finding->info().expected + " in " + finding->info().resource,
                        .got = finding->info().got,
                        .resource = source.name(),
                        .hint =
                            "correct the placements: each rank passes its own piece, its place, and the sizes of the "
                            "grid such as `tp`",
                        .section = to_string(ErrorSection::lengths)});
  }
  if (section_of(*finding) == ErrorSection::missing_ranks) return missing_ranks(set, *finding);
  std::string hint = "copy the missing files to the directory; an incomplete checkpoint is never merged";
  if (named && !named_by_file) hint += "; if the model is complete, rename the directory, whose name is that of a rank";
  return FormatError({.operation = "merge plan",
                      .message = "the only shard is a part of the model: the files of other ranks are missing",
                      .expected = finding->info().expected + " in " + finding->info().resource,
                      .got = finding->info().got,
                      .resource = source.name(),
                      .hint = std::move(hint),
                      .section = to_string(ErrorSection::lengths)});
}

}  // namespace crossrank::checkpoint
