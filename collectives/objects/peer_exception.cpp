#include "collectives/objects/peer_exception.hpp"

#include <string>
#include <utility>

#include <crossrank/spi/transport.hpp>

#include "collectives/spi/error_in.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/text/rank_list.hpp"

namespace crossrank {

RemoteError peer_exception(Collective const& group, char const* operation, std::vector<int> failed_ranks,
                           std::span<std::byte const> encoded) {
  auto const error = decode_error(encoded);
  auto const ranks = name_ranks(failed_ranks);
  if (!failed_ranks.empty()) group.transport()->note_peer_error(failed_ranks.front());
  return RemoteError(
      error_in(*group.transport(), {.operation = operation,
                                    .message = ranks + " threw " + error.info.remote_type + ": " + error.text(),
                                    .failed_ranks = std::move(failed_ranks),
                                    .remote_type = error.info.remote_type}));
}

}  // namespace crossrank
