#include "workspace/checkpoint/parts/plan_path.hpp"

#include <string>
#include <string_view>
#include <system_error>

#include <crossrank/error.hpp>

#include "lib/codec/json/json_text.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::checkpoint {

namespace fs = std::filesystem;

fs::path absolute_path(fs::path const& path) {
  if (path.empty()) return path;
  fs::path result;
  for (auto const& part : fs::absolute(path)) {
    if (part.empty() || part == ".") continue;
    std::error_code unknown;
    // Another host may lack a directory that only leads to the next one.
    auto const parent = part == ".." ? fs::canonical(result, unknown).parent_path() : fs::path();
    result = parent.empty() || unknown ? result / part : parent;
  }
  return result;
}

void require_protected_plan(fs::path const& file) {
  std::error_code ignored;
  auto const real = fs::canonical(file, ignored);
  auto const permissions = fs::status(real.parent_path(), ignored).permissions();
  if (ignored || (permissions & fs::perms::others_write) == fs::perms::none ||
      (permissions & fs::perms::sticky_bit) != fs::perms::none)
    return;
  throw UsageError({.operation = parts_operation,
                    .message = "other users can replace the plan",
                    .expected = "a directory that others cannot write to",
                    .got = "one that all users can write to",
                    .resource = real.parent_path().string(),
                    .hint = "chmod o-w, or use another directory"});
}

void require_plan_path(fs::path const& file, PlanFile const& plan) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored) || absolute_path(file) == plan.out) {
    throw UsageError({.operation = parts_operation,
                      .message = "the plan needs the name of a file, but this is a directory",
                      .resource = file.string(),
                      .hint = "add the name of a file, such as plan.json"});
  }
  std::error_code unknown;
  auto const kind = fs::symlink_status(file, unknown).type();
  if (kind == fs::file_type::none)
    platform::throw_io(std::string(parts_operation) + ": look at", file.string(), unknown.value());
  if (kind != fs::file_type::not_found && kind != fs::file_type::regular) {  // saving would replace it
    throw UsageError({.operation = parts_operation,
                      .message = "the plan needs the name of a file, but this is a link, a pipe or a device",
                      .resource = file.string(),
                      .hint = "give the name of a new file or of an earlier plan"});
  }
  // The folder of the plan records the path.
  if (codec::find_bad_utf8(absolute_path(file).string()) != std::string_view::npos) {
    throw UsageError({.operation = parts_operation,
                      .message = "the path of the plan is not UTF-8",
                      .resource = file.string(),
                      .hint = "choose another name or directory"});
  }
  if (fs::equivalent(absolute_path(file).parent_path(), plan.inputs.shards, ignored)) {
    throw UsageError({.operation = parts_operation,
                      .message = "the plan would be a file among the shards, which the merge copies to the output",
                      .resource = file.string(),
                      .hint = "save the plan in a directory of its own"});
  }
}

}  // namespace crossrank::checkpoint
