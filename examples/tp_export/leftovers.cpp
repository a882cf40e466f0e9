#include "leftovers.hpp"

#include <chrono>
#include <thread>

#include <unistd.h>

namespace tp_export {
namespace {

namespace fs = std::filesystem;

void add_shared_memory(std::set<fs::path>& to) {
  // The prefix of every name that the library creates in shared memory, on machines where it needs names.
  auto const prefix = "crossrank." + std::to_string(::getuid()) + ".";
  std::error_code no_such_folder;
  for (auto const& entry : fs::directory_iterator("/dev/shm", no_such_folder)) {
    if (entry.path().filename().string().starts_with(prefix)) to.insert(entry.path());
  }
}

void add_folder(std::set<fs::path>& to, fs::path const& folder) {
  if (!fs::exists(folder)) return;
  for (auto const& entry : fs::recursive_directory_iterator(folder)) to.insert(entry.path());
}

}  // namespace

Leftovers::Leftovers() { add_shared_memory(before_); }

void Leftovers::watch(fs::path const& folder) {
  folders_.insert(folder);
  before_.insert(folder);
  add_folder(before_, folder);
}

std::vector<std::string> Leftovers::find_now(std::set<fs::path> const& expected) const {
  std::set<fs::path> now;
  add_shared_memory(now);
  for (auto const& folder : folders_) add_folder(now, folder);
  std::vector<std::string> left;
  for (auto const& path : now) {
    if (!before_.contains(path) && !expected.contains(path)) left.push_back(path.string());
  }
  return left;
}

std::vector<std::string> Leftovers::find(std::set<fs::path> const& expected) const {
  // Another job of this user may use shared memory at the moment, so only names that stay count.
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (true) {
    auto left = find_now(expected);
    if (left.empty() || std::chrono::steady_clock::now() >= deadline) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace tp_export
