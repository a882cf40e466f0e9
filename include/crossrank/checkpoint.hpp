#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

/// Merges, splits, saves and verifies sharded checkpoints. These functions are in a library of their own: link
/// `crossrank::checkpoint`, or `pkg-config --libs crossrank-checkpoint`.
namespace crossrank::checkpoint {

/// The progress of a job, summed over all ranks.
struct Progress {
  std::uint64_t bytes_done = 0;             ///< finished bytes of this stage
  std::uint64_t bytes_total = 0;            ///< all bytes of this stage
  std::chrono::duration<double> elapsed{};  ///< time since the job began
  std::string_view tensor{};                ///< name of a tensor in progress; valid during the call
  /// "writing"; "comparing" with a result that an earlier run completed; "comparing replicas", "comparing checksums" or
  /// "looking at numbers" of a check. Each stage counts from 0.
  std::string_view stage{};
};

/// Selects what to do when the ranks' scales of one layer differ.
enum class ScalePolicy : std::uint8_t {
  exact,       ///< differing scales are an error
  rescale,     ///< uses one common scale; the values under it are scaled and rounded once
  requantize,  ///< as `rescale`; also unpacks packed blocks and quantizes them again
};

/// Selects what to do with the checksums of torch archives. torch writes them and never checks them.
enum class ArchiveCrc : std::uint8_t {
  require,  ///< a mismatch is an error
  warn,     ///< a mismatch is logged as a warning
  ignore,   ///< checksums are not computed
};

/// Selects how the shards of a fused layer ("[gate; up]", "[q; k; v]") were sharded. The stored bytes do not show it.
enum class FusedLayout : std::uint8_t {
  automatic,  ///< follows names and metadata of the shards; `per_rank` if they do not show it
  per_rank,   ///< each shard holds a piece of every part, as Megatron, vLLM and `split` shard it
  plain,  ///< sharded as one block, ignoring part boundaries, as transformers' tensor parallelism shards phi3 and glm
};

/// Options that say how to find and merge the inputs.
///
/// Zero and empty mean: take the value from file names, config and shapes.
struct PlanOptions {
  std::filesystem::path rules{};             ///< JSON rule file
  int tp = 0;                                ///< tensor-parallel size
  int pp = 0;                                ///< pipeline size
  int ep = 0;                                ///< expert-parallel size
  std::string pattern{};                     ///< file name with {rank}, {tp}, {pp}, {ep} in place of numbers
  ScalePolicy policy = ScalePolicy::exact;   ///< what to do when scales differ
  ArchiveCrc crc = ArchiveCrc::require;      ///< what to do when a checksum does not match
  std::vector<std::string> extra_globals{};  ///< more classes that torch archives may mention, as "module.name"; never
                                             ///< called, only the name is kept
  /// Key that holds the model in torch archives, or first part of the tensor names in distributed checkpoints, such as
  /// "ema_state_dict". Empty: a known key. ".": everything is the model.
  std::string model_key{};
  int moe_ep = 0;  ///< groups of experts among the tensor-parallel ranks (expert parallelism inside tensor parallelism)
  FusedLayout fused_layout = FusedLayout::automatic;  ///< how fused layers were sharded, except stacks of experts
};

/// A tensor whose stored values change because the ranks' scales differ.
struct Requantized {
  std::string tensor{};  ///< name of the tensor
  std::string bound{};   ///< largest possible change of a value, in words
};

/// The plan of a merge: each tensor of the result, and where its bytes come from.
///
/// A handle, cheap to copy. The inputs stay open as long as a handle exists. `make` checks that all ranks have the same
/// plan.
class CROSSRANK_EXPORT MergePlan {
 public:
  /// The implementation.
  struct State;

  /// Makes an empty handle. Every member of an empty handle throws `UsageError`.
  MergePlan() noexcept = default;
  /// Opens the shards in a directory, or one file, and decides how to merge each tensor.
  ///
  /// Collective; one exchange of hashes. Reads only headers.
  ///
  /// Rank 0 logs a warning for each tensor that one layer or expert lacks while its siblings have it, and for each name
  /// that models of the config's type do not have.
  ///
  /// Throws `IoError`, `FormatError` or `UsageError` with the file, rank or tensor and a hint, and `MismatchError` when
  /// the ranks see different files.
  [[nodiscard]] static MergePlan make(Collective const& world, std::filesystem::path const& shards,
                                      PlanOptions const& options = {});
  /// Does the same for this process alone, such as to read single tensors. Local.
  [[nodiscard]] static MergePlan make(std::filesystem::path const& shards, PlanOptions const& options = {});
  /// Makes a plan that `save` wrote, from the inputs that the file names.
  ///
  /// Collective. Throws `IoError` when there is no such file, and `FormatError` when it is damaged or the inputs have
  /// changed.
  [[nodiscard]] static MergePlan load(Collective const& world, std::filesystem::path const& file);

