#include "tests/support/leak_check.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <unistd.h>

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;

constexpr int names_grace_factor = 24;

std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at("/dev/shm", ignored), end; at != end; at.increment(ignored)) {
    auto const name = at->path().filename().string();
    if (name.find("crossrank") != std::string::npos)
      names.insert(name);  // other programs on the host make and remove names too
  }
  return names;
}

bool is_number(std::string const& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string text_of(fs::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> processes_of(std::string_view job_id) {
  std::vector<std::string> found;
  if (job_id.empty()) return found;
  std::string const wanted = "CROSSRANK_JOB_ID=" + std::string(job_id);
  std::error_code ignored;
  for (fs::directory_iterator at("/proc", ignored), end; at != end; at.increment(ignored)) {
    auto const name = at->path().filename().string();
    if (!is_number(name) || name == std::to_string(::getpid())) continue;
    auto const environment = '\0' + text_of(at->path() / "environ");
    if (environment.find('\0' + wanted + '\0') == std::string::npos) continue;
    auto command = text_of(at->path() / "cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    found.push_back("process " + name + ": " + command);
  }
  return found;
}

std::vector<std::string> find_leftovers(std::set<std::string> const& before, std::string_view job_id) {
  auto found = processes_of(job_id);
  for (auto const& name : shared_memory_names()) {
    if (!before.contains(name)) found.push_back("/dev/shm/" + name);
  }
  return found;
}

}  // namespace

LeakCheck::LeakCheck() : before_(shared_memory_names()) {}

std::vector<std::string> LeakCheck::findings(std::string_view job_id, std::chrono::milliseconds grace) const {
  auto const start = std::chrono::steady_clock::now();
  // A name may belong to another job that runs now. If that job waits for a dead rank, the name stays until the job
  // ends.
  auto const grace_of = [grace](std::string const& line) {
    return line.starts_with("/dev/shm/") ? names_grace_factor * grace : grace;
  };
  auto found = find_leftovers(before_, job_id);
  while (std::any_of(found.begin(), found.end(), [&](std::string const& line) {
    return std::chrono::steady_clock::now() < start + grace_of(line);
  })) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    // Only what was there in every check was left behind. Names that other jobs made meanwhile do not count.
    auto const now = find_leftovers(before_, job_id);
    std::erase_if(found,
                  [&now](std::string const& line) { return std::find(now.begin(), now.end(), line) == now.end(); });
  }
  return found;
}

}  // namespace crossrank::test
