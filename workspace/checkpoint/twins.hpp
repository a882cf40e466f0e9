#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>

#include "workspace/checkpoint/merge_model.hpp"
#include "workspace/checkpoint/team.hpp"

namespace crossrank::checkpoint {

/// One pair of copies that should be equal and are not.
struct TwinFinding {
  std::string tensor{};
  std::string text{};       ///< which files, where, and both values
  bool unreadable = false;  ///< the text says why one of them cannot be read
};

/// What becomes of copies that cannot be read.
enum class Unreadable : std::uint8_t {
  fail,  ///< their error ends the comparison
  tell,  ///< a finding, and the comparison goes on
};

/// Compares all copies of replicated tensors bit for bit, each pair on one rank. Collective; the findings of all ranks,
/// in the order of the tensors, on every rank.
[[nodiscard]] std::vector<TwinFinding> compare_twins(Collective const& world, MergeModel const& model,
                                                     TeamOptions const& options, Unreadable unreadable);

/// The same; `FormatError` that lists all findings when there are any.
void require_equal_twins(Collective const& world, MergeModel const& model, TeamOptions const& options);

}  // namespace crossrank::checkpoint
