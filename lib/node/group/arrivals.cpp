#include "lib/node/group/arrivals.hpp"

#include <algorithm>
#include <cstddef>

#include "lib/node/memory/call_arguments.hpp"

namespace crossrank::node {

std::string Arrivals::call_in_words(int member, std::uint64_t round) const {
  auto const* const op_kind = spi::to_string(static_cast<spi::OpKind>(call_of(member, round).op_kind));
  auto const& noted = blocks_[member].noted[round & 1];
  if (noted.round.load(std::memory_order_acquire) != round) return op_kind;
  // A peer wrote the length, so it is not trusted beyond the field.
  return describe_call(op_kind, {noted.arguments, std::min<std::size_t>(noted.bytes, sizeof noted.arguments)});
}

bool Arrivals::has_error(int member, std::uint64_t round) const noexcept {
  auto const failed_in = [&](std::uint64_t r) {
    auto const& line = line_of(blocks_[member], r);
    return line.round.load(std::memory_order_relaxed) == r && (line.flags & arrival_failed) != 0;
  };
  if (failed_in(round)) return true;
  // The close of a range repeats the errors of its opening, for members that did not wait for that.
  return round > 1 && call_of(member, round).op_kind == static_cast<int>(spi::OpKind::range_close) &&
         failed_in(round - 1);
}

Verdict Arrivals::evaluate(std::uint64_t round) const noexcept {
  bool failed = false;
  auto const first = call_of(0, round);
  for (int member = 0; member < size_; ++member) {
    if (call_of(member, round) != first) return Verdict::mismatch;
    failed = failed || has_error(member, round);
  }
  return failed ? Verdict::pass_failed : Verdict::pass;
}

}  // namespace crossrank::node
