#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"

#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "workspace/checkpoint/model/list_text.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_files = 3;
// If this many kinds of layers are pieces, it is not a coincidence.
constexpr std::size_t enough_kinds = 2;

bool is_one_ranks(std::string const& path) {
  auto const file = fs::path(path);
  return parse_shard_name(file.filename().string()).has_place() ||
         parse_shard_name(file.parent_path().filename().string()).has_place();
}

/// Returns the file name of tensor-parallel rank `tp`, derived from an existing file; empty if that is impossible.
std::string file_of_rank(ShardSet const& set, std::size_t beside, int tp) {
  auto const path = fs::path(set.sources[beside]->name());
  for (auto const& name : {path.filename().string(), path.parent_path().filename().string()}) {
    auto wanted = parse_shard_name(name);
    if (!wanted.has_place()) continue;
    // The number in the whole grid is known only if all ranks are tensor-parallel.
    if (wanted.rank && (set.pp > 1 || set.ep > 1)) return {};
    (wanted.rank ? wanted.rank : wanted.tp) = tp;
    auto sibling = sibling_name(name, wanted);
    if (sibling.empty() || name == path.filename()) return sibling;
    return (fs::path(sibling) / path.filename()).string();
  }
  return {};
}

std::string ranks_text(std::span<int const> ranks, int all) {
  std::string text = ranks.size() == 1 ? "tensor-parallel rank " : "tensor-parallel ranks ";
  text += std::to_string(ranks.front());
  if (ranks.size() > 1) text += (ranks.size() == 2 ? " and " : " to ") + std::to_string(ranks.back());
  return text + " of " + std::to_string(all) + (ranks.size() == 1 ? " is missing" : " are missing");
}

}  // namespace

FormatError missing_ranks(ShardSet const& set, Error const& finding) {
  auto const& info = finding.info();
  auto const ranks = finding.failed_ranks();
  auto const all = ranks.empty() ? set.tp : ranks.back() + 1;
  std::vector<std::string> files;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    if (set.places[i].tp != 0) continue;
    for (auto const rank : ranks) {
      if (auto file = file_of_rank(set, i, rank); !file.empty()) files.push_back(std::move(file));
    }
  }
  auto message = ranks_text(ranks, all);
  if (!files.empty()) message += ": " + list_text(files, most_files);
  return FormatError({.operation = "merge plan",
                      .message = message,
                      .expected = info.expected + " in " + info.resource,
                      .got = info.got,
                      .resource = fs::path(set.sources.front()->name()).parent_path().string(),
                      .hint = "copy the missing files to the directory; an incomplete checkpoint is never merged",
                      .failed_ranks = {ranks.begin(), ranks.end()},
                      .details = files,
                      .section = missing_ranks_section});
}

std::optional<FormatError> check_single_shard(ShardSet const& set, std::optional<fs::path> const& rule_file) {
  if (set.sources.size() != 1 || set.config.empty()) return std::nullopt;
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
  if (finding->section() == missing_ranks_section) return missing_ranks(set, *finding);
  return FormatError({.operation = "merge plan",
                      .message = "the only shard is a part of the model: the files of other ranks are missing",
                      .expected = finding->info().expected + " in " + finding->info().resource,
                      .got = finding->info().got,
                      .resource = source.name(),
                      .hint = "copy the missing files to the directory; an incomplete checkpoint is never merged",
                      .section = lengths_section});
}

void require_no_other_ranks(fs::path const& file) {
  auto const name = file.filename().string();
  auto const mine = parse_shard_name(name);
  std::error_code error;
  if (!mine.has_place() || !fs::is_regular_file(file, error)) return;
  auto const folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (auto const& other : list_directory(folder).files) {
    auto const its = parse_shard_name(other);
    if (other == name || its.part != mine.part || sibling_name(name, its) != other) continue;
    throw UsageError({.operation = "merge plan",
                      .message = "this is the file of one rank, and the files of other ranks are beside it",
                      .got = other,
                      .resource = file.string(),
                      .hint = "pass the directory, " + folder.string() +
                              "; to read the file as a whole model, copy it to a directory of its own"});
  }
}

}  // namespace crossrank::checkpoint
