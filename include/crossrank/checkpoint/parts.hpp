#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/export.hpp>

namespace crossrank::checkpoint {

/// Maximum number of parts of a plan.
inline constexpr int max_parts = 100'000;

/// Options of `PartsPlan::make`. The fields that `ConsolidateOptions` also has mean the same there.
struct PartsOptions {
  int parts = 1;                                    ///< number of parts, at most `max_parts`
  std::uint64_t max_shard_bytes = 5'000'000'000;    ///< size limit of an output file; a larger tensor gets its own file
  bool single_file = false;                         ///< write one file, whatever its size
  OutputFormat format = OutputFormat::safetensors;  ///< file format of the result
  bool force = false;  ///< replace an existing checkpoint, and drop unfinished parts of another plan
};

/// A merge in parts that need no connection with each other. The user's scheduler runs them: `consolidate_part` writes
/// the files of one part on any host that sees the storage, and `finish_parts` publishes the result.
///
/// The output files are those that `consolidate` writes with the same options. Each part has whole files. Parts are
/// balanced by size, as far as whole files allow; which part has which file depends only on the sizes of the files.
///
/// A handle, cheap to copy, and thread-safe. All members are local.
class CROSSRANK_EXPORT PartsPlan {
 public:
  /// The implementation.
  struct State;

  /// Makes an empty handle. Every member of an empty handle throws `UsageError`.
  PartsPlan() noexcept = default;
  /// Divides the output files of a merge among parts. Reads a few hundred kilobytes of each shard, to find a rank's
  /// file that was copied over another one. Changes nothing.
  ///
  /// Logs a warning if there are more parts than files. Throws `UsageError` when the output has a checkpoint or
  /// unfinished parts of another plan and `force` is not set, when a job runs in it, or for a wrong number of parts;
  /// `FormatError` when one shard is a copy of another; `IoError` when space is too small.
  [[nodiscard]] static PartsPlan make(MergePlan const& plan, std::filesystem::path const& out,
                                      PartsOptions const& options = {});
  /// Reads a plan that `save` wrote. Opens no inputs: `consolidate_part` opens those of its part; `merge_plan`, `save`
  /// and `finish_parts` open all, and throw `FormatError` when one has changed: its size, its time of modification, or
  /// its header.
  ///
  /// Throws `IoError` when there is no such file, `FormatError` when it is damaged or from another version, and
  /// `UsageError` when other users can replace it.
  [[nodiscard]] static PartsPlan load(std::filesystem::path const& file);
  /// Makes the hidden folder for the parts in the output, with what each part needs to know, and writes the plan to a
  /// file, which it replaces if it exists. Both are durable when the call returns. Files of this plan that earlier
  /// parts have finished stay.
  ///
  /// Throws the errors of `make`; `UsageError` if the file would be in a directory of the inputs; `IoError`, also if
  /// other users can write to the directory of the file.
  void save(std::filesystem::path const& file) const;

  /// Returns the number of parts.
  [[nodiscard]] int parts() const;
  /// Returns the output directory as an absolute path.
  [[nodiscard]] std::filesystem::path const& out() const;
  /// Returns the names of the files of one part, in order; empty if there are more parts than files. Throws
  /// `UsageError` if there is no such part.
  [[nodiscard]] std::vector<std::string> files(int part) const;
  /// Returns the size of the files of one part in bytes. Throws as `files`.
  [[nodiscard]] std::uint64_t bytes(int part) const;
  /// Returns the parts with a file that is missing, incomplete, or was recorded wrongly, in order. Empty if all are
  /// there, even when `finish_parts` has published them. Reads sizes and records, not data.
  ///
  /// Throws `UsageError` if the folder of the plan is gone and the output does not have its files.
  [[nodiscard]] std::vector<int> missing() const;

  /// Returns the plan of the merge. The first call after `load` opens all inputs, and throws the errors of
  /// `MergePlan::make`, and `FormatError` when an input has changed.
  [[nodiscard]] MergePlan const& merge_plan() const;
  /// Returns the implementation, for the functions of this header.
  [[nodiscard]] State const& state() const;

