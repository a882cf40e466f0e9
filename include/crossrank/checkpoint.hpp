#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

namespace crossrank::checkpoint {

/// How far a job is, all ranks together.
struct Progress {
  std::uint64_t bytes_done = 0;             ///< bytes that are finished in this stage
  std::uint64_t bytes_total = 0;            ///< bytes of this stage
  std::chrono::duration<double> elapsed{};  ///< time since the job began
  std::string_view tensor{};                ///< one that is being worked on; valid during the call
  std::string_view stage{};                 ///< "comparing copies" or "writing"; the figures start anew with each
};

/// Says what to do when the ranks' scales of one layer differ.
enum class ScalePolicy : std::uint8_t {
  exact,       ///< they must agree
  rescale,     ///< one common scale; what it multiplies is scaled and rounded once
  requantize,  ///< one common scale; packed blocks are unpacked and quantized anew
};

/// Says what to do with the checksums of torch archives, which torch writes and never checks.
enum class ArchiveCrc : std::uint8_t {
  require,  ///< bytes that do not match are an error
  warn,     ///< an event in the log
  ignore,   ///< not computed
};

/// Says how the shards of a fused layer ("[gate; up]", "[q; k; v]") were cut. The bytes do not tell.
enum class FusedLayout : std::uint8_t {
  automatic,  ///< as names and metadata of the shards say, else `per_rank`
  per_rank,   ///< each shard holds a piece of every part, as Megatron, vLLM and `split` cut it
  plain,      ///< as one block, wherever the parts begin, as transformers' own tensor parallelism cuts phi3 and glm
};

/// Says how the inputs are found and merged. Zero and empty mean: as names, config and shapes say.
struct PlanOptions {
  std::filesystem::path rules{};             ///< JSON rule file
  int tp = 0;                                ///< tensor-parallel size
  int pp = 0;                                ///< pipeline size
  int ep = 0;                                ///< expert-parallel size
  std::string pattern{};                     ///< file names with {rank}, {tp}, {pp}, {ep} in place of numbers
  ScalePolicy policy = ScalePolicy::exact;   ///< what to do when scales differ
  ArchiveCrc crc = ArchiveCrc::require;      ///< what to do when a checksum does not match
  std::vector<std::string> extra_globals{};  ///< classes that torch archives may mention besides: "module.name". Never
                                             ///< called: such a value is kept as its name
  std::string
      model_key{};  ///< key of torch archives (or first part of the names of a distributed checkpoint) under which
                    ///< the model stands: "ema_state_dict"; empty: as known ones say; ".": all is the model
  int moe_ep = 0;   ///< groups of experts among the tensor-parallel ranks (expert parallelism inside of them)
  FusedLayout fused_layout = FusedLayout::automatic;  ///< of fused layers, but for stacks of experts
};

/// A tensor whose stored values change because the ranks' scales differ.
struct Requantized {
  std::string tensor{};  ///< its name
  std::string bound{};   ///< how far a value may move, in words
};

/// The plan of a merge: each tensor of the result, and where its bytes come from.
///
/// A handle, cheap to copy. Inputs stay open while one is held. `make` proves that the plan is the same on every rank.
class CROSSRANK_EXPORT MergePlan {
 public:
  /// The private part.
  struct State;

  /// Makes a handle to no plan. Every member then throws a `UsageError`.
  MergePlan() noexcept = default;
  /// Opens the shards in a directory, or one file, and decides for every tensor.
  ///
  /// Collective; one exchange of hashes. Reads headers only. `IoError`, `FormatError` and `UsageError` name the file,
  /// rank or tensor and a hint. `MismatchError` when the ranks see different files. Rank 0 logs a warning for each
  /// tensor that one layer or expert lacks and its siblings have, and for each name that differs from what models of
  /// the config's type have.
  [[nodiscard]] static MergePlan make(Collective const& world, std::filesystem::path const& shards,
                                      PlanOptions const& options = {});
  /// Makes the plan that `save` wrote again, from the inputs that it names. Collective. `FormatError` when the inputs
  /// have changed.
  [[nodiscard]] static MergePlan load(Collective const& world, std::filesystem::path const& file);

