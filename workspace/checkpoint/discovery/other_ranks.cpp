#include "workspace/checkpoint/discovery/other_ranks.hpp"

#include <system_error>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

}  // namespace

void require_no_other_ranks(fs::path const& file) {
  auto const name = file.filename().string();
  auto const mine = parse_shard_name(name);
  std::error_code error;
  bool const is_part = mine.part && mine.parts.value_or(1) > 1;
  if ((!mine.has_place() && !is_part) || !fs::is_regular_file(file, error)) return;
  auto const folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (auto const& other : list_directory(folder).files) {
    auto const parsed = parse_shard_name(other);
    bool const same_part = parsed.part == mine.part;
    if (other == name || (!is_part && !same_part) || sibling_name(name, parsed) != other) continue;
    throw UsageError({.operation = "merge plan",
                      .message = same_part ? "this is the file of one rank, and the files of other ranks are beside it"
                                           : "this is one part of a model, and other parts are beside it",
                      .got = other,
                      .resource = file.string(),
                      .hint = "pass the directory, " + folder.string() +
                              "; to read the file as a whole model, copy it to a directory of its own"});
  }
}

}  // namespace crossrank::checkpoint
