#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::checkpoint {

/// The numbers in a file or directory name.
struct ShardNumbers {
  std::optional<int> rank{};  ///< rank in the whole grid
  std::optional<int> tp{};
  std::optional<int> pp{};
  std::optional<int> ep{};
  std::optional<int> part{};   ///< x of "x-of-y", from 1
  std::optional<int> parts{};  ///< y
  // Sizes, if the name has them: "rank_0_of_4", "world_size_4_rank_0", "tp_1_of_2".
  std::optional<int> ranks{};
  std::optional<int> tp_size{};
  std::optional<int> pp_size{};
  std::optional<int> ep_size{};
  /// Returns whether the name gives a rank or a place in the grid.
  [[nodiscard]] bool has_place() const noexcept { return rank || tp || pp || ep; }
  bool operator==(ShardNumbers const&) const = default;
};

/// The name of an input and the numbers in it.
struct NamedShard {
  std::string name{};  ///< for messages
  ShardNumbers numbers{};
};

/// Returns the numbers in a name.
///
/// Knows the usual spellings: "rank3", "rank_3", "tp1_pp0", "tp_rank_01_pp_rank_000", "mp_rank_01_002",
/// "model-00001-of-00004", "consolidated.01", "rank_0_of_4". A word is a run of letters, so "step12" gives no rank.
[[nodiscard]] ShardNumbers parse_shard_name(std::string_view name);

/// Returns whether a name is only the place of a rank, such as "mp_rank_01" or "tp1_pp0". "llama-tp2" is not.
[[nodiscard]] bool is_only_a_place(std::string_view name);

/// Returns the file name of another rank: `name` with its digits replaced so that it parses as `wanted`. Returns an
/// empty string if that is impossible.
[[nodiscard]] std::string sibling_name(std::string_view name, ShardNumbers const& wanted);

/// Returns a pattern with {rank} in place of the one number in which the names differ, or an empty string if they
/// differ otherwise.
[[nodiscard]] std::string common_pattern(std::vector<std::string> const& names);

/// Matches a name against a pattern with {rank}, {tp}, {pp}, {ep} in place of numbers and * in place of any text.
///
/// Returns nothing if the name does not match. Throws `UsageError` for other placeholders.
[[nodiscard]] std::optional<ShardNumbers> match_shard_pattern(std::string_view pattern, std::string_view name);

/// Orders names by treating runs of digits as numbers: "layers.2" comes before "layers.10".
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b) noexcept;

}  // namespace crossrank::checkpoint
