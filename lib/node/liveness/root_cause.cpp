#include "lib/node/liveness/root_cause.hpp"

#include <algorithm>
#include <cstddef>

namespace crossrank::node {

std::string RootCause::sentence() const { return "rank " + std::to_string(global_rank) + " of the job " + text; }

std::optional<RootCause> read_cause(RootCauseRecord const& cause) {
  if (cause.state.load(std::memory_order_acquire) != RootCauseRecord::set) return std::nullopt;
  // A peer wrote the length, so it is not trusted beyond the field.
  auto const bytes = std::min<std::size_t>(cause.text_bytes, sizeof cause.text);
  return RootCause{static_cast<int>(cause.global_rank), std::string(cause.text, bytes),
                   static_cast<Verdict>(cause.verdict)};
}

void set_cause(RootCauseRecord& cause, RootCause const& what) noexcept {
  auto expected = RootCauseRecord::unset;
  if (!cause.state.compare_exchange_strong(expected, RootCauseRecord::being_set, std::memory_order_acq_rel)) return;
  cause.global_rank = static_cast<std::uint32_t>(what.global_rank);
  cause.text_bytes = static_cast<std::uint16_t>(what.text.copy(cause.text, sizeof cause.text));
  cause.verdict = static_cast<std::uint16_t>(what.verdict);
  cause.state.store(RootCauseRecord::set, std::memory_order_release);
}

void clear_cause(RootCauseRecord& cause) noexcept {
  auto expected = RootCauseRecord::set;
  if (cause.state.load(std::memory_order_relaxed) == RootCauseRecord::set)
    cause.state.compare_exchange_strong(expected, RootCauseRecord::unset, std::memory_order_acq_rel);
}

}  // namespace crossrank::node
