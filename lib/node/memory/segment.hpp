#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "lib/platform/files/fd.hpp"

namespace crossrank::node {

/// Mapped memory that may be shared with other processes. The last owner unmaps it.
class Mapping {
 public:
  enum class Access { read_only, read_write };

  /// Maps the first `bytes` of `fd`; the descriptor may be closed afterwards. Core dumps exclude the mapping: a dump
  /// would write, and so allocate, the whole virtual size. `IoError` when there is no address space.
  Mapping(platform::Fd const& fd, std::size_t bytes, Access access, std::string const& what);
  ~Mapping();
  Mapping(Mapping const&) = delete;
  Mapping& operator=(Mapping const&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  struct Region;
  std::unique_ptr<Region> region_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Makes anonymous shared memory of `bytes` virtual size with mode 0600: a sealed memfd, or a named segment that is
/// unlinked at once where memfds are refused. Allocates no page.
[[nodiscard]] platform::Fd make_shared_memory(std::string const& what, std::size_t bytes);

/// Returns a second descriptor for the same memory that cannot be mapped writable. Without `/proc` it is of the same
/// kind as `fd`.
[[nodiscard]] platform::Fd reopen_read_only(platform::Fd const& fd);

/// Allocates the pages of a range, so that a lack of memory shows here and not as SIGBUS. Returns 0 or the errno.
[[nodiscard]] int reserve_pages(platform::Fd const& fd, std::size_t offset, std::size_t bytes);

/// Returns what to do when `reserve_pages` gives `error` for the control segment. `flight_file` is its path; empty if
/// it has none.
[[nodiscard]] char const* control_memory_hint(std::string const& flight_file, int error) noexcept;

/// Returns the pages of a range to the system. Ignores errors: the pages then stay.
void release_pages(platform::Fd const& fd, std::size_t offset, std::size_t bytes) noexcept;

/// Checks memory that a peer passed. Throws unless it is a regular file of this user with mode 0600 and exactly `bytes`
/// long.
void check_shared_memory(platform::Fd const& fd, std::size_t bytes, std::string const& what);

}  // namespace crossrank::node
