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
#include "workspace/announcement.hpp"
#include "workspace/liveness.hpp"
#include "workspace/read_patience.hpp"
#include "workspace/state_file.hpp"

namespace crossrank::workspace {

/// The files of one rank in one directory: what `NFSWorkspace` and the collective ranges share.
class NfsMedium {
 public:
  /// Makes the directory, and removes what earlier processes of this rank left there.
  [[nodiscard]] static std::shared_ptr<NfsMedium> of_rank(std::filesystem::path const& path,
                                                          WorkspaceOptions const& options);
  /// Reads only.
  [[nodiscard]] static std::shared_ptr<NfsMedium> for_reading(std::filesystem::path const& path);
  /// What it has published stays, marked as left on purpose unless an exception unwinds it.
  ~NfsMedium();
  NfsMedium(NfsMedium const&) = delete;
  NfsMedium& operator=(NfsMedium const&) = delete;

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  /// Nothing when opened for reading only.
  [[nodiscard]] std::optional<int> rank() const noexcept { return rank_; }

  /// Publishes a file that any reader may take; the two newest stay.
  void write(Json const& config, StateDict const& weights);
  /// Publishes a file for a range, which keeps it until `retire` or `abandon`.
  [[nodiscard]] Announcement write_announced(Json const& config, StateDict const& weights,
                                             OnProgress const& on_progress = {});
  /// `UsageError` for a workspace whose files no range can announce.
  void require_announcing() const;
  /// The range that announced it is over: the file goes, and nothing else.
  void withdraw(Announcement const& announced);
  /// The range that announced it is closed on all ranks and keeps it: what is older and kept by nobody goes.
  void retire(Announcement const& announced);
  /// The range failed: the file no longer counts as kept, and nothing goes yet.
  void abandon(Announcement const& announced) noexcept;

  /// The newest state of `rank`; nothing when it never wrote.
  [[nodiscard]] std::optional<RankState> read_newest(int rank, Damaged damaged = Damaged::refuse) const;
  /// Exactly what was announced, waited for through fresh opens of the directory until it is visible here.
  [[nodiscard]] RankState read_announced(Announcement const& announced, ReadPatience const& patience = {}) const;
  /// Removes all files of this rank, but not those of another live process or medium.
  void clean();
  /// This process ends in order: marks what it leaves on purpose. Idempotent.
  void finish() noexcept;

 private:
  explicit NfsMedium(std::filesystem::path const& path);
  struct Published {
    StateFile file{};
    platform::Fd hold{};     ///< tells others that the writer lives
    bool announced = false;  ///< a range keeps it
  };

  [[nodiscard]] int writing_rank(char const* operation) const;
  void check_reading_rank(int rank) const;
  Announcement publish(Json const& config, StateDict const& weights, bool announced, OnProgress const& on_progress);
  enum class Own : std::uint8_t { keep, remove };
  /// What nobody holds any more; of this process's own files what another medium left, if asked.
  void remove_left(platform::Directory const& directory, std::string const& operation, Own own) const;
  [[nodiscard]] bool may_remove(platform::Directory const& directory, std::string const& name, StateFile const& file,
                                Writer writer) const;
  /// This process's own files that another medium left, but for the newest.
  void remove_left_before(platform::Directory const& directory, StateFile const& file) const;
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
