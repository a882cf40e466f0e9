#include "workspace/checkpoint/source/directory_listing.hpp"

#include <algorithm>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/json/python_json.hpp"
#include "lib/core/text/nearest_name.hpp"
#include "lib/platform/files/io_error.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
std::optional<fs::path> nearest_child(fs::path const& parent, std::string const& wanted) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->exists(ignored)) names.push_back(at->path().filename().string());
  }
  auto const near = nearest_name(wanted, names);
  return near ? std::optional(parent / *near) : std::nullopt;
}

/// Returns a hint for a path that does not exist: the existing path that is most similar.
std::string did_you_mean(fs::path const& path) {
  if (path.empty()) return "the path is empty";
  std::error_code error;
  fs::path found;
  bool corrected = false;
  for (auto const& part : fs::absolute(path, error).lexically_normal()) {
    auto const next = found / part;
    if (found.empty() || part.empty() || fs::exists(next, error)) {
      found = part.empty() ? found : next;
      continue;
    }
    if (fs::is_symlink(next, error)) return next.string() + " is a link that leads nowhere";
    auto const near = nearest_child(found, part.string());
    if (!near) return corrected ? "did you mean " + found.string() + "?" : "there is no " + next.string();
    found = *near;
    corrected = true;
  }
  return corrected ? "did you mean " + found.string() + "?" : "check the path";
}

}  // namespace

bool DirectoryListing::has(std::string const& name) const {
  return std::binary_search(files.begin(), files.end(), name);
}

bool has_directory(fs::path const& path) {
  std::error_code error;
  auto const type = fs::status(path, error).type();
  if (error && type != fs::file_type::not_found) {
    platform::throw_io(
        ErrorInfo{
            .operation = open_operation, .message = "the directory cannot be examined", .resource = path.string()},
        error.value());
  }
  return type == fs::file_type::directory;
}

DirectoryListing list_directory(fs::path const& path) {
  DirectoryListing listing{.path = path};
  std::error_code error;
  fs::directory_iterator at(path, error);
  if (error) {
    bool const other = error == std::errc::not_a_directory;  // devices, pipes and sockets
    platform::throw_io(
        ErrorInfo{.operation = open_operation,
                  .message = other ? "this is neither a directory nor a regular file" : "the directory cannot be read",
                  .resource = path.string(),
                  .hint = error == std::errc::no_such_file_or_directory ? did_you_mean(path) : ""},
        error.value());
  }
  for (fs::directory_iterator const end; at != end; at.increment(error)) {
    std::error_code ignored;
    auto name = at->path().filename().string();
    switch (at->status(ignored).type()) {
      case fs::file_type::directory: listing.directories.push_back(std::move(name)); break;
      case fs::file_type::regular: listing.files.push_back(std::move(name)); break;
      default: listing.unreachable.push_back(std::move(name)); break;
    }
    if (error) break;
  }
  if (error) platform::throw_io(std::string(open_operation) + ": readdir", path.string(), error.value());
  std::sort(listing.files.begin(), listing.files.end());
  std::sort(listing.directories.begin(), listing.directories.end());
  std::sort(listing.unreachable.begin(), listing.unreachable.end());
  return listing;
}

void refuse_listing(DirectoryListing const& listing, std::string message, std::string got, std::string hint) {
  throw FormatError({.operation = open_operation,
                     .message = std::move(message),
                     .got = std::move(got),
                     .resource = listing.path.string(),
                     .hint = std::move(hint),
                     .section = to_string(ErrorSection::files)});
}

void refuse_unreachable(fs::path const& path) {
  std::error_code error;
  if (fs::exists(fs::status(path, error))) {
    throw FormatError({.operation = open_operation,
                       .message = "this is neither a directory nor a regular file",
                       .resource = path.string(),
                       .hint = "copy the file itself there, or remove this one",
                       .section = to_string(ErrorSection::files)});
  }
  bool const lost = error == std::errc::no_such_file_or_directory || error == std::errc::too_many_symbolic_link_levels;
  platform::throw_io(ErrorInfo{.operation = open_operation,
                               .message = lost ? "this is a link that leads to no file" : "the file cannot be examined",
                               .resource = path.string(),
                               .hint = lost ? "copy the file that it points to, or remove the link" : ""},
                     error.value());
}

std::optional<Json> read_json_object(fs::path const& path, codec::JsonLimits const& limits,
                                     codec::RepeatedKey repeated_key) {
  std::error_code error;
  // Only a name that does not exist means that there is no such file: a link to nothing is damage.
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return std::nullopt;
  if (!fs::exists(path, error)) refuse_unreachable(path);
  auto const file = std::make_shared<FilePool>()->open(path);
  ErrorInfo about{.operation = open_operation,
                  .resource = path.string(),
                  .hint = "correct the file, copy it again, or move it away",
                  .section = "json"};
  if (file->size() > limits.bytes) {
    about.message = "the file is too large for the description of a model";
    about.expected = "at most " + std::to_string(limits.bytes) + " bytes";
    about.got = std::to_string(file->size());
    throw FormatError(std::move(about));
  }
  std::string text(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  std::string_view json(text);
  if (json.starts_with("\xef\xbb\xbf")) json.remove_prefix(3);  // byte order mark of some editors
  auto value = codec::parse_python_json(json, {.limits = limits, .repeated_key = repeated_key, .about = about});
  if (!value.is_object()) {
    about.message = "the top level is not a JSON object";
    throw FormatError(std::move(about));
  }
  return value;
}

}  // namespace crossrank::checkpoint
