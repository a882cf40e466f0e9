#pragma once
#include <functional>
#include <string>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/codec/safetensors/state_image.hpp"
#include "lib/platform/directory.hpp"
#include "workspace/nfs/published_file.hpp"

namespace crossrank::workspace {

/// A file that was published, and the lock that tells those who clean up that its writer lives.
struct WrittenFile {
  PublishedFile published{};
  platform::Fd file_lock{};
};

/// Called whenever some bytes have been written or read.
using OnProgress = std::function<void()>;

/// Publishes `config` and `weights` under the name of `file`. `IoError`; nothing is left when it fails.
[[nodiscard]] WrittenFile write_state_file(platform::Directory const& directory, StateFileName const& file,
                                           Json const& config, StateDict const& weights,
                                           OnProgress const& on_progress = {});

/// A state file that is open for reading: its header is verified, its tensors are not read yet.
class StateFileReader {
 public:
  /// `path` ends with the name of `file`. `FormatError` when the header does not verify or the file does not say of
  /// itself what its name says; `IoError`.
  StateFileReader(platform::Fd fd, StateFileName const& file, std::string const& path, OnProgress on_progress = {});
  /// What its writer published of it.
  [[nodiscard]] PublishedFile const& identity() const noexcept { return identity_; }
  /// All of it, every checksum verified.
  [[nodiscard]] RankState read() const { return image_.read_all(); }

 private:
  platform::Fd fd_;
  codec::StateImage image_;
  PublishedFile identity_;
};

}  // namespace crossrank::workspace
