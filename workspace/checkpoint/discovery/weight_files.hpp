#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"

namespace crossrank::checkpoint {

/// Returns whether a file name is that of an adapter's weights, which PEFT saves. A model may lie beside them.
[[nodiscard]] bool is_adapter(std::string_view name);
/// Returns the weight files of one format in a directory, sorted and without hidden files. Adapters count only where
/// there is nothing else.
[[nodiscard]] std::vector<std::string> weights_of(DirectoryListing const& listing, WeightFormat family);
/// Returns the name of the index of one format: the usual name if it exists, else the first other index; empty if there
/// is none.
[[nodiscard]] std::string index_of(DirectoryListing const& listing, WeightFormat family);
/// Returns whether a file name is that of the state of an optimizer, a scheduler or the like.
[[nodiscard]] bool is_other_state(std::string_view name);
/// Returns whether a file name is that of a weight file or of an index, in any format.
[[nodiscard]] bool is_weights(std::string_view name);

}  // namespace crossrank::checkpoint
