#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lib/platform/fd.hpp"

/// A control segment that has a name. Where `CROSSRANK_FLIGHT_DIR` names a directory, the control segment of a job is a
/// file there in place of memory without a name, so that what the ranks did last outlives them all. The last rank that
/// leaves in order removes it, unless something has failed.
namespace crossrank::node {

/// Makes the file, empty, of `bytes` virtual size, for this user only, and holds a shared lock on it: every rank that
/// is given the descriptor holds it too, as long as it lives. `IoError` when the directory refuses it.
[[nodiscard]] platform::Fd make_flight_file(std::filesystem::path const& path, std::size_t bytes);

/// "<directory>/crossrank.<job>.<nonce>.flight"; characters that do not belong into names become '_'.
[[nodiscard]] std::filesystem::path flight_file_path(std::filesystem::path const& directory, std::string_view job,
                                                     std::array<std::uint64_t, 2> const& nonce);

[[nodiscard]] bool is_flight_file_name(std::string_view name) noexcept;
/// Whether an open file of such a name is ours: a control segment, or one whose job died before it filled the header.
[[nodiscard]] bool holds_flight_record(platform::Fd const& fd) noexcept;

/// Removes `path` if it still is the file behind `fd`.
void remove_flight_file(char const* path, platform::Fd const& fd) noexcept;

}  // namespace crossrank::node
