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
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  std::chrono::duration<double> elapsed{};
  std::string_view tensor{};  ///< one that was being worked on just now; valid during the call
  std::string_view stage{};   ///< what is being done: "comparing copies", "writing"; figures start anew with each
};

/// What to do where the ranks' scales of one layer differ.
enum class ScalePolicy : std::uint8_t {
  exact,       ///< they must agree
  rescale,     ///< one common scale; what it multiplies is scaled and rounded once
  requantize,  ///< one common scale; packed blocks are unpacked and quantized anew
};

/// What to do with the checksums of torch archives, which torch writes and never looks at.
enum class ArchiveCrc : std::uint8_t {
  require,  ///< bytes that do not match are an error
  warn,     ///< an event in the log
  ignore,   ///< not computed
};

/// How the shards of a fused layer ("[gate; up]", "[q; k; v]") were cut. The bytes do not tell.
enum class FusedLayout : std::uint8_t {
  automatic,  ///< as names and metadata of the shards say, else `per_rank`
  per_rank,   ///< each shard holds a piece of every part, as Megatron, vLLM and `split` cut it
  plain,      ///< as one block, wherever the parts begin, as transformers' own tensor parallelism cuts phi3 and glm
};

/// How the inputs are found and merged. Zero and empty mean: as names, config and shapes say.
struct PlanOptions {
  std::filesystem::path rules{};  ///< JSON rule file
  int tp = 0;                     ///< tensor-parallel size
  int pp = 0;                     ///< pipeline size
  int ep = 0;                     ///< expert-parallel size
  std::string pattern{};          ///< file names with {rank}, {tp}, {pp}, {ep} in place of numbers
  ScalePolicy policy = ScalePolicy::exact;
  ArchiveCrc crc = ArchiveCrc::require;
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
  std::string tensor{};
  std::string bound{};  ///< how far a value may move, in words
};

/// What becomes of the shards of a checkpoint: each tensor of the result and where its bytes come from.
///
/// A handle, cheap to copy; inputs stay open while one is held. The same on every rank, which `make` proves.
class CROSSRANK_EXPORT MergePlan {
 public:
  struct State;

  /// No plan. Every member is a `UsageError`.
  MergePlan() noexcept = default;
  /// Opens the shards in a directory (or one file) and decides for every tensor. Collective; one exchange of hashes,
  /// reads headers only. `IoError`, `FormatError` and `UsageError` name the file, rank or tensor and the remedy;
  /// `MismatchError` when the ranks see different files. A warning in the log of rank 0 for each tensor that one layer
  /// or expert lacks and its fellows have, and for each name that models of the config's type lack or have besides.
  [[nodiscard]] static MergePlan make(Collective const& world, std::filesystem::path const& shards,
                                      PlanOptions const& options = {});
  /// Makes the plan that `save` wrote once more, from the inputs that it names. Collective. `FormatError` when the
  /// inputs are no longer those.
  [[nodiscard]] static MergePlan load(Collective const& world, std::filesystem::path const& file);

  /// Of all that decides about the result: names, shapes, rules, inputs and their sizes. Local, free.
  [[nodiscard]] std::uint64_t hash() const;
  /// Which shards, which rule, which bytes make up a tensor. Local. `UsageError` with the nearest name for an unknown
  /// one.
  [[nodiscard]] std::string explain(std::string_view tensor) const;
  /// The whole plan for programs. Local.
  [[nodiscard]] Json to_json() const;
  /// Writes `to_json()` to a new file. Local. `IoError`.
  void save(std::filesystem::path const& file) const;
  /// Bytes of all tensors of the result.
  [[nodiscard]] std::uint64_t bytes() const;
  /// What a policy other than `exact` changes, in the order of the tensors; empty when all scales agree.
  [[nodiscard]] std::vector<Requantized> requantized() const;
  /// Names of the result's tensors, in order.
  [[nodiscard]] std::vector<std::string> tensors() const;

  /// For the functions below.
  [[nodiscard]] State const& state() const;

