#pragma once
#include <cstdint>
#include <string>

#include "lib/platform/directory.hpp"

namespace crossrank::workspace {

/// What a file is that has a name of ours.
struct FileIdentity {
  enum class Kind : std::uint8_t {
    state,    ///< the state image that the name says, perhaps damaged
    result,   ///< a part of a finished checkpoint, such as `crossrank convert --to images` writes
    foreign,  ///< anything else: not ours to remove
  };
  Kind kind = Kind::foreign;
  std::string why{};  ///< what it is, when it is not a state
};

/// Looks at the header of a file whose name is that of a state file. Damage to a state image does not make it foreign:
/// its first bytes tell.
[[nodiscard]] FileIdentity identify(platform::Directory const& directory, std::string const& name);

}  // namespace crossrank::workspace
