#include <algorithm>
#include <cstdint>
#include <string>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/parts/parts_plan_state.hpp"

namespace crossrank::checkpoint {
namespace {

/// File systems and network protocols may cut a time to whole seconds.
bool is_same_time(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t second = 1'000'000'000;
  if (a % second != 0 && b % second != 0) return a == b;
  return a / second == b / second;
}

std::string stamp_text(FileStamp const& stamp) {
  return std::to_string(stamp.size) + " bytes, modified at " + std::to_string(stamp.changed / 1'000'000'000) + " s";
}

}  // namespace

void require_recorded(std::vector<FileStamp> const& recorded, std::vector<FileStamp> const& found,
                      std::filesystem::path const& plan_file) {
  std::vector<std::string> changed;
  FileStamp expected;
  FileStamp got;
  for (std::size_t i = 0; i < std::max(recorded.size(), found.size()); ++i) {
    auto const before = i < recorded.size() ? recorded[i] : FileStamp{};
    auto const now = i < found.size() ? found[i] : FileStamp{.path = before.path};
    if (before.path == now.path && before.size == now.size && is_same_time(before.changed, now.changed)) continue;
    if (changed.empty()) {
      expected = before;
      got = now;
    }
    changed.push_back(now.path);
  }
  if (changed.empty()) return;
  throw FormatError({.operation = parts_operation,
                     .message = "an input has changed since the plan was made: " + changed.front(),
                     .expected = expected.path == got.path ? stamp_text(expected) : expected.path,
                     .got = stamp_text(got),
                     .resource = plan_file.string(),
                     .hint = "make a new plan",
                     .details = changed,
                     .section = "stamps"});
}

}  // namespace crossrank::checkpoint
