#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "lib/platform/fd.hpp"

namespace crossrank::node {

/// Mapped memory that may be shared with other processes; unmapped with the last owner.
class Mapping {
 public:
  enum class Access { read_only, read_write };

  /// Maps the first `bytes` of `fd`; the descriptor may be closed afterwards. Left out of core dumps: a dump would
  /// write, and so allocate, the whole virtual size. `IoError` when there is no address space.
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

/// Makes anonymous shared memory of `bytes` virtual size: a sealed memfd, or, where that is refused, a named segment
/// that is unlinked before anything else happens. Mode owner only. No page is taken yet.
[[nodiscard]] platform::Fd make_shared_memory(std::string const& what, std::size_t bytes);

/// A second descriptor for the same memory that cannot be mapped writable; without `/proc` the same kind as `fd`.
[[nodiscard]] platform::Fd reopen_read_only(platform::Fd const& fd);

/// Takes the pages of a range, so that lack of memory shows here and not as SIGBUS. 0, or the errno.
[[nodiscard]] int reserve_pages(platform::Fd const& fd, std::size_t offset, std::size_t bytes);

/// Gives the pages of a range back. Errors are ignored: the pages then stay.
void release_pages(platform::Fd const& fd, std::size_t offset, std::size_t bytes) noexcept;

/// Refuses memory that a peer passed unless it is a regular file of this user, owner only, exactly `bytes` long.
void check_shared_memory(platform::Fd const& fd, std::size_t bytes, std::string const& what);

}  // namespace crossrank::node