 private:
  explicit PartsPlan(std::shared_ptr<State const> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State const> state_{};
};

/// Options of `consolidate_part`.
struct PartOptions {
  std::function<void(Progress const&)> on_progress{};  ///< in the calling thread, at most 10 times a second
  std::stop_token stop{};                              ///< stops with `CancelledError`; finished files stay
  ReadBack read_back = ReadBack::all;                  ///< what is checked after writing
  int threads = 0;                                     ///< threads; 0: two per CPU, at most 4
};

/// Writes the files of one part, from 0 to `plan.parts() - 1`, and records their sizes and checksums.
///
/// Local. If `plan` was loaded, opens only the inputs that these files need, or all inputs if requantized values or a
/// format require it. Compares replicas of the files' tensors before it writes. No process holds more than 256 MiB in
/// addition to the plan. Any host may run the part again: complete files stay, and `Summary::resumed_files` counts
/// them. Several runs of a part at the same time do no harm, because each writes under names of its own and renames
/// complete files. A run after `finish_parts` compares its files with the published ones.
///
/// Throws `UsageError` if there is no such part or if the folder of the plan is gone, `FormatError` when shards
/// contradict each other or have changed, `CancelledError` when `options.stop` asks for it, and `IoError` when the file
/// system is full or fails. Then the output is as before, and the part can be run again.
CROSSRANK_EXPORT Summary consolidate_part(PartsPlan const& plan, int part, PartOptions const& options = {});

/// Selects which files `finish_parts` reads before it publishes them. It always compares sizes and records.
enum class PartCheck : std::uint8_t {
  changed,  ///< files that their part has not read back, or whose time of modification differs from the recorded one
  all,      ///< every byte of all files
  none,     ///< no file
};

/// Options of `finish_parts`.
struct FinishOptions {
  bool force = false;                    ///< replace an existing checkpoint, even if the plan does not say so
  PartCheck check = PartCheck::changed;  ///< which files are read and compared with their checksums
  bool dry_run = false;                  ///< check everything, and publish and change nothing
  std::function<void(Progress const&)> on_progress{};  ///< in the calling thread, at most 10 times a second
  std::stop_token stop{};                              ///< stops with `CancelledError`; the parts stay
  int threads = 0;                                     ///< threads; 0: two per CPU, at most 4
};

/// Publishes the result of all parts, with the index and the configs, as `consolidate` does: a kill leaves the old
/// checkpoint, the new one, or renames that a later call completes; until then, readers refuse the output.
///
/// Local. Parts that still run do not matter if their files are complete: they end without an effect. A call after the
/// result was published compares it with the inputs and succeeds.
///
/// Throws `FormatError` with the numbers of the parts that are missing or damaged (in `details`), or when an input has
/// changed; `UsageError` when the output got a checkpoint meanwhile, another process publishes the same plan, or the
/// folder of the plan is gone; `IoError` and `CancelledError`. Then nothing is published.
CROSSRANK_EXPORT Summary finish_parts(PartsPlan const& plan, FinishOptions const& options = {});

/// Returns the part that the scheduler gave this process, from 0. The first variable that is set counts:
/// 1. RANK of torchrun, if WORLD_SIZE is the number of parts and above 1, and SLURM_ARRAY_TASK_COUNT is not set;
/// 2. SLURM_ARRAY_TASK_ID of a Slurm array, counted from SLURM_ARRAY_TASK_MIN;
/// 3. JOB_COMPLETION_INDEX of a Kubernetes Indexed Job;
/// 4. RANK.
///
/// Local. Throws `UsageError` if no variable is set, if one is malformed, or if SLURM_ARRAY_TASK_COUNT or WORLD_SIZE is
/// not the number of parts of the plan.
[[nodiscard]] CROSSRANK_EXPORT int part_from_environment(PartsPlan const& plan);

}  // namespace crossrank::checkpoint
