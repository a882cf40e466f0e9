#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"

namespace crossrank::checkpoint {

/// The section of an error about a set of files. It says which property does not fit. Other sections name a place in a
/// damaged file.
enum class ErrorSection : std::uint8_t {
  missing_ranks,  ///< shards that are pieces of a larger number of ranks; the failed ranks are the missing ranks
  lengths,        ///< lengths of shards that do not add up; missing ranks are one cause
  keys,           ///< a model that is ambiguous
  index,          ///< an index that does not fit its files
  coverage,       ///< tensors that are missing, or that occur twice
  files,          ///< files that are missing, or that do not belong together
  scales,         ///< scales that do not fit their weights
  shape,          ///< shapes that contradict a rule or each other
  shards,         ///< shards that contradict each other
  rules,          ///< rules that are malformed or do not fit
  config,         ///< a model config that contradicts the shards
  chunks,         ///< chunks that do not cover a tensor
  pattern,        ///< malformed patterns of names
  name,           ///< names that no rule can translate
  dtype,          ///< dtypes that do not fit
  group_ids,      ///< group numbers of quantized weights (`g_idx`)
};

/// The sections as `ErrorInfo::section` has them, in the order of the enumerators.
inline constexpr std::array<char const*, 16> section_texts{
    "ranks",  "lengths", "keys",   "index",  "coverage", "files", "scales", "shape",
    "shards", "rules",   "config", "chunks", "pattern",  "name",  "dtype",  "group ids"};

/// Returns the text for `ErrorInfo::section`.
[[nodiscard]] constexpr char const* to_string(ErrorSection section) noexcept {
  return section_texts[as_index(section)];
}

/// Returns the section of the error; nothing when it names a place in a file, or none.
[[nodiscard]] inline std::optional<ErrorSection> section_of(Error const& error) noexcept {
  for (std::size_t i = 0; i < section_texts.size(); ++i) {
    if (error.info().section == section_texts[i]) return static_cast<ErrorSection>(i);
  }
  return std::nullopt;
}

}  // namespace crossrank::checkpoint
