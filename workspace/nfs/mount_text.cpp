#include "workspace/nfs/mount_text.hpp"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace crossrank::workspace {
namespace {

/// mountinfo writes spaces and backslashes as octal escapes.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool const escaped = text[i] == '\\' && text.size() - i > 3;
    if (!escaped) {
      out += text[i];
      continue;
    }
    out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return out;
}

bool contains(std::string const& mount_point, std::string const& path) {
  if (mount_point == "/") return path.starts_with('/');
  return path.starts_with(mount_point) && (path.size() == mount_point.size() || path[mount_point.size()] == '/');
}

}  // namespace

std::string mount_text(std::filesystem::path const& path) {
  std::error_code ignored;
  auto const real = std::filesystem::weakly_canonical(path, ignored).string();
  std::ifstream lines("/proc/self/mountinfo");
  std::string best_point;
  std::string best_text = "unknown mount";
  for (std::string line; std::getline(lines, line);) {
    // id parent major:minor root mount-point options [optional ...] - type source super-options
    std::istringstream words(line);
    std::vector<std::string> const all{std::istream_iterator<std::string>(words), {}};
    std::size_t dash = 6;
    while (dash < all.size() && all[dash] != "-") ++dash;
    if (dash + 3 >= all.size()) continue;
    auto point = unescape(all[4]);
    // of mounts with equally long paths, the last one hides the others
    if (!contains(point, real) || point.size() < best_point.size()) continue;
    best_text =
        all[dash + 1] + ' ' + unescape(all[dash + 2]) + " on " + point + " (" + all[5] + ',' + all[dash + 3] + ')';
    best_point = std::move(point);
  }
  return best_text;
}

}  // namespace crossrank::workspace
