#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t max_files = 3;
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
  if (!files.empty()) message += ": " + list_text(files, max_files);
  return FormatError({.operation = "merge plan",
                      .message = message,
                      .expected = info.expected + " in " + info.resource,
                      .got = info.got,
                      .resource = fs::path(set.sources.front()->name()).parent_path().string(),
                      .hint = "copy the missing files to the directory; an incomplete checkpoint is never merged",
                      .failed_ranks = {ranks.begin(), ranks.end()},
                      .details = files,
                      .section = to_string(ErrorSection::missing_ranks)});
}

}  // namespace crossrank::checkpoint
