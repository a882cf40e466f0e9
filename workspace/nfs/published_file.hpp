#pragma once
#include <cstdint>
#include <type_traits>

#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::workspace {

/// Identifies one published file, so that a reader reads exactly that one. A barrier round carries it. The reader
/// builds the file name from these numbers; text from a peer is never used as a path.
struct PublishedFile {
  StateFileName file{};
  std::uint64_t bytes = 0;   ///< size of the file
  std::uint64_t digest = 0;  ///< the checksum of its header, which covers the checksum of every tensor
};

static_assert(std::is_trivially_copyable_v<PublishedFile>);

}  // namespace crossrank::workspace
