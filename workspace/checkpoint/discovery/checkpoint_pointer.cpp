#include "workspace/checkpoint/discovery/checkpoint_pointer.hpp"

#include <algorithm>
#include <span>
#include <string>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* megatron = "latest_checkpointed_iteration.txt";
constexpr char const* deepspeed = "latest";
constexpr std::uint64_t longest_name = 255;  // longest file name, in bytes

/// Returns the content of a file without surrounding white space, or nothing if it cannot be a file name.
std::optional<std::string> name_in(std::filesystem::path const& path) {
  auto const file = std::make_shared<FilePool>()->open(path);
  if (file->size() > longest_name) return std::nullopt;
  std::string text(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  auto const begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
  bool const plain = std::none_of(text.begin(), text.end(), [](char c) { return c == '/' || c == '\0' || c == '\n'; });
  return plain && text != "." && text != ".." ? std::optional(text) : std::nullopt;
}

/// Returns the name of Megatron's directory of an iteration; its number has at least seven digits.
std::string directory_of(std::string const& iteration) {
  bool const number = iteration.find_first_not_of("0123456789") == std::string::npos;
  if (!number) return iteration;
  return "iter_" + std::string(iteration.size() < 7 ? 7 - iteration.size() : 0, '0') + iteration;
}

}  // namespace

std::optional<std::filesystem::path> follow_pointer(DirectoryListing const& listing) {
  bool const numbered = listing.has(megatron);
  auto const* const pointer = numbered ? megatron : deepspeed;
  if (!listing.has(pointer)) return std::nullopt;
  auto name = name_in(listing.path / pointer);
  if (name && numbered) name = directory_of(*name);
  if (name && std::binary_search(listing.directories.begin(), listing.directories.end(), *name))
    return listing.path / *name;
  // The file is a leftover of another job; the directories of the ranks are what counts.
  if (std::any_of(listing.directories.begin(), listing.directories.end(),
                  [](auto const& directory) { return parse_shard_name(directory).has_place(); }))
    return std::nullopt;
  throw FormatError({.operation = open_operation,
                     .message = std::string("the directory that \"") + pointer + "\" names does not exist",
                     .expected = name.value_or("a directory name"),
                     .resource = listing.path.string(),
                     .hint = "pass the directory of one step",
                     .section = to_string(ErrorSection::files)});
}

}  // namespace crossrank::checkpoint
