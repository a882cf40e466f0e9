#pragma once
#include <cstdint>
#include <type_traits>

#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::workspace {

/// What a rank says of the file it has published, so that a reader takes exactly that one. It travels with a round;
/// the name is made from numbers on the reader's side, and no peer's text is ever used as a path.
struct PublishedFile {
  StateFileName file{};
  std::uint64_t bytes = 0;   ///< size of the file
  std::uint64_t digest = 0;  ///< its header's checksum, which covers the checksum of every tensor
};

static_assert(std::is_trivially_copyable_v<PublishedFile>);

}  // namespace crossrank::workspace
