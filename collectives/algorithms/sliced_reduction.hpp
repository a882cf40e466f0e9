#pragma once
#include <memory>
#include <vector>

#include "collectives/algorithms/execution.hpp"
#include "collectives/algorithms/reduce.hpp"

namespace crossrank::algorithms {

/// A long reduction over the transport's all_to_allv. Ranks exchange slices and each reduces its own in rank order.
/// all_reduce and reduce then gather the results.
class SlicedReduction final : public Algorithm {
 public:
  /// Returns null if the transport has no all_to_allv, or if the values are too short to gain from it.
  [[nodiscard]] static std::unique_ptr<Algorithm> make(Call const& call, spi::Transport& transport);
  [[nodiscard]] std::optional<spi::RequestId> next(spi::Transport& transport) override;

 private:
  SlicedReduction(Call const& call, spi::Transport const& transport);
  void reduce_slice();
  [[nodiscard]] std::optional<spi::RequestId> post_results(spi::Transport& transport);

  Call const& call_;
  Reducer reduce_;
  std::size_t rank_;
  std::vector<std::size_t> slices_;    ///< bytes of each rank's slice
  std::vector<std::size_t> received_;  ///< what each rank gives this one: its own slice's size, ranks times
  std::vector<std::byte> exchanged_;
  std::vector<std::byte> result_;  ///< of a `reduce`, where it has no place in the caller's tensor
  std::optional<spi::RequestId> first_;
  enum class Step { exchange, results, done } step_ = Step::exchange;
};

/// Divides `bytes` among `ranks` as evenly as whole elements allow.
[[nodiscard]] std::vector<std::size_t> even_slices(std::size_t bytes, std::size_t element_bytes, int ranks);

}  // namespace crossrank::algorithms