 private:
  explicit MergePlan(std::shared_ptr<State const> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State const> state_{};
};

/// What is read again once it is written.
enum class ReadBack : std::uint8_t {
  all,   ///< every byte, compared by checksum with what was written
  none,  ///< sizes and headers only
};

/// What files a result is written to.
enum class OutputFormat : std::uint8_t {
  safetensors,  ///< "model.safetensors", or "model-0000x-of-0000y.safetensors" and an index; "rank<r>.safetensors"
  torch,        ///< archives that `torch.load` opens, `weights_only` too: "pytorch_model.bin"; "rank<r>.pth"
  images,       ///< state images with checksums and the config, as `NFSWorkspace` reads them
};

/// Threads of one rank that work at a time, however many are asked for: each holds some 8 MiB.
inline constexpr int most_threads = 16;

struct ConsolidateOptions {
  std::uint64_t max_shard_bytes = 5'000'000'000;       ///< of one output file; a larger tensor has a file of its own
  bool force = false;                                  ///< replace a checkpoint that is there
  std::function<void(Progress const&)> on_progress{};  ///< on rank 0, in the calling thread, 10 times a second at most
  std::stop_token stop{};                              ///< asks for the end: `CancelledError`, nothing left behind
  bool resume = false;                                 ///< go on from the files that a killed job had finished
  ReadBack read_back = ReadBack::all;
  int threads = 0;           ///< of this rank; 0: two for each CPU of its share, 4 at most
  bool single_file = false;  ///< one file, whatever its size
  OutputFormat format = OutputFormat::safetensors;
};

struct SplitOptions {
  int tp = 2;                     ///< tensor-parallel size of the result
  std::filesystem::path rules{};  ///< JSON rule file
  bool force = false;             ///< replace a checkpoint that is there
  std::function<void(Progress const&)> on_progress{};
  std::stop_token stop{};
  bool resume = false;
  ReadBack read_back = ReadBack::all;
  int threads = 0;
  OutputFormat format = OutputFormat::safetensors;
  int moe_ep = 1;  ///< groups of stacked experts among the tensor-parallel ranks, as TensorRT-LLM's "moe_ep_size"
};

/// What a job has done.
struct Summary {
  std::uint64_t bytes = 0;  ///< of all output files
  std::chrono::duration<double> elapsed{};
  int files = 0;
  int resumed_files = 0;  ///< of these, finished by the job before
};

/// Writes the plan's result as a Hugging Face checkpoint: `model-0000x-of-0000y.safetensors` and an index, or
/// `model.safetensors`, and the configs beside the shards.
///
/// Collective. Each rank writes whole files and reads only the slices that these need; in a rank of its own threads
/// share the work. No rank holds more than 256 MiB. Everything is written to a hidden folder in `out`, made durable,
/// read back and compared; then the files get their names, index and config last. Killed at any step, `out` holds what
/// it held before, or no checkpoint, or the new one. Replicas are compared before anything is written.
/// `FormatError` for shards that disagree, `UsageError` for an output that exists, `IoError` for a file system that is
/// full or fails (then nothing is left behind), `CancelledError`.
CROSSRANK_EXPORT Summary consolidate(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                                     ConsolidateOptions const& options = {});

/// Cuts the plan's result for `tp` ranks: `rank<r>.safetensors` and the configs. The inverse of `consolidate`; with a
/// plan over shards it goes from one tensor-parallel size to another and nothing is merged on disk between. Collective;
/// everything else as there.
CROSSRANK_EXPORT Summary split(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                               SplitOptions const& options = {});

struct SaveOptions {
  Json config = Json::object();  ///< of rank 0: written as "config.json" unless it is empty
  OutputFormat format = OutputFormat::safetensors;
  bool force = false;                                  ///< replace a checkpoint that is there
  std::function<void(Progress const&)> on_progress{};  ///< on rank 0, in the calling thread
  std::stop_token stop{};
  ReadBack read_back = ReadBack::all;
  int threads = 0;
};

/// Saves the weights of all ranks, each to a file of its own ("rank<r>.safetensors"), as one checkpoint: all of it
/// appears, or nothing. What `MergePlan::make` reads.
///
/// Collective; each rank writes its own bytes, from where they lie. The tensors must stay as they are until it returns.
/// Durability and errors as `consolidate`; `UsageError` also for an absent tensor or one that is not on the CPU.
CROSSRANK_EXPORT Summary save_sharded(Collective const& world, StateDict const& weights,
                                      std::filesystem::path const& out, SaveOptions const& options = {});

/// What is wrong with a checkpoint.
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

/// "file", "index", ...
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(DefectKind kind) noexcept;

struct Defect {
  DefectKind kind = DefectKind::file;
  std::string resource{};  ///< file or tensor
  std::string text{};      ///< what is wrong, in one sentence
  std::string remedy{};    ///< may be empty
};

struct VerifyOptions {
  bool numbers = false;  ///< read all data and look for NaN and infinity
  bool checksums =
      true;  ///< read the data of files that carry checksums: ours, and torch archives unless `crc` ignores
  std::function<void(Progress const&)> on_progress{};
  std::stop_token stop{};
  int threads = 0;
};

struct VerifyReport {
  std::vector<Defect> defects{};  ///< by file or tensor, in order
  std::size_t files = 0;
  std::size_t tensors = 0;       ///< of the whole model, or of all files where no model can be made of them
  std::uint64_t bytes = 0;       ///< of these
  std::uint64_t bytes_read = 0;  ///< of data; 0 when headers told everything
  [[nodiscard]] bool ok() const noexcept { return defects.empty(); }
};

/// Looks for everything that is wrong with shards or a whole checkpoint, and goes on after each finding: files, index,
/// coverage, shapes, number formats, copies and scales of the ranks, and on request the numbers themselves.
///
/// Collective; all ranks share the reading and get the same report. A defect is no error: only `IoError` for a path
/// that leads nowhere, `UsageError`, `CancelledError`.
[[nodiscard]] CROSSRANK_EXPORT VerifyReport verify(Collective const& world, std::filesystem::path const& path,
                                                   PlanOptions const& plan = {}, VerifyOptions const& options = {});

}  // namespace crossrank::checkpoint
