#include "lib/node/liveness/root_cause.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace crossrank::node {

std::string RootCause::sentence() const { return "rank " + std::to_string(global_rank) + " of the job " + text; }

bool has_cause(RootCauseRecord const& cause) noexcept {
  return RootCauseRecord::kind(cause.state.load(std::memory_order_acquire)) == RootCauseRecord::set;
}

std::optional<RootCause> read_cause(RootCauseRecord const& cause) {
  auto const state = cause.state.load(std::memory_order_acquire);
  if (RootCauseRecord::kind(state) != RootCauseRecord::set) return std::nullopt;
  std::array<std::uint32_t, RootCauseRecord::word_count> words{};
  std::ranges::transform(cause.words, words.begin(),
                         [](auto const& word) { return word.load(std::memory_order_acquire); });
  if (cause.state.load(std::memory_order_relaxed) != state) return std::nullopt;
  auto const fields = std::bit_cast<RootCauseRecord::Fields>(words);
  // A peer wrote the length, so it is not trusted beyond the field.
  auto const bytes = std::min<std::size_t>(fields.text_bytes, sizeof fields.text);
  return RootCause{static_cast<int>(fields.global_rank), std::string(fields.text, bytes),
                   static_cast<Verdict>(fields.verdict)};
}

void set_cause(RootCauseRecord& cause, RootCause const& what) noexcept {
  auto before = cause.state.load(std::memory_order_relaxed);
  if (RootCauseRecord::kind(before) != RootCauseRecord::unset) return;
  auto const version = before + 4;
  if (!cause.state.compare_exchange_strong(before, version + RootCauseRecord::being_set, std::memory_order_acq_rel))
    return;
  RootCauseRecord::Fields fields{.global_rank = static_cast<std::uint32_t>(what.global_rank),
                                 .verdict = static_cast<std::uint16_t>(what.verdict)};
  fields.text_bytes = static_cast<std::uint16_t>(what.text.copy(fields.text, sizeof fields.text));
  auto const words = std::bit_cast<std::array<std::uint32_t, RootCauseRecord::word_count>>(fields);
  for (std::size_t i = 0; i < words.size(); ++i) cause.words[i].store(words[i], std::memory_order_release);
  cause.state.store(version + RootCauseRecord::set, std::memory_order_release);
}

void clear_cause(RootCauseRecord& cause) noexcept {
  auto state = cause.state.load(std::memory_order_relaxed);
  if (RootCauseRecord::kind(state) == RootCauseRecord::set)
    cause.state.compare_exchange_strong(state, state - RootCauseRecord::set, std::memory_order_acq_rel);
}

}  // namespace crossrank::node
