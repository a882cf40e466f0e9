#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace_options.hpp>

#include "lib/platform/directory.hpp"
#include "workspace/nfs/published_file.hpp"
#include "workspace/nfs/writer_lock.hpp"
#include "workspace/nfs/read_retry_policy.hpp"
#include "workspace/nfs/state_file.hpp"

namespace crossrank::workspace {

/// The files of one rank in one directory: what `NFSWorkspace` and the collective ranges share.
class FileStateStore {
 public:
  /// Makes the directory, and removes what earlier processes of this rank left there.
  [[nodiscard]] static std::shared_ptr<FileStateStore> open_for_rank(std::filesystem::path const& path,
                                                                     WorkspaceOptions const& options);
  /// Reads only.
  [[nodiscard]] static std::shared_ptr<FileStateStore> open_for_reading(std::filesystem::path const& path);
  /// What it has published stays, marked as left on purpose unless an exception unwinds it.
  ~FileStateStore();
  FileStateStore(FileStateStore const&) = delete;
  FileStateStore& operator=(FileStateStore const&) = delete;

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  /// Nothing when opened for reading only.
  [[nodiscard]] std::optional<int> rank() const noexcept { return rank_; }

  /// Publishes a file that any reader may take; the two newest stay.
  void write(Json const& config, StateDict const& weights);
  /// Publishes a file for a range, which keeps it until `retire` or `abandon`.
  [[nodiscard]] PublishedFile write_for_range(Json const& config, StateDict const& weights,
                                              OnProgress const& on_progress = {});
  /// `UsageError` for a workspace whose files a collective range cannot use.
  void require_range_support() const;
  /// The range that published it is over: the file goes, and nothing else.
  void withdraw(PublishedFile const& published);
  /// The range that published it is closed on all ranks and keeps it: what is older and kept by nobody goes.
  void retire(PublishedFile const& published);
  /// The range failed: the file no longer counts as kept, and nothing goes yet.
  void abandon(PublishedFile const& published) noexcept;

  /// The newest state of `rank`; nothing when it never wrote.
  [[nodiscard]] std::optional<RankState> read_newest(int rank, Damaged damaged = Damaged::refuse) const;
  /// Exactly what was published, waited for through fresh opens of the directory until it is visible here.
  [[nodiscard]] RankState read_published(PublishedFile const& published,
                                         ReadRetryPolicy const& retry_policy = {}) const;
  /// Removes all files of this rank, but not those of another live process or store.
  void clean();
  /// This process exits cleanly: marks what it leaves on purpose. Idempotent.
  void finish() noexcept;

 private:
  explicit FileStateStore(std::filesystem::path const& path);
  struct Published {
    StateFileName file{};
    platform::Fd file_lock{};    ///< tells others that the writer lives
    bool kept_by_range = false;  ///< a range keeps it
  };

  [[nodiscard]] int writing_rank(char const* operation) const;
  void check_reading_rank(int rank) const;
  PublishedFile publish(Json const& config, StateDict const& weights, bool kept_by_range,
                        OnProgress const& on_progress);
  enum class Own : std::uint8_t { keep, remove };
  /// What nobody holds any more; of this process's own files what another store left, if asked.
  void remove_stale(platform::Directory const& directory, std::string const& operation, Own own) const;
  [[nodiscard]] bool may_remove(platform::Directory const& directory, std::string const& name,
                                StateFileName const& file, WriterState writer) const;
  /// This process's own files that another store left, but for the newest.
  void remove_stale_before(platform::Directory const& directory, StateFileName const& file) const;
  void remove_published(platform::Directory const& directory, std::function<bool(Published const&)> const& wanted);

  std::filesystem::path path_;
  std::optional<int> rank_{};
  std::optional<int> world_size_{};  ///< where it is known
  Existing existing_ = Existing::keep;
  StateFormat format_ = StateFormat::safetensors;
  bool torch_written_ = false;          ///< whether ModelOpt's file of this rank is this process's
  std::mutex mutex_{};                  ///< guards what follows: a range may close in another thread than it was opened
  std::vector<Published> published_{};  ///< of this process, the oldest first
};

}  // namespace crossrank::workspace