  /// Returns a hash of everything that determines the result: names, shapes, rules, inputs and their sizes. Local,
  /// free.
  [[nodiscard]] std::uint64_t hash() const;
  /// Returns which shards, which rule and which bytes make up a tensor, as text.
  ///
  /// Local. Throws `UsageError` with the nearest name if the tensor is unknown.
  [[nodiscard]] std::string explain(std::string_view tensor) const;
  /// Returns one tensor of the result, in memory of its own. Reads and merges only the bytes of this tensor.
  ///
  /// Local; thread-safe. Reads the replicas of the tensor as well and compares them, as a merge does. Throws
  /// `UsageError` with the nearest name if the tensor is unknown, `FormatError` when replicas differ, and `IoError` or
  /// `FormatError` when an input cannot be read.
  [[nodiscard]] Tensor read(std::string_view tensor) const;
  /// Returns the whole plan as JSON. Local.
  [[nodiscard]] Json to_json() const;
  /// Writes `to_json()` to a new file, with absolute paths of the inputs. Local. Throws `IoError` if the file exists or
  /// cannot be written.
  void save(std::filesystem::path const& file) const;
  /// Returns the size of all tensors of the result in bytes. Local.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Returns the tensors whose values a policy other than `exact` changes, in order; empty when all scales agree.
  /// Local.
  [[nodiscard]] std::vector<Requantized> requantized() const;
  /// Returns the names of all tensors of the result, in order. Local.
  [[nodiscard]] std::vector<std::string> tensors() const;

  /// Returns the implementation, for the functions of this header.
  [[nodiscard]] State const& state() const;

