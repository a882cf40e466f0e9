#include "lib/platform/cgroup.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "lib/platform/files/fd.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::platform {
namespace {

/// Returns the contents of a kernel file; nothing when it cannot be read.
std::optional<std::string> contents_of(std::string const& path) {
  Fd const fd(system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC, 0));
  if (fd.get() < 0) return std::nullopt;
  std::string text;
  std::array<char, 4096> piece{};
  for (;;) {
    auto const got = system().read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(piece.data(), as_size(got));
  }
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    auto const end = std::min(text.find(separator), text.size());
    if (end != 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool lists(std::string_view names, std::string_view name) {
  auto const parts = split(names, ',');
  return std::find(parts.begin(), parts.end(), name) != parts.end();
}

/// Returns the number; nothing for "max", -1, and text that is not a number.
std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t value = 0;
  auto const [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

std::optional<std::uint64_t> number_at(std::string const& path) {
  auto const text = contents_of(path);
  return text ? number_in(*text) : std::nullopt;
}

/// Decodes the octal escapes of mountinfo: blanks, tabs, line ends and backslashes.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool const escape = text[i] == '\\' && i + 3 < text.size();
    int value = 0;
    auto const* const digits = text.data() + i + 1;
    if (escape && std::from_chars(digits, digits + 3, value, 8).ptr == digits + 3) {
      out += static_cast<char>(value);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

/// A mounted tree of control groups: `root` of the tree appears at `point`.
struct Mount {
  std::string root{};
  std::string point{};
};

/// Returns the mounts of the tree with `controller`. An empty controller means version 2, whose one tree has them all.
std::vector<Mount> mounts_of(std::string_view mountinfo, std::string_view controller) {
  std::vector<Mount> mounts;
  for (auto const line : split(mountinfo, '\n')) {
    // id, parent, device, root, point, options, optional fields, "-", type, source, options of the tree
    auto const fields = split(line, ' ');
    auto const dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.end() - dash < 4 || dash - fields.begin() < 6) continue;
    bool const wanted = controller.empty() ? dash[1] == "cgroup2" : dash[1] == "cgroup" && lists(dash[3], controller);
    if (wanted) mounts.push_back({unescaped(fields[3]), unescaped(fields[4])});
  }
  return mounts;
}

/// Returns this process's group in the tree of a controller, or of version 2; nothing when it is in no group.
std::optional<std::string> group_in(std::string_view own_groups, std::string_view controller) {
  for (auto const line : split(own_groups, '\n')) {
    // "number:controllers:path"; the path may contain colons
    auto const first = line.find(':');
    auto const second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    auto const names = line.substr(first + 1, second - first - 1);
    bool const wanted = controller.empty() ? names.empty() : lists(names, controller);
    if (wanted) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

/// Returns the folders of the group and of all groups above it that the mount shows, the group's own first.
std::vector<std::string> folders_of(std::string const& group, Mount const& mount) {
  auto const root = mount.root == "/" ? std::string() : mount.root;
  bool const inside = group.starts_with(root) && (group.size() == root.size() || group[root.size()] == '/');
  // If the mount shows another part of the tree, only its top is available. Names with ".." are of groups outside the
  // namespace.
  auto below = inside && group.find("/..") == std::string::npos ? group.substr(root.size()) : std::string();
  while (below.ends_with('/')) below.pop_back();
  std::vector<std::string> folders;
  for (; !below.empty(); below.resize(below.rfind('/'))) folders.push_back(mount.point + below);
  folders.push_back(mount.point);
  return folders;
}

/// Calls `visit` with each folder that may limit this process by `controller`, and with whether it is of version 2.
template <class Visit>
void for_each_group(std::string_view controller, Visit visit) {
  auto const own_groups = contents_of("/proc/self/cgroup");
  auto const mountinfo = contents_of("/proc/self/mountinfo");
  if (!own_groups || !mountinfo) return;
  for (bool const unified : {true, false}) {
    auto const name = unified ? std::string_view() : controller;
    auto const group = group_in(*own_groups, name);
    if (!group) continue;
    for (auto const& mount : mounts_of(*mountinfo, name)) {
      for (auto const& folder : folders_of(*group, mount)) visit(folder, unified);
    }
  }
}

template <class Value>
void lower_to(std::optional<Value>& least, Value value) {
  least = least ? std::min(*least, value) : value;
}

std::optional<std::uint64_t> memory_limit() {
  std::optional<std::uint64_t> least;
  for_each_group("memory", [&](std::string const& folder, bool unified) {
    if (auto const limit = number_at(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes")))
      lower_to(least, *limit);
  });
  return least;
}

/// Returns the number after `name` in lines such as "name 12" and "name: 12 kB".
std::optional<std::uint64_t> number_after(std::string_view name, std::string const& path) {
  auto const text = contents_of(path).value_or("");
  for (auto const line : split(text, '\n')) {
    auto const words = split(line, ' ');
    if (words.size() >= 2 && words[0] == name) return number_in(words[1]);
  }
  return std::nullopt;
}

/// Returns the memory that the control groups leave; nothing without a limit.
std::optional<std::uint64_t> memory_left_by_groups() {
  std::optional<std::uint64_t> least;
  for_each_group("memory", [&](std::string const& folder, bool unified) {
    auto const limit = number_at(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
    auto const used = number_at(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used) return;
    auto const cached =
        number_after(unified ? "inactive_file" : "total_inactive_file", folder + "/memory.stat").value_or(0);
    auto const taken = *used - std::min(*used, cached);
    lower_to(least, *limit - std::min(*limit, taken));
  });
  return least;
}

std::optional<int> cpu_limit() {
  std::optional<int> least;
  for_each_group("cpu", [&](std::string const& folder, bool unified) {
    std::optional<std::uint64_t> quota;
    std::optional<std::uint64_t> period;
    if (unified) {  // "max 100000", or the quota in place of "max"
      auto const text = contents_of(folder + "/cpu.max").value_or("");
      auto const words = split(text, ' ');
      if (words.size() < 2) return;
      quota = number_in(words[0]);
      period = number_in(words[1]);
    } else {
      quota = number_at(folder + "/cpu.cfs_quota_us");
      period = number_at(folder + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *period == 0) return;
    constexpr std::uint64_t max = std::numeric_limits<int>::max();
    lower_to(least, static_cast<int>(std::clamp<std::uint64_t>(*quota / *period, 1, max)));
  });
  return least;
}

}  // namespace

CgroupLimits cgroup_limits() noexcept {
  try {
    return {.memory_bytes = memory_limit(), .cpus = cpu_limit()};
  } catch (std::exception const&) {  // out of memory for a few lines of text
    return {};
  }
}

int usable_cpus() noexcept {
  static int const cpus = [] {
    auto const processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return std::min(processors, cgroup_limits().cpus.value_or(processors));
  }();
  return cpus;
}

std::uint64_t usable_memory() noexcept {
  auto const pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  auto const bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return std::min(bytes, cgroup_limits().memory_bytes.value_or(bytes));
}

std::uint64_t free_memory() noexcept {
  auto const usable = usable_memory();
  try {
    auto const kilobytes = number_after("MemAvailable:", "/proc/meminfo");
    auto const of_machine = kilobytes ? *kilobytes * 1024 : usable;
    return std::min({usable, of_machine, memory_left_by_groups().value_or(usable)});
  } catch (std::exception const&) {  // out of memory for a few lines of text
    return usable;
  }
}

}  // namespace crossrank::platform
