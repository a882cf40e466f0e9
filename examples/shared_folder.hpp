#pragma once
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <crossrank/crossrank.hpp>

/// Returns rank 0's text on every rank. Collective.
inline std::string from_rank_0(xr::Collective const& world, std::string const& text) {
  auto const bytes = world.all_gatherv(std::as_bytes(std::span(text.data(), world.is_master() ? text.size() : 0)))[0];
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// A folder that all ranks use: the wanted one, created if needed, or a temporary one, which rank 0 removes in the
/// destructor.
class SharedFolder {
 public:
  /// Collective.
  explicit SharedFolder(xr::Collective const& world, std::filesystem::path const& wanted = {}) {
    if (world.is_master()) path_ = make(wanted);
    is_ours_ = world.is_master() && wanted.empty();
    path_ = from_rank_0(world, path_.string());
  }
  ~SharedFolder() {
    std::error_code nothing_to_do;
    if (is_ours_) std::filesystem::remove_all(path_, nothing_to_do);
  }
  SharedFolder(SharedFolder const&) = delete;
  SharedFolder& operator=(SharedFolder const&) = delete;

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }

 private:
  static std::filesystem::path make(std::filesystem::path const& wanted) {
    if (!wanted.empty()) {
      std::filesystem::create_directories(wanted);
      return std::filesystem::canonical(wanted);
    }
    auto name = (std::filesystem::temp_directory_path() / "crossrank_example.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    return name;
  }

  std::filesystem::path path_{};
  bool is_ours_ = false;
};
