#pragma once
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace/options.hpp>

#include "lib/platform/files/directory.hpp"
#include "workspace/nfs/published_file.hpp"
#include "workspace/nfs/writer_lock.hpp"
#include "workspace/nfs/read_retry_policy.hpp"
#include "workspace/nfs/state_file.hpp"

namespace crossrank::workspace {

/// The state files of one rank in one directory. `NFSWorkspace` and the collective ranges share it.
class FileStateStore {
 public:
  /// Creates the directory if needed and removes the files that earlier processes of this rank left there.
  [[nodiscard]] static std::shared_ptr<FileStateStore> open_for_rank(std::filesystem::path const& path,
                                                                     WorkspaceOptions const& options);
  /// Opens the directory for reading only.
  [[nodiscard]] static std::shared_ptr<FileStateStore> open_for_reading(std::filesystem::path const& path);
  /// Keeps the published files, and marks them as left on purpose unless an exception is unwinding the stack.
  ~FileStateStore();
  FileStateStore(FileStateStore const&) = delete;
  FileStateStore& operator=(FileStateStore const&) = delete;

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  /// Returns the rank that writes; empty when the store is read-only.
  [[nodiscard]] std::optional<int> rank() const noexcept { return rank_; }

  /// Publishes a file that any reader may read. Keeps the two newest.
  void write(Json const& config, StateDict const& weights);
  /// Says what the end of a range does with its file.
  enum class AtEnd : std::uint8_t {
    withdrawn,  ///< it is never a state of the rank
    retired     ///< it is the newest state from now on
  };
  /// Publishes a file for a range and keeps it until `withdraw`, `retire` or `abandon`.
  [[nodiscard]] PublishedFile write_for_range(Json const& config, StateDict const& weights,
                                              AtEnd at_end = AtEnd::retired, OnProgress const& on_progress = {});
  /// Throws `UsageError` for a workspace whose format a collective range cannot use.
  void require_range_support() const;
  /// Removes the file of a range that has ended.
  void withdraw(PublishedFile const& published);
  /// Ends the protection of the file after its range was closed on all ranks, and removes older unprotected files.
  void retire(PublishedFile const& published);
  /// Ends the protection of the file after its range failed. Removes nothing.
  void abandon(PublishedFile const& published) noexcept;

  /// Returns the newest state of `rank`; empty when it never wrote one.
  [[nodiscard]] std::optional<RankState> read_newest(int rank, Damaged damaged = Damaged::refuse) const;
  /// Reads exactly the published file. Reopens the directory until the file is visible on this node.
  [[nodiscard]] RankState read_published(PublishedFile const& published,
                                         ReadRetryPolicy const& retry_policy = {}) const;
  /// Removes all files of this rank except those of another running process or another store.
  void clean();
  /// Marks the published files as left on purpose, since this process exits cleanly. Idempotent.
  void finish() noexcept;
  /// Records that a call on the directory has not returned. The files then stay as a killed process leaves them.
  void note_hung() const noexcept { hung_.store(true, std::memory_order_relaxed); }
  /// Forgets the published files. For a forked child: the files and their locks are its parent's.
  void forget_parents_files() noexcept;

 private:
  explicit FileStateStore(std::filesystem::path const& path);
  struct Published {
    StateFileName file{};
    platform::Fd file_lock{};    ///< shows other processes that the writer is running
    bool kept_by_range = false;  ///< protected: an open range still needs it
  };

  [[nodiscard]] int writing_rank(char const* operation) const;
  void check_reading_rank(int rank) const;
  PublishedFile publish(StateFileName const& file, Json const& config, StateDict const& weights, bool kept_by_range,
                        OnProgress const& on_progress);
  enum class Own : std::uint8_t { keep, remove };
  /// Removes files of this rank whose writer has ended; with `Own::remove` also files that other stores of this process
  /// left.
  void remove_stale(platform::Directory const& directory, std::string const& operation, Own own) const;
  [[nodiscard]] bool may_remove(platform::Directory const& directory, std::string const& name,
                                StateFileName const& file, WriterState writer) const;
  /// Removes states before `file` that other stores of this process left, so that there are two with the `kept` ones.
  void remove_stale_before(platform::Directory const& directory, StateFileName const& file, std::size_t kept) const;
  /// Removes the states up to `file` except the newest `count`, also those that other stores of this process left.
  void remove_older(platform::Directory const& directory, StateFileName const& file, std::size_t count);
  /// Removes the wanted files, the oldest first. Asks once for each, in order.
  void remove_published(platform::Directory const& directory, std::function<bool(Published const&)> const& wanted);

  std::filesystem::path path_;
  std::optional<int> rank_{};
  std::optional<int> world_size_{};  ///< empty when unknown
  Existing existing_ = Existing::keep;
  StateFormat format_ = StateFormat::safetensors;
  bool torch_written_ = false;  ///< whether this process wrote ModelOpt's file of this rank
  mutable std::atomic<bool> hung_{false};
  std::mutex mutex_{};  ///< guards the members below; a range may be closed in another thread than opened it
  std::vector<Published> published_{};  ///< by this process, oldest first
};

}  // namespace crossrank::workspace
