#include "tests/support/temporary_directory.hpp"

#include <cstdlib>
#include <string>
#include <system_error>

#include <cerrno>

namespace crossrank::test {

TemporaryDirectory::TemporaryDirectory() {
  auto pattern = (std::filesystem::temp_directory_path() / "crossrank-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  // A test may have removed the write permission of a directory in here.
  for (std::filesystem::recursive_directory_iterator at(path_, ignored), end; at != end; at.increment(ignored)) {
    if (at->is_directory(ignored) && !at->is_symlink(ignored)) {
      std::filesystem::permissions(at->path(), std::filesystem::perms::owner_all, std::filesystem::perm_options::add,
                                   ignored);
    }
  }
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace crossrank::test
