#include "lib/node/inspect/find_jobs.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/filesystem/operations.hpp>

#include "lib/core/as_size.hpp"
#include "lib/node/inspect/flight_file.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

namespace fs = boost::filesystem;
using platform::Fd;
using platform::system;

/// The fields that distinguish a control segment from an arena, and one job from another.
struct SegmentIdentity {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t ranks = 0;
  std::array<std::uint64_t, 2> nonce{};
};
static_assert(offsetof(ControlHeader, nonce) == offsetof(SegmentIdentity, nonce));

/// Maps the segment at `path` unless it is not a control segment or has been found before. Reads it with `pread`,
/// because touching a mapping would allocate pages of an arena.
std::shared_ptr<Mapping> open_segment(std::string const& path, std::vector<std::array<std::uint64_t, 2>>& seen) {
  Fd const fd(system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
  struct stat status {};
  if (!fd || system().fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  SegmentIdentity identity;
  if (system().pread(fd.get(), &identity, sizeof identity, 0) != static_cast<ssize_t>(sizeof identity) ||
      identity.magic != control_magic)
    return nullptr;
  if (std::find(seen.begin(), seen.end(), identity.nonce) != seen.end()) return nullptr;
  // Maps no more than the file has, since reading beyond would raise SIGBUS. The reader checks whether that is the
  // whole segment.
  auto memory = std::make_shared<Mapping>(fd, as_size(status.st_size), Mapping::Access::read_only, path);
  seen.push_back(identity.nonce);
  return memory;
}

/// Returns the names in a directory, as far as it can be listed.
std::vector<std::string> list(std::string const& directory, boost::system::error_code& failed) {
  std::vector<std::string> names;
  for (fs::directory_iterator entry(directory, failed), none; !failed && entry != none; entry.increment(failed))
    names.push_back(entry->path().filename().string());
  return names;
}

/// Returns whether an open file's name contains `name`. Other files of a process are ignored.
bool leads_to(std::string const& link, std::string_view name) {
  std::array<char, 4096> target{};
  auto const bytes = ::readlink(link.c_str(), target.data(), target.size());
  return bytes > 0 && std::string_view(target.data(), as_size(bytes)).find(name) != std::string_view::npos;
}

template <class Visit>
void each_file_of(int pid, std::string_view name, boost::system::error_code& failed, Visit const& visit) {
  auto const directory = "/proc/" + std::to_string(pid) + "/fd";
  for (auto const& number : list(directory, failed)) {
    auto const link = directory + "/" + number;
    if (leads_to(link, name)) visit(link);
  }
}

/// Matches "/memfd:crossrank (deleted)", a named segment or a flight record.
void find_in_process(int pid, std::vector<std::array<std::uint64_t, 2>>& seen, std::vector<FoundJob>& found,
                     boost::system::error_code& failed) {
  each_file_of(pid, "crossrank", failed, [&](std::string const& link) {
    if (auto memory = open_segment(link, seen)) found.push_back({std::move(memory), "pid " + std::to_string(pid)});
  });
}

bool is_ours(int pid) {
  struct stat status {};
  auto const path = "/proc/" + std::to_string(pid);
  return system().fstatat(AT_FDCWD, path.c_str(), &status, 0) == 0 && status.st_uid == ::geteuid();
}

template <class Visit>
void each_process(Visit const& visit) {
  boost::system::error_code failed;
  for (auto const& name : list("/proc", failed)) {
    auto const number = static_cast<int>(std::strtol(name.c_str(), nullptr, 10));
    if (number > 0 && is_ours(number)) visit(number);
  }
}

}  // namespace

std::vector<FoundJob> find_running_jobs(std::optional<int> pid) {
  std::vector<FoundJob> found;
  std::vector<std::array<std::uint64_t, 2>> seen;
  boost::system::error_code failed;
  if (pid) {
    find_in_process(*pid, seen, found, failed);
    if (failed)
      platform::throw_io("inspect", "/proc/" + std::to_string(*pid) + "/fd", failed.value(),
                         "name a running process of your own");
    return found;
  }
  each_process([&](int number) {
    boost::system::error_code gone;  // a process that has ended meanwhile
    find_in_process(number, seen, found, gone);
  });
  return found;
}

void each_open_file(std::string_view name, std::function<void(int pid, std::string const& path)> const& visit) {
  each_process([&](int number) {
    boost::system::error_code gone;  // a process that has ended meanwhile
    each_file_of(number, name, gone, [&](std::string const& link) { visit(number, link); });
  });
}

std::vector<FoundJob> find_flight_records(std::filesystem::path const& directory) {
  std::vector<FoundJob> found;
  std::vector<std::array<std::uint64_t, 2>> seen;
  boost::system::error_code failed;
  for (auto const& name : list(directory.string(), failed)) {
    if (!is_flight_file_name(name)) continue;
    auto path = (directory / name).string();
    if (auto memory = open_segment(path, seen)) found.push_back({std::move(memory), std::move(path)});
  }
  if (failed) platform::throw_io("inspect", directory.string(), failed.value(), "name the directory of the records");
  return found;
}

}  // namespace crossrank::node
