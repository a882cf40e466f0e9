#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include <crossrank/collective.hpp>

#include "workspace/checkpoint/memory/weight_cells.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Exchanges the values that rules have asked for, and those that rules will probably ask for next. Collective.
///
/// Sends whole tensors whose names end in the same way, such as ".g_idx". If these have more than 64 MiB, sends the
/// asked range of the tensors with the same name in other layers, with samples from begin, middle and end. Throws
/// `UsageError` if the asked range of one name has more than 64 MiB.
void exchange_values(Collective const& world, WeightCells& cells, NeedsValues const& needed,
                     std::string const& operation);

/// Returns the result of `choose`, which chooses rules. All ranks choose the same ones, because they see the same
/// descriptions and the same values. If rules depend on values, the ranks exchange these and choose again. Collective.
template <class Choose>
auto with_values(Collective const& world, WeightCells& cells, std::string const& operation, Choose const& choose) {
  for (;;) {
    std::optional<NeedsValues> needed;
    decltype(choose()) chosen;
    agree(world, operation, [&] {
      try {
        chosen = choose();
      } catch (NeedsValues const& values) {
        needed = values;
      }
    });
    if (!needed) return chosen;
    exchange_values(world, cells, *needed, operation);
  }
}

}  // namespace crossrank::checkpoint
