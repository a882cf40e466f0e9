#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/discovery/shard_listing.hpp"

namespace crossrank::checkpoint {

/// The files of a directory that belong to it, sorted; none that is hidden.
[[nodiscard]] std::vector<std::string> weights_of(DirectoryListing const& listing, WeightFormat family);
/// The index of it that counts when there are several; empty when there is none.
[[nodiscard]] std::string index_of(DirectoryListing const& listing, WeightFormat family);
/// Whether a file is of weights, or an index of such, in any family or in a format that is put together from both.
[[nodiscard]] bool is_weights(std::string_view name);

}  // namespace crossrank::checkpoint
