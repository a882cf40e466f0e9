#pragma once
#include <cstdint>
#include <string>

#include "lib/platform/files/directory.hpp"

namespace crossrank::workspace {

/// What a file with the name of a state file holds.
struct FileIdentity {
  enum class Kind : std::uint8_t {
    state,    ///< the state image that the name announces, possibly damaged
    result,   ///< part of a finished checkpoint, such as `crossrank convert --to images` writes
    foreign,  ///< anything else; crossrank must not remove it
  };
  Kind kind = Kind::foreign;
  std::string why{};  ///< what the file is, when it is not a state
};

/// Identifies a file with the name of a state file by its header. A damaged state image still counts as a state when
/// its first bytes are intact.
[[nodiscard]] FileIdentity identify(platform::Directory const& directory, std::string const& name);

}  // namespace crossrank::workspace
