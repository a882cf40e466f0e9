#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/checkpoint.hpp>

#include "lib/platform/files/directory.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"
#include "workspace/checkpoint/write/job/part_runs.hpp"
#include "workspace/checkpoint/write/job/work_folder.hpp"

namespace crossrank::checkpoint {

/// How far the files of a part are.
enum class PartFile : std::uint8_t {
  missing,   ///< there is no complete file with a valid record
  unproven,  ///< complete, but nobody has read it back, or it has changed since
  complete,  ///< read back by its part, and not changed since
};

/// How far a plan is.
enum class PlanStage : std::uint8_t {
  open,        ///< parts may write
  publishing,  ///< all parts are complete, and the result is being published or is published
  gone,        ///< the folder was removed
};

/// The hidden folder of a plan in the output, as its parts use it: many processes at once, on any hosts, without locks.
///
/// Each run writes under names of its own. It renames a complete file to its final name in the folder, and then records
/// the file. Runs of the same part replace each other's files by equal ones.
class PartFolder final : public WorkFolder {
 public:
  /// Opens the folder of the plan. Returns nothing if it does not exist or does not belong to a plan any more. Throws
  /// `IoError`.
  [[nodiscard]] static std::optional<PartFolder> open(std::filesystem::path const& out, std::string const& id);

  /// Begins to write. `read_back` is recorded with each file. The folder must not be moved from then on.
  void begin_run(ReadBack read_back);
  /// Ends the run and removes its unfinished files.
  void end_run() noexcept { run_.reset(); }

  [[nodiscard]] platform::Directory const& directory() const noexcept override { return work_; }
  [[nodiscard]] std::string working_name(std::string const& name) const override;
  [[nodiscard]] std::optional<Json> finished(std::string const& name) const override;
  void mark_finished(std::string const& name, Json const& facts) const override;

  /// Returns how far a file is. Reads its record and its size.
  [[nodiscard]] PartFile state_of(OutputFile const& file) const;
  /// Removes the record of a file, so that its part writes it again.
  void forget(std::string const& name) const;
  [[nodiscard]] PlanStage stage() const;
  /// Returns whether the folder has the mark of a published result.
  [[nodiscard]] bool is_published() const;

 private:
  explicit PartFolder(platform::Directory work) : work_(std::move(work)) {}

  platform::Directory work_;
  std::unique_ptr<PartRun> run_{};
  ReadBack read_back_ = ReadBack::all;
};

}  // namespace crossrank::checkpoint