 private:
  friend class PartsPlan;
  explicit MergePlan(std::shared_ptr<State const> state) noexcept : state_(std::move(state)) {}
  /// Does the same as `make`, without warnings.
  [[nodiscard]] static MergePlan make_quietly(Collective const& world, std::filesystem::path const& shards,
                                              PlanOptions const& options);
  std::shared_ptr<State const> state_{};
};

/// Selects what is read back after writing.
enum class ReadBack : std::uint8_t {
  all,   ///< every byte; its checksum is compared with the one of the written data
  none,  ///< only sizes and headers
};

/// Selects the file format of a result.
enum class OutputFormat : std::uint8_t {
  safetensors,  ///< "model.safetensors", or "model-0000x-of-0000y.safetensors" and an index; "rank<r>.safetensors"
  torch,        ///< archives for `torch.load`, also with `weights_only`: "pytorch_model.bin"; "rank<r>.pth"
  images,       ///< state images with checksums and the config, as `NFSWorkspace` reads them
};

/// Maximum number of worker threads of one rank. Each thread uses about 8 MiB.
inline constexpr int max_threads = 16;

/// Options of `consolidate`.
struct ConsolidateOptions {
  std::uint64_t max_shard_bytes = 5'000'000'000;  ///< size limit of an output file; a larger tensor gets its own file
  bool force = false;                             ///< replace an existing checkpoint
  std::function<void(Progress const&)> on_progress{};  ///< on rank 0, in the calling thread, at most 10 times a second
  std::stop_token stop{};                              ///< stops with `CancelledError`; leaves nothing behind
  /// Continue from the files that a killed or resumed job had finished. They then stay even after an error or `stop`.
  bool resume = false;
  ReadBack read_back = ReadBack::all;               ///< what is checked after writing
  int threads = 0;                                  ///< threads of this rank; 0: two per CPU of its share, 2 to 4
  bool single_file = false;                         ///< write one file, whatever its size
  OutputFormat format = OutputFormat::safetensors;  ///< file format of the result
};

/// Options of `split`.
struct SplitOptions {
  int tp = 2;                                          ///< tensor-parallel size of the result
  std::filesystem::path rules{};                       ///< JSON rule file
  bool force = false;                                  ///< replace an existing checkpoint
  std::function<void(Progress const&)> on_progress{};  ///< as in `ConsolidateOptions`
  std::stop_token stop{};                              ///< stops with `CancelledError`; leaves nothing behind
  bool resume = false;                                 ///< as in `ConsolidateOptions`
  ReadBack read_back = ReadBack::all;                  ///< what is checked after writing
  int threads = 0;                                     ///< threads of this rank; 0: as in `ConsolidateOptions`
  OutputFormat format = OutputFormat::safetensors;     ///< file format of the result
  int moe_ep = 1;  ///< groups of stacked experts among the tensor-parallel ranks; TensorRT-LLM's "moe_ep_size"
};

/// The result of a job.
struct Summary {
  std::uint64_t bytes = 0;                  ///< size of all output files
  std::chrono::duration<double> elapsed{};  ///< duration of the job
  int files = 0;                            ///< number of output files
  int resumed_files = 0;                    ///< output files that an earlier, killed job had finished
};

/// Writes the merged model as a Hugging Face checkpoint: `model.safetensors`, or `model-0000x-of-0000y.safetensors` and
/// an index, and the configs that are beside the shards.
///
/// Collective. Each rank writes whole files and reads only the slices that its files need; the threads of a rank share
/// the work. A rank holds at most 256 MiB of the bytes of tensors. The plan needs 2 KiB for each tensor and 1 KiB for
/// each of its shards. Replicas are compared before anything is written.
///
/// All files are written to a hidden folder in `out`, made durable, read back and compared. Then they get their names,
/// index and config last. If the job is killed, `out` holds the old checkpoint or the new one. If it is killed between
/// two renames, readers refuse `out` until `crossrank clean` or the next job completes them.
///
/// Throws `FormatError` when shards contradict each other, `UsageError` when the output exists, `CancelledError` when
/// `options.stop` asks for it, and `IoError` when the file system is full or fails; then nothing is left behind.
CROSSRANK_EXPORT Summary consolidate(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                                     ConsolidateOptions const& options = {});

/// Splits the merged model for `tp` ranks: writes `rank<r>.safetensors` and the configs.
///
/// Collective; the inverse of `consolidate`, with the same costs, durability and errors. If the plan's inputs are
/// shards, this changes the tensor-parallel size without a merged model on disk.
CROSSRANK_EXPORT Summary split(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                               SplitOptions const& options = {});

/// Options of `save_sharded`.
struct SaveOptions {
  Json config = Json::object();  ///< an object; rank 0's is written as "config.json" unless it is empty
  OutputFormat format = OutputFormat::safetensors;     ///< file format of the result
  bool force = false;                                  ///< replace an existing checkpoint
  std::function<void(Progress const&)> on_progress{};  ///< called on rank 0, in the calling thread
  std::stop_token stop{};                              ///< stops with `CancelledError`; leaves nothing behind
  ReadBack read_back = ReadBack::all;                  ///< what is checked after writing
  int threads = 0;                                     ///< threads of this rank; 0: as in `ConsolidateOptions`
};

/// Saves the weights of all ranks as one checkpoint that `MergePlan::make` reads, with one file per rank
/// ("rank<r>.safetensors"). Either all files appear or none.
///
/// Collective; each rank writes its own bytes, without a copy; those of tensors on GPUs in pieces, in the order of
/// their current streams. The tensors must not change before the call returns. Durability and errors are those of
/// `consolidate`; also throws `UsageError` for an undefined tensor, or one on a GPU whose current stream is being
/// captured.
CROSSRANK_EXPORT Summary save_sharded(Collective const& world, StateDict const& weights,
                                      std::filesystem::path const& out, SaveOptions const& options = {});

/// The kinds of defects of a checkpoint.
enum class DefectKind : std::uint8_t {
  file,      ///< missing, damaged, or unreadable
  index,     ///< index and files contradict each other
  coverage,  ///< a shard, layer, expert or piece is missing or superfluous
  shape,     ///< shards, config and number format contradict each other
  replicas,  ///< replicas differ
  scales,    ///< scales differ between ranks or do not fit their weights
  checksum,  ///< data does not match its checksum
  numbers,   ///< NaN or infinity
};

/// Returns the name of the kind: "file", "index" and so on. Local.
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(DefectKind kind) noexcept;

/// One defect of a checkpoint.
struct Defect {
  DefectKind kind = DefectKind::file;  ///< kind of the defect
  std::string resource{};              ///< file or tensor
  std::string text{};                  ///< what is wrong, in one sentence
  std::string hint{};                  ///< what to do about it; may be empty
};

/// Options of `verify`.
struct VerifyOptions {
  bool numbers = false;  ///< read all data and look for NaN and infinity
  /// Check the data of files with checksums: crossrank's own files, and torch archives unless `PlanOptions::crc` is
  /// `ignore`.
  bool checksums = true;
  std::function<void(Progress const&)> on_progress{};  ///< as in `ConsolidateOptions`
  std::stop_token stop{};                              ///< stops the check with `CancelledError`
  int threads = 0;                                     ///< threads of this rank; 0: as in `ConsolidateOptions`
};

/// The findings of `verify`.
struct VerifyReport {
  std::vector<Defect> defects{};  ///< sorted by file or tensor
  std::size_t files = 0;          ///< number of files
  std::size_t tensors = 0;        ///< tensors of the whole model, or of all files if they do not form a model
  std::uint64_t bytes = 0;        ///< size of these tensors
  std::uint64_t bytes_read = 0;   ///< data that was read; 0 if headers were enough
  /// Returns whether no defect was found.
  [[nodiscard]] bool ok() const noexcept { return defects.empty(); }
};

/// Finds all defects of shards or of a whole checkpoint: in files, index, coverage, shapes, number formats, replicas,
/// scales and, on request, in the numbers themselves. Continues after each defect.
///
/// Collective; the ranks share the reading and get the same report. A defect is not an error. Throws `IoError` when
/// `path` does not exist, `UsageError` and `CancelledError`.
[[nodiscard]] CROSSRANK_EXPORT VerifyReport verify(Collective const& world, std::filesystem::path const& path,
                                                   PlanOptions const& plan = {}, VerifyOptions const& options = {});

}  // namespace crossrank::checkpoint
