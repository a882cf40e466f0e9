#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/parts/parts_plan_state.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::int64_t second = 1'000'000'000;

/// File systems and network protocols may truncate a time to whole seconds.
bool is_same_time(std::int64_t a, std::int64_t b) {
  if (a % second != 0 && b % second != 0) return a == b;
  return a / second == b / second;
}

std::string stamp_text(FileStamp const& stamp, bool in_nanoseconds) {
  auto const time =
      in_nanoseconds ? std::to_string(stamp.changed) + " ns" : std::to_string(stamp.changed / second) + " s";
  return std::to_string(stamp.size) + " bytes, modified at " + time;
}

/// Two stamps of one file; without one of them the file was added or removed.
struct Change {
  std::string path{};
  FileStamp const* before = nullptr;
  FileStamp const* now = nullptr;
};

std::vector<Change> changes_between(std::vector<FileStamp> const& recorded, std::vector<FileStamp> const& found) {
  std::map<std::string_view, FileStamp const*> now;
  for (auto const& stamp : found) now.emplace(stamp.path, &stamp);
  std::vector<Change> changes;
  for (auto const& before : recorded) {
    auto const same = now.find(before.path);
    if (same == now.end()) {
      changes.push_back({before.path, &before, nullptr});
      continue;
    }
    auto const& stamp = *same->second;
    if (stamp.size != before.size || !is_same_time(stamp.changed, before.changed))
      changes.push_back({before.path, &before, &stamp});
    now.erase(same);
  }
  for (auto const& stamp : found) {
    if (now.contains(stamp.path)) changes.push_back({stamp.path, nullptr, &stamp});
  }
  return changes;
}

}  // namespace

void require_recorded(std::vector<FileStamp> const& recorded, std::vector<FileStamp> const& found,
                      std::filesystem::path const& plan_file) {
  auto const changes = changes_between(recorded, found);
  if (changes.empty()) return;
  std::vector<std::string> paths;
  for (auto const& change : changes) paths.push_back(change.path);
  auto const& [path, before, now] = changes.front();
  auto const* const what = before == nullptr ? "was added" : now == nullptr ? "was removed" : "has changed";
  bool const same_second = before != nullptr && now != nullptr && before->changed / second == now->changed / second;
  auto const text = [&](FileStamp const* stamp) {
    return stamp == nullptr ? std::string("no such file") : stamp_text(*stamp, same_second);
  };
  throw FormatError({.operation = parts_operation,
                     .message = std::string("an input ") + what + " since the plan was made: " + path,
                     .expected = text(before),
                     .got = text(now),
                     .resource = plan_file.string(),
                     .hint = "make a new plan with `force`, or restore the inputs",
                     .details = paths,
                     .section = "stamps"});
}

}  // namespace crossrank::checkpoint
