#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

namespace crossrank {

/// Returns what a rank throws for an exception that `failed_ranks` threw and that the first of them has encoded.
[[nodiscard]] RemoteError peer_exception(Collective const& group, char const* operation, std::vector<int> failed_ranks,
                                         std::span<std::byte const> encoded);

}  // namespace crossrank