  /// Returns a hash of everything that decides about the result: names, shapes, rules, inputs and their sizes. Local,
  /// free.
  [[nodiscard]] std::uint64_t hash() const;
  /// Returns which shards, which rule and which bytes make up a tensor. Local. `UsageError` with the nearest name for
  /// an unknown one.
  [[nodiscard]] std::string explain(std::string_view tensor) const;
  /// Returns the whole plan for programs. Local.
  [[nodiscard]] Json to_json() const;
  /// Writes `to_json()` to a new file. Local. `IoError` when the system refuses.
  void save(std::filesystem::path const& file) const;
  /// Returns the bytes of all tensors of the result. Local.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Returns what a policy other than `exact` changes, in the order of the tensors; empty when all scales agree. Local.
  [[nodiscard]] std::vector<Requantized> requantized() const;
  /// Returns the names of the result's tensors, in order. Local.
  [[nodiscard]] std::vector<std::string> tensors() const;

  /// Returns the private part. For the functions of this header.
  [[nodiscard]] State const& state() const;

 private:
  explicit MergePlan(std::shared_ptr<State const> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State const> state_{};
};

/// Says what is read again after it has been written.
enum class ReadBack : std::uint8_t {
  all,   ///< every byte, compared by checksum with what was written
  none,  ///< sizes and headers only
};

/// Says which files a result is written to.
enum class OutputFormat : std::uint8_t {
  safetensors,  ///< "model.safetensors", or "model-0000x-of-0000y.safetensors" and an index; "rank<r>.safetensors"
  torch,        ///< archives that `torch.load` opens, `weights_only` too: "pytorch_model.bin"; "rank<r>.pth"
  images,       ///< state images with checksums and the config, as `NFSWorkspace` reads them
};

/// The most threads of one rank that work at a time. Each holds some 8 MiB.
inline constexpr int most_threads = 16;

/// Options of `consolidate`.
struct ConsolidateOptions {
  std::uint64_t max_shard_bytes = 5'000'000'000;       ///< of one output file; a larger tensor has a file of its own
  bool force = false;                                  ///< replace a checkpoint that is there
  std::function<void(Progress const&)> on_progress{};  ///< on rank 0, in the calling thread, 10 times a second at most
  std::stop_token stop{};                              ///< asks for the end: `CancelledError`, nothing left behind
  bool resume = false;                                 ///< go on from the files that a killed job had finished
  ReadBack read_back = ReadBack::all;                  ///< what is checked after it has been written
  int threads = 0;                                     ///< of this rank; 0: two for each CPU of its share, 4 at most
  bool single_file = false;                            ///< one file, whatever its size
  OutputFormat format = OutputFormat::safetensors;     ///< files of the result
};

/// Options of `split`.
struct SplitOptions {
  int tp = 2;                                          ///< tensor-parallel size of the result
  std::filesystem::path rules{};                       ///< JSON rule file
  bool force = false;                                  ///< replace a checkpoint that is there
  std::function<void(Progress const&)> on_progress{};  ///< as in `ConsolidateOptions`
  std::stop_token stop{};                              ///< asks for the end: `CancelledError`, and nothing is left
  bool resume = false;                                 ///< as in `ConsolidateOptions`
  ReadBack read_back = ReadBack::all;                  ///< what is checked after it has been written
  int threads = 0;                                     ///< of this rank; 0: as in `ConsolidateOptions`
  OutputFormat format = OutputFormat::safetensors;     ///< files of the result
  int moe_ep = 1;  ///< groups of stacked experts among the tensor-parallel ranks, as TensorRT-LLM's "moe_ep_size"
};

/// What a job has done.
struct Summary {
  std::uint64_t bytes = 0;                  ///< of all output files
  std::chrono::duration<double> elapsed{};  ///< time that it took
  int files = 0;                            ///< number of output files
  int resumed_files = 0;                    ///< of these, finished by the job before
};

/// Writes the plan's result as a Hugging Face checkpoint: `model.safetensors`, or `model-0000x-of-0000y.safetensors`
/// and an index, and the configs that are beside the shards.
///
/// Collective. Each rank writes whole files and reads only the slices that these need; threads of a rank share the
/// work. No rank holds more than 256 MiB. Replicas are compared before anything is written. Everything is written to a
/// hidden folder in `out`, made durable, read back and compared; then the files get their names, index and config last.
/// Killed at any step, `out` holds what it held before, or no checkpoint, or the new one.
///
/// `FormatError` for shards that disagree, `UsageError` for an output that exists, `CancelledError`. `IoError` for a
/// file system that is full or fails; then nothing is left.
CROSSRANK_EXPORT Summary consolidate(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                                     ConsolidateOptions const& options = {});

/// Cuts the plan's result for `tp` ranks: `rank<r>.safetensors` and the configs.
///
/// Collective; the inverse of `consolidate`, with its costs, durability and errors. A plan over shards goes from one
/// tensor-parallel size to another without a merged model on disk.
CROSSRANK_EXPORT Summary split(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                               SplitOptions const& options = {});

/// Options of `save_sharded`.
struct SaveOptions {
  Json config = Json::object();                        ///< of rank 0: written as "config.json" unless it is empty
  OutputFormat format = OutputFormat::safetensors;     ///< files of the result
  bool force = false;                                  ///< replace a checkpoint that is there
  std::function<void(Progress const&)> on_progress{};  ///< on rank 0, in the calling thread
  std::stop_token stop{};                              ///< asks for the end: `CancelledError`, and nothing is left
  ReadBack read_back = ReadBack::all;                  ///< what is checked after it has been written
  int threads = 0;                                     ///< of this rank; 0: as in `ConsolidateOptions`
};

/// Saves the weights of all ranks, each to a file of its own ("rank<r>.safetensors"), as one checkpoint that
/// `MergePlan::make` reads. All of it appears, or nothing.
///
/// Collective; each rank writes its own bytes, without a copy. The tensors must not change until it returns. Durability
/// and errors as for `consolidate`; `UsageError` also for an undefined tensor or one that is not on the CPU.
CROSSRANK_EXPORT Summary save_sharded(Collective const& world, StateDict const& weights,
                                      std::filesystem::path const& out, SaveOptions const& options = {});

/// The kinds of defects of a checkpoint.
enum class DefectKind : std::uint8_t {
  file,      ///< missing, damaged, or unreadable
  index,     ///< index and files contradict each other
  coverage,  ///< a shard, layer, expert or piece is missing, or there is one too many
  shape,     ///< shards, config or number format do not fit together
  copies,    ///< copies that must be equal differ
  scales,    ///< scales that must be equal differ, or do not fit their weights
  checksum,  ///< the data is not what was written
  numbers,   ///< NaN or infinity
};

/// Returns "file", "index" and so on. Local.
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(DefectKind kind) noexcept;

/// One defect of a checkpoint.
struct Defect {
  DefectKind kind = DefectKind::file;  ///< what sort of defect
  std::string resource{};              ///< file or tensor
  std::string text{};                  ///< what is wrong, in one sentence
  std::string hint{};                  ///< may be empty
};

/// Options of `verify`.
struct VerifyOptions {
  bool numbers = false;  ///< read all data and look for NaN and infinity
  bool checksums =
      true;  ///< read the data of files that carry checksums: ours, and torch archives unless `crc` ignores
  std::function<void(Progress const&)> on_progress{};  ///< as in `ConsolidateOptions`
  std::stop_token stop{};                              ///< asks for the end: `CancelledError`
  int threads = 0;                                     ///< of this rank; 0: as in `ConsolidateOptions`
};

/// What `verify` has found.
struct VerifyReport {
  std::vector<Defect> defects{};  ///< by file or tensor, in order
  std::size_t files = 0;          ///< number of files
  std::size_t tensors = 0;        ///< of the whole model, or of all files where no model can be made of them
  std::uint64_t bytes = 0;        ///< of these
  std::uint64_t bytes_read = 0;   ///< of data; 0 when headers told everything
  /// Returns whether no defect was found.
  [[nodiscard]] bool ok() const noexcept { return defects.empty(); }
};

/// Looks for everything that is wrong with shards or a whole checkpoint, and goes on after each defect: files, index,
/// coverage, shapes, number formats, copies and scales of the ranks, and on request the numbers themselves.
///
/// Collective; all ranks share the reading and get the same report. A defect is not an error. `IoError` for a path that
/// does not exist, `UsageError`, `CancelledError`.
[[nodiscard]] CROSSRANK_EXPORT VerifyReport verify(Collective const& world, std::filesystem::path const& path,
                                                   PlanOptions const& plan = {}, VerifyOptions const& options = {});

}  // namespace crossrank::checkpoint
