#pragma once
#include <functional>
#include <string>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/codec/state_image.hpp"
#include "lib/platform/directory.hpp"
#include "workspace/announcement.hpp"

namespace crossrank::workspace {

/// A file that was published, and the lock that tells those who clean up that its writer lives.
struct WrittenFile {
  Announcement announcement{};
  platform::Fd hold{};
};

/// Called whenever some bytes have been written or read.
using OnProgress = std::function<void()>;

/// Publishes `config` and `weights` under the name of `file`. `IoError`; nothing is left when it fails.
[[nodiscard]] WrittenFile write_state_file(platform::Directory const& directory, StateFile const& file,
                                           Json const& config, StateDict const& weights,
                                           OnProgress const& on_progress = {});

/// A state file that is open for reading: its header is verified, its tensors are not read yet.
class StateFileReader {
 public:
  /// `path` ends with the name of `file`. `FormatError` when the header does not verify or the file does not say of
  /// itself what its name says; `IoError`.
  StateFileReader(platform::Fd fd, StateFile const& file, std::string const& path, OnProgress on_progress = {});
  /// What its writer announced of it.
  [[nodiscard]] Announcement const& identity() const noexcept { return identity_; }
  /// All of it, every checksum verified.
  [[nodiscard]] RankState read() const { return image_.read_all(); }

 private:
  platform::Fd fd_;
  codec::StateImage image_;
  Announcement identity_;
};

}  // namespace crossrank::workspace
