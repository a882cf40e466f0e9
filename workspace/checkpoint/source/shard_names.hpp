#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::checkpoint {

/// The numbers that a file or directory name gives.
struct ShardNumbers {
  std::optional<int> rank{};  ///< of the whole grid
  std::optional<int> tp{};
  std::optional<int> pp{};
  std::optional<int> ep{};
  std::optional<int> part{};   ///< x of "x-of-y", from 1
  std::optional<int> parts{};  ///< y
  // How many there are, where the name says so: "rank_0_of_4", "world_size_4_rank_0", "tp_1_of_2".
  std::optional<int> ranks{};
  std::optional<int> tp_size{};
  std::optional<int> pp_size{};
  std::optional<int> ep_size{};
  /// Whether a rank or a place is among them.
  [[nodiscard]] bool has_place() const noexcept { return rank || tp || pp || ep; }
  bool operator==(ShardNumbers const&) const = default;
};

/// Reads the spellings in use: "rank3", "rank_3", "tp1_pp0", "tp_rank_01_pp_rank_000", "mp_rank_01_002",
/// "model-00001-of-00004", "consolidated.01", "rank_0_of_4". Words end at anything that is no letter, so that "step12"
/// says nothing.
[[nodiscard]] ShardNumbers parse_shard_name(std::string_view name);

/// `name` with other digits, so that it reads as `wanted`: what the file of another rank is called. Empty when no
/// digits of it do.
[[nodiscard]] std::string sibling_name(std::string_view name, ShardNumbers const& wanted);

/// A pattern for names that differ in one number only, with {rank} in its place; empty when they differ otherwise.
[[nodiscard]] std::string common_pattern(std::vector<std::string> const& names);

/// Matches a name against text with {rank}, {tp}, {pp}, {ep} in place of numbers and * in place of anything; nothing
/// when it does not fit. `UsageError` for other braces.
[[nodiscard]] std::optional<ShardNumbers> match_shard_pattern(std::string_view pattern, std::string_view name);

/// Order in which people list names: digits count as numbers ("layers.2" before "layers.10").
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b) noexcept;

}  // namespace crossrank::checkpoint
