#include "workspace/checkpoint/plan/row_placement.hpp"

#include <algorithm>

namespace crossrank::checkpoint {
namespace {

/// Adds a single run. Runs of one input at equal distances are kept together.
void join_run(InputRuns const& part, std::vector<InputRuns>& out) {
  auto const& run = part.copy;
  auto* const last = out.empty() ? nullptr : &out.back().copy;
  bool const like = last != nullptr && out.back().input == part.input && out.back().add == part.add &&
                    last->from.run_bytes == run.from.run_bytes && run.from.first_byte > last->from.first_byte &&
                    run.to_first > last->to_first;
  if (like && last->from.count == 1) {
    last->from.stride_bytes = run.from.first_byte - last->from.first_byte;
    last->to_stride = run.to_first - last->to_first;
    last->from.count = 2;
  } else if (like && run.from.first_byte == last->from.start(last->from.count) &&
             run.to_first == last->to(last->from.count)) {
    ++last->from.count;
  } else {
    out.push_back(part);
  }
}

}  // namespace

void place_rows(InputRuns const& piece, RowPlacement const& rows, std::vector<InputRuns>& out) {
  for (std::uint64_t row = 0; row < piece.copy.from.count; ++row) {
    auto from = piece.copy.from.start(row);
    auto to = piece.copy.to(row);
    for (auto left = piece.copy.from.run_bytes; left > 0;) {
      auto const inside = to % rows.old_row;
      auto const count = std::min(left, rows.old_row - inside);
      InputRuns part = piece;
      part.copy = {.from = {.run_bytes = count, .first_byte = from, .stride_bytes = count},
                   .to_first = to / rows.old_row * rows.new_row + rows.shift + inside,
                   .to_stride = count};
      join_run(part, out);
      from += count;
      to += count;
      left -= count;
    }
  }
}

}  // namespace crossrank::checkpoint
