#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lib/platform/files/fd.hpp"

/// A control segment with a name. If `CROSSRANK_FLIGHT_DIR` names a directory, the control segment of a job is a file
/// there instead of anonymous memory, so that the flight records survive the ranks. The last rank that leaves cleanly
/// removes it, unless something has failed.
namespace crossrank::node {

/// Makes the empty file of `bytes` virtual size with mode 0600 and takes a shared lock on it. Every rank that receives
/// the descriptor holds the lock as long as it lives. `IoError` when the directory refuses the file.
[[nodiscard]] platform::Fd make_flight_file(std::filesystem::path const& path, std::size_t bytes);

/// Returns "<directory>/crossrank.<job>.<nonce>.flight", with '_' for characters that do not belong in file names.
[[nodiscard]] std::filesystem::path flight_file_path(std::filesystem::path const& directory, std::string_view job,
                                                     std::array<std::uint64_t, 2> const& nonce);

[[nodiscard]] bool is_flight_file_name(std::string_view name) noexcept;
/// Returns whether an open file of such a name is ours: a control segment, or one whose job died before it filled the
/// header.
[[nodiscard]] bool holds_flight_record(platform::Fd const& fd) noexcept;

/// Removes `path` if it is still the file behind `fd`.
void remove_flight_file(char const* path, platform::Fd const& fd) noexcept;

}  // namespace crossrank::node
