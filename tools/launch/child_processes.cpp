#include "tools/launch/child_processes.hpp"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include <unistd.h>

namespace crossrank::tools {
namespace {

// Parses the fields after the command name: the state, then the parent. The name is in parentheses and may contain
// anything.
bool is_living_child(std::filesystem::path const& process, pid_t parent) {
  auto const text = process_text(process / "stat");
  auto const name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= text.size()) return false;
  char const state = text[name_end + 2];
  pid_t found = -1;
  std::from_chars(text.data() + name_end + 4, text.data() + text.size(), found);
  return found == parent && state != 'Z' && state != 'X';
}

}  // namespace

std::string process_text(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();  // rdbuf() does not throw when the read fails, unlike iterators
  return out.str();
}

std::vector<pid_t> child_processes() {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (std::filesystem::directory_iterator at("/proc", ignored), end; at != end; at.increment(ignored)) {
    auto const name = at->path().filename().string();
    pid_t pid = -1;
    auto const parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() && is_living_child(at->path(), ::getpid()))
      found.push_back(pid);
  }
  return found;
}

}  // namespace crossrank::tools
