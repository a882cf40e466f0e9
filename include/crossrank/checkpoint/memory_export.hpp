#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include <crossrank/checkpoint.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/checkpoint/placements.hpp>
#include <crossrank/state.hpp>

/// Writes weights that are spread over the memory of the ranks as one checkpoint, without shards on disk.
namespace crossrank::checkpoint {

/// Selects the direction in which the `rename` entries of a rule file translate names.
///
/// A rule whose `rename` is a list separates a fused layer into the layers of its parts. Backward, these layers become
/// the fused layer again. `FormatError` names a part that is missing, or that does not fit the other parts.
enum class RuleDirection : std::uint8_t {
  forward,   ///< the weights have the names of the patterns; the result has the names in `rename`
  backward,  ///< the weights have the names in `rename`; the result has the names of the patterns
};

/// Says what the model is, and how its tensor-parallel shards fit together. Only rank 0's values count.
struct ModelDescription {
  /// Directory with "config.json", tokenizer and similar files. They are copied to the result. May be empty.
  std::filesystem::path directory{};
  Json config = Json::object();   ///< an object, the config of the model; empty: the one in `directory`
  std::filesystem::path rules{};  ///< JSON rule file, as `PlanOptions::rules`
  RuleDirection direction = RuleDirection::forward;   ///< direction of the names in `rules`
  FusedLayout fused_layout = FusedLayout::automatic;  ///< how fused layers were sharded
};

/// Options of `consolidate` for weights in memory. All ranks pass the same values up to `read_back`.
struct ExportOptions {
  ModelDescription model{};                         ///< config, sidecar files and rules
  std::uint64_t max_shard_bytes = 5'000'000'000;    ///< size limit of an output file; a larger tensor gets its own
  bool single_file = false;                         ///< write one file, whatever its size
  OutputFormat format = OutputFormat::safetensors;  ///< file format of the result
  bool force = false;                               ///< replace an existing checkpoint
  ReadBack read_back = ReadBack::none;              ///< what is checked after writing
  int threads = 0;                                  ///< threads of this rank, at most 4; 0: as in `ConsolidateOptions`
  std::function<void(Progress const&)> on_progress{};  ///< as in `ConsolidateOptions`
  std::stop_token stop{};                              ///< stops with `CancelledError`; leaves nothing behind
};

/// Writes the weights of all ranks as one Hugging Face checkpoint: `model.safetensors`, or
/// `model-0000x-of-0000y.safetensors` and an index, and config and sidecar files.
///
/// Collective. Every rank passes the tensors that it holds, on the CPU or on GPUs, and says in `placements` how they
/// are sharded. Ranks without tensors pass an empty dictionary. Tensors on GPUs are read in the order of their current
/// streams, in pieces. The result equals that of a merge of the same shards from files.
///
/// Each output file is written by one rank. Ranks that hold many bytes of a file are preferred as its writer. Each byte
/// of the result is sent at most once, through shared memory inside a node and by messages between nodes. For bytes of
/// tensors a rank needs at most 256 MiB beyond its own weights. The names and the plan need 1.25 KiB for each tensor
/// of the model, and 0.2 KiB for each of its tensor-parallel shards. Replicas are compared by checksums before anything
/// is written. Files are written while the data arrives. They get their names as in `consolidate` of a plan, even if
/// the job is killed.
///
/// The tensors must not change before the call returns; see `iconsolidate`.
///
/// Throws on all ranks: `FormatError` when ranks shard a tensor differently, when placements do not cover a tensor
/// exactly once, when dtypes or shapes contradict each other, when a tensor is missing or replicas differ; `UsageError`
/// for an undefined tensor, for one on a GPU whose current stream is being captured, for an invalid mesh, for a
/// placement of a tensor that no rank has, for a negative number of threads, when the output exists, or when it is the
/// directory of the model; `MismatchError` when ranks pass different sizes of the grid or different options;
/// `CancelledError`, `IoError`, `PeerLostError` and `TimeoutError` as `consolidate` of a plan. Then `out` is unchanged
/// and nothing is left in it, with one exception: if rank 0 dies during the commit, another rank of its host completes
/// it.
CROSSRANK_EXPORT Summary consolidate(Collective const& world, StateDict const& weights, Placements const& placements,
                                     std::filesystem::path const& out, ExportOptions const& options = {});

/// Options of `iconsolidate`.
struct BackgroundOptions {
  ExportOptions write{};  ///< as for `consolidate`; `on_progress` is called in a thread of the library
  std::uint64_t max_copy_bytes =
      0;  ///< limit for the copy of this rank's weights; 0: its share of half of the host's free memory
};

/// An export in the background, started by `iconsolidate`.
///
/// Local. Every rank keeps its request until `wait()` has returned.
class CROSSRANK_EXPORT ExportRequest {
 public:
  /// The implementation.
  struct State;

