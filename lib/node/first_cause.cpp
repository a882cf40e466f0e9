#include "lib/node/first_cause.hpp"

#include <algorithm>
#include <cstddef>

namespace crossrank::node {

std::string FirstCause::sentence() const { return "rank " + std::to_string(global_rank) + " of the job " + text; }

std::optional<FirstCause> read_cause(Cause const& cause) {
  if (cause.state.load(std::memory_order_acquire) != Cause::set) return std::nullopt;
  // A peer wrote the length: it is not believed beyond the field.
  auto const bytes = std::min<std::size_t>(cause.text_bytes, sizeof cause.text);
  return FirstCause{static_cast<int>(cause.global_rank), std::string(cause.text, bytes)};
}

void set_cause(Cause& cause, FirstCause const& what) noexcept {
  auto expected = Cause::unset;
  if (!cause.state.compare_exchange_strong(expected, Cause::being_set, std::memory_order_acq_rel)) return;
  cause.global_rank = static_cast<std::uint32_t>(what.global_rank);
  cause.text_bytes = static_cast<std::uint32_t>(what.text.copy(cause.text, sizeof cause.text));
  cause.state.store(Cause::set, std::memory_order_release);
}

void clear_cause(Cause& cause) noexcept {
  auto expected = Cause::set;
  if (cause.state.load(std::memory_order_relaxed) == Cause::set)
    cause.state.compare_exchange_strong(expected, Cause::unset, std::memory_order_acq_rel);
}

}  // namespace crossrank::node
