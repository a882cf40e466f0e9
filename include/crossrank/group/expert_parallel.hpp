#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

class GroupCoordinator;

/// Options of `GroupCoordinator::dispatch`.
struct DispatchOptions {
  bool is_sequence_parallel = false;    ///< true: this group; false: `data_parallel`, or no exchange
  std::vector<std::int64_t> sizes{};    ///< rows of each rank of that group; empty: the ranks exchange them
  std::vector<Tensor> extra_tensors{};  ///< sent with the rest; have as many rows
};

/// Says how `GroupCoordinator::combine` returns dispatched tokens to their ranks.
class CROSSRANK_EXPORT ExpertRoute {
 public:
  /// Makes the route of tokens that stayed local.
  ExpertRoute() = default;
  /// Returns the rows of each rank, in rank order; empty when the tokens stayed local.
  [[nodiscard]] std::vector<std::int64_t> const& sizes() const noexcept { return sizes_; }

 private:
  friend class GroupCoordinator;
  std::vector<std::int64_t> sizes_{};
  std::optional<Collective> group_{};
};

/// Result of `GroupCoordinator::dispatch`: the tokens of all ranks, joined along their first dimension.
struct Dispatched {
  Tensor hidden_states{};               ///< one row per token
  Tensor router_logits{};               ///< as many rows
  std::vector<Tensor> extra_tensors{};  ///< as many rows each
  ExpertRoute route{};                  ///< for `combine`
};

/// Selects the tokens of one step.
struct ExpertChunk {
  int sequence_parallel = 1;               ///< ranks that share the tokens of one data-parallel rank
  std::int64_t index = 0;                  ///< number of the chunk
  std::optional<std::int64_t> max_rows{};  ///< most rows of a chunk; empty: all at once
};

/// Returns the rows of each rank for `dispatch`, from the tokens of each data-parallel rank. Local. A rank without rows
/// left in a chunk takes part with one row, so that all ranks make the same calls.
[[nodiscard]] CROSSRANK_EXPORT std::vector<std::int64_t> expert_sizes(std::vector<std::int64_t> const& tokens,
                                                                      ExpertChunk const& chunk = {});

}  // namespace crossrank
