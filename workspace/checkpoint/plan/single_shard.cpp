#include "workspace/checkpoint/plan/single_shard.hpp"

#include <set>
#include <string>

#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
// If this many kinds of layers are pieces, it is not a coincidence.
constexpr std::size_t enough_kinds = 2;

bool is_one_ranks(std::string const& path) {
  auto const file = fs::path(path);
  return parse_shard_name(file.filename().string()).has_place() ||
         parse_shard_name(file.parent_path().filename().string()).has_place();
}

}  // namespace

std::optional<FormatError> check_single_shard(ShardSet const& set, std::optional<fs::path> const& rule_file) {
  if (set.sources.size() != 1 || set.config.empty() || set.known_whole) return std::nullopt;
  auto const& source = *set.sources.front();
  bool const named = is_one_ranks(source.name());
  auto const rule_set = RuleSet::make(set, rule_file);
  std::optional<FormatError> finding;
  std::set<std::string> kinds;
  for (auto const& tensor : source.tensors()) {
    auto const [fit, error] = rule_set.fit_of(tensor);
    // If some layers are whole, the rules may misread the lengths in the config.
    if (!named && (fit == Fit::whole || fit == Fit::neither)) return std::nullopt;
    if (!error) continue;
    if (!finding) finding = error;
    kinds.insert(generalised(error->info().resource));
    if (named) break;
  }
  if (!finding || (!named && kinds.size() < enough_kinds)) return std::nullopt;
  if (set.files.empty()) {  // weights in memory
    return FormatError({.operation = "merge plan",
                        .message = "the weights do not have the lengths that the config gives",
                        .expected = finding->info().expected + " in " + finding->info().resource,
                        .got = finding->info().got,
                        .resource = source.name(),
                        .hint =
                            "correct the placements: each rank passes its own piece, its place, and the sizes of the "
                            "grid such as `tp`",
                        .section = lengths_section});
  }
  if (finding->section() == missing_ranks_section) return missing_ranks(set, *finding);
  return FormatError({.operation = "merge plan",
                      .message = "the only shard is a part of the model: the files of other ranks are missing",
                      .expected = finding->info().expected + " in " + finding->info().resource,
                      .got = finding->info().got,
                      .resource = source.name(),
                      .hint = "copy the missing files to the directory; an incomplete checkpoint is never merged",
                      .section = lengths_section});
}

}  // namespace crossrank::checkpoint
