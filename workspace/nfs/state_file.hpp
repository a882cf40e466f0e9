#pragma once
#include <functional>
#include <string>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/codec/safetensors/state_image.hpp"
#include "lib/platform/files/directory.hpp"
#include "workspace/nfs/published_file.hpp"

namespace crossrank::workspace {

/// A published file, and the lock that shows other processes that its writer is running.
struct LockedStateFile {
  PublishedFile published{};
  platform::Fd file_lock{};
};

/// Called whenever some bytes have been written or read.
using OnProgress = std::function<void()>;

/// Publishes `config` and `weights` under the name of `file`. Throws `IoError` and then leaves no file behind.
[[nodiscard]] LockedStateFile write_state_file(platform::Directory const& directory, StateFileName const& file,
                                               Json const& config, StateDict const& weights,
                                               OnProgress const& on_progress = {});

/// A state file that is open for reading. Its header is verified; its tensors are not read yet.
class StateFileReader {
 public:
  /// `path` must end with the name of `file`. Throws `FormatError` when the header does not verify or does not match
  /// that name; `IoError`.
  StateFileReader(platform::Fd fd, StateFileName const& file, std::string const& path, OnProgress on_progress = {});
  /// Returns the identity under which the writer published the file.
  [[nodiscard]] PublishedFile const& identity() const noexcept { return identity_; }
  /// Reads the whole state and verifies every checksum.
  [[nodiscard]] RankState read() const { return image_.read_all(); }

 private:
  platform::Fd fd_;
  codec::StateImage image_;
  PublishedFile identity_;
};

}  // namespace crossrank::workspace