  /// Makes a request without an export. It counts as finished.
  ExportRequest() noexcept;
  /// Cancels the export on all ranks if it is still running, and waits for its end.
  ~ExportRequest();
  /// Takes over the export of `other`, which is then without one.
  ExportRequest(ExportRequest&& other) noexcept;
  /// Drops this request and takes over the export of `other`.
  ExportRequest& operator=(ExportRequest&& other) noexcept;
  ExportRequest(ExportRequest const&) = delete;
  ExportRequest& operator=(ExportRequest const&) = delete;

  /// Returns whether the export has ended on this rank. Never blocks.
  [[nodiscard]] bool done() const;
  /// Blocks until the export has ended. Returns its result or throws its error, each time; errors as for
  /// `consolidate`.
  Summary wait();

 private:
  friend CROSSRANK_EXPORT ExportRequest iconsolidate(Collective const&, StateDict const&, Placements const&,
                                                     std::filesystem::path const&, BackgroundOptions const&);
  explicit ExportRequest(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// Copies the weights and writes them in the background, as `consolidate` does.
///
/// Collective; returns once every rank has copied its weights, so the caller may change them at once. Makes a group of
/// its own, so that collectives of `world` may continue meanwhile. `options.write.stop` cancels the export. Over MPI it
/// needs `MPI_THREAD_MULTIPLE`.
///
/// Throws `UnavailableError` on all ranks when the weights of a rank exceed its limit or its memory, when a rank cannot
/// start a thread, or when the backend serves one thread only. All other errors come from `wait()`.
[[nodiscard]] CROSSRANK_EXPORT ExportRequest iconsolidate(Collective const& world, StateDict const& weights,
                                                          Placements const& placements,
                                                          std::filesystem::path const& out,
                                                          BackgroundOptions const& options = {});

/// Options of `get_full_state_dict`.
struct FullStateOptions {
  ModelDescription model{};  ///< config and rules; sidecar files are not used
  int dst = 0;               ///< rank that receives the model
  int threads = 0;           ///< as in `ExportOptions`
  std::stop_token stop{};    ///< stops with `CancelledError`
};

/// Returns the whole model on rank `options.dst`, with the names of the result; an empty dictionary on other ranks.
///
/// Collective; costs and errors as for `consolidate`, without files. All ranks pass the same `options.dst`. The
/// receiver needs memory for the model in addition; `UnavailableError` on all ranks if less is free.
[[nodiscard]] CROSSRANK_EXPORT StateDict get_full_state_dict(Collective const& world, StateDict const& weights,
                                                             Placements const& placements,
                                                             FullStateOptions const& options = {});

/// Options of `reshard`.
struct ReshardOptions {
  ModelDescription model{};  ///< config and rules; sidecar files are not used
  /// Returns whether this rank gets the tensor of the result with this name, such as those of its pipeline stage.
  /// Empty: all. Other ranks of its new cell must give the same answers.
  std::function<bool(std::string const& name)> wants{};
  int threads = 0;         ///< as in `ExportOptions`
  std::stop_token stop{};  ///< stops with `CancelledError`
};

/// Redistributes the weights from layout `from` to layout `to`. Returns this rank's part.
///
/// Collective; costs and errors as for `get_full_state_dict`, where each rank receives its part. `from` says how
/// `weights` are sharded, and `to` how the result is sharded. Names in `to` are names of the whole model. The rules,
/// those of the file first, split the tensors over the `tp` ranks of `to`. A tensor without entries on this rank has a
/// dimension of length 0. `Partial` and `first_element` in `to` are a `UsageError`, and so is a tensor-parallel rank of
/// `to` that no rank has.
[[nodiscard]] CROSSRANK_EXPORT StateDict reshard(Collective const& world, StateDict const& weights,
                                                 Placements const& from, Placements const& to,
                                                 ReshardOptions const& options = {});

}  // namespace crossrank::checkpoint
