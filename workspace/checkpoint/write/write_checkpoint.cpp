#include "workspace/checkpoint/write/write_checkpoint.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/codec/json/python_json.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"
#include "workspace/checkpoint/write/job/orphaned_job.hpp"
#include "workspace/checkpoint/write/output_writer.hpp"
#include "workspace/checkpoint/write/unchanged_inputs.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/written_result.hpp"

namespace crossrank::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t copy_block = std::size_t{1} << 20;

void stage(ExtraFile const& extra, platform::Directory const& work) {
  auto const name = job_file_name(extra.name);
  (void)work.remove(name, "checkpoint write");  // left by a killed run
  if (extra.copy_of.empty()) {
    TemporaryFile file(work, name, extra.text.size(), Caching::page_cache);
    file.write_at(0, std::as_bytes(std::span(extra.text)));
    file.sync();
    return file.close();
  }
  auto const from = std::make_shared<FilePool>()->open(extra.copy_of);
  TemporaryFile file(work, name, from->size(), Caching::page_cache);
  std::vector<std::byte> block(std::min<std::uint64_t>(copy_block, from->size()));
  for (std::uint64_t at = 0; at < from->size(); at += block.size()) {
    auto const part = std::span(block).first(std::min<std::uint64_t>(block.size(), from->size() - at));
    from->read_at(at, part);
    file.write_at(at, part);
  }
  file.sync();
  file.close();
}

/// The work of one job on this rank, from making the folder to removing it.
class Writing {
 public:
  Writing(Collective const& world, WriteRequest const& request)
      : world_(world), request_(request), inputs_(request.operation, request.inputs) {}

  Summary run() {
    auto const started = Clock::now();
    Summary summary{.files = static_cast<int>(request_.files.size())};
    for (auto const& file : request_.files) summary.bytes += file.bytes;
    if (is_written()) {
      summary.resumed_files = compare();
    } else {
      summary.resumed_files = write_and_commit();
    }
    summary.elapsed = Clock::now() - started;
    return summary;
  }

 private:
  /// Returns whether the output seems to hold the result of this job already. Collective.
  bool is_written() {
    agree(world_, request_.operation, [&] {
      std::error_code error;
      if (!std::filesystem::exists(request_.out, error)) output_ = OutputFolder::made_by_job;
      if (world_.rank() == 0) written_ = WrittenResult::find(request_);
    });
    return any(written_.has_value());
  }

  /// Compares the output with the result of this job. Returns the number of files. Collective.
  int compare() {
    std::optional<OutputWriter> job;
    agree(world_, request_.operation, [&] {
      job.emplace(request_.files, world_.rank(), platform::Directory::open(request_.out, request_.operation));
    });
    run_worker_pool(world_, *job, pool_options("comparing"));
    agree(world_, request_.operation, [&] {
      if (world_.rank() != 0) return;
      written_->compare_extras(request_);
      inputs_.require_all();
      written_->remove_folder();
    });
    return static_cast<int>(request_.files.size());
  }

  /// Writes and commits. Returns the number of files that an earlier run had finished. Collective.
  int write_and_commit() {
    int resumed = 0;
    try {
      bool const committing = prepare();
      if (!committing) resumed = write();
      agree(world_, request_.operation, [&] {
        if (world_.rank() == 0) commit();
      });
    } catch (Error const& error) {
      // After the loss of a rank, the finished files of all ranks stay for a run with --resume.
      bool const lost = error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::timeout;
      if (lost && request_.can_resume) {
        auto info = error.info();
        info.hint = "run again with `resume`: finished files are kept";
        throw_error(error.code(), std::move(info));
      }
      if (lost && request_.resume) throw;
      remove_unless_resumed();
      if (is_death_of_first_rank(error)) remove_orphaned_job(request_.out, request_.id, output_);
      throw;
    } catch (...) {  // of `on_progress`, or too little memory
      remove_unless_resumed();
      throw;
    }
    return resumed;
  }

  void remove_unless_resumed() {
    if (world_.rank() == 0 && folder_ && !request_.resume) folder_->remove();
  }

  /// Returns whether this host has rank 0 and the error says that it has died.
  [[nodiscard]] bool is_death_of_first_rank(Error const& error) const {
    auto const local = world_.transport()->node_ranks();
    auto const lost = error.failed_ranks();
    return error.code() == ErrorCode::peer_lost && std::ranges::find(local, 0) != local.end() &&
           std::ranges::find(lost, 0) != lost.end();
  }

  /// Returns whether `mine` is true on any rank. Collective.
  bool any(bool mine) {
    std::array<std::uint64_t, 1> all{mine ? 1U : 0U};
    if (world_.world_size() > 1) world_.all_reduce(std::span<std::uint64_t>(all), ReduceOp::max);
    return all[0] != 0;
  }

  [[nodiscard]] WorkerPoolOptions pool_options(std::string_view stage) const {
    return {.operation = request_.operation,
            .threads = request_.threads,
            .on_progress = request_.on_progress,
            .stop = request_.stop,
            .stage = stage,
            .exchange = request_.exchange};
  }

  /// Makes the folder. Returns whether a killed run had begun to commit, so that only the commit is left.
  bool prepare() {
    agree(world_, request_.operation, [&] {
      if (world_.rank() == 0) folder_.emplace(JobFolder::make(job_request(request_)));
    });
    bool const committing = any(world_.rank() == 0 && folder_->was_committing());
    agree(world_, request_.operation, [&] {
      if (world_.rank() != 0) open_folder_of_first_rank();
    });
    return committing;
  }

  void open_folder_of_first_rank() try {
    folder_.emplace(JobFolder::open({.out = request_.out, .id = request_.id}));
  } catch (IoError const& error) {
    if (error.system_errno() != ENOENT) throw;
    auto info = error.info();
    info.message = "this rank does not see the folder that rank 0 has made in the output";
    info.hint = "give all ranks the same directory, as an absolute path, on a file system that all hosts share";
    throw IoError(std::move(info));
  }

  int write() {
    std::optional<OutputWriter> job;
    agree(world_, request_.operation, [&] {
      inputs_.assign_to(request_.files);
      job.emplace(request_.files, world_.rank(), *folder_,
                  OutputWriter::Options{.read_back = request_.read_back,
                                        .resume = request_.resume,
                                        // A run that resumes takes up the recorded files, whatever ends this one.
                                        .before_record = [this](auto const& file) { inputs_.require_for(file); }});
    });
    run_worker_pool(world_, *job, pool_options("writing"));
    std::array<std::uint64_t, 1> resumed{static_cast<std::uint64_t>(job->resumed_files())};
    if (world_.world_size() > 1) world_.all_reduce(std::span<std::uint64_t>(resumed), ReduceOp::sum);
    return static_cast<int>(resumed[0]);
  }

  void commit() {
    if (!folder_->was_committing()) {
      inputs_.require_all();
      write_extra_files(request_, folder_->directory());
    }
    folder_->commit();
    folder_->remove_after_success();
  }

  Collective const& world_;
  WriteRequest const& request_;
  UnchangedInputs inputs_;
  OutputFolder output_ = OutputFolder::found;
  std::optional<JobFolder> folder_{};
  std::optional<WrittenResult> written_{};
};

/// Replaces the integers under those of the keys that exist by `value`. Returns whether anything changed.
bool replace_size(Json& object, std::initializer_list<char const*> keys, int value) {
  bool changed = false;
  for (auto const* key : keys) {
    auto const found = object.find(key);
    if (found == object.end() || !found->is_number_integer() || *found == value) continue;
    *found = value;
    changed = true;
  }
  return changed;
}

/// Returns whether the config's "mapping" was added by a split with groups of experts. Such a mapping has exactly these
/// keys and is in a Hugging Face config. TensorRT-LLM's configs have their own mapping.
bool is_mapping_of_split(Json const& config) {
  auto const mapping = config.find("mapping");
  if (mapping == config.end() || !mapping->is_object() || !config.contains("model_type")) return false;
  static constexpr std::array<char const*, 5> keys{"world_size", "tp_size", "pp_size", "moe_tp_size", "moe_ep_size"};
  return mapping->size() == keys.size() &&
         std::all_of(keys.begin(), keys.end(), [&](auto const* key) { return mapping->contains(key); });
}

}  // namespace

std::uint64_t size_of(ExtraFile const& extra) {
  if (extra.copy_of.empty()) return extra.text.size();
  return std::make_shared<FilePool>()->open(extra.copy_of)->size();
}

JobRequest job_request(WriteRequest const& request) {
  JobRequest job{.out = request.out, .id = request.id, .force = request.force, .resume = request.resume};
  for (auto const& file : request.files) {
    job.names.push_back(file.name);
    job.bytes += file.bytes;
  }
  for (auto const& extra : request.extras) {
    job.names.push_back(extra.name);
    job.bytes += size_of(extra);
  }
  return job;
}

void write_extra_files(WriteRequest const& request, platform::Directory const& work) {
  for (auto const& extra : request.extras) stage(extra, work);
  work.sync(request.operation);
}

Summary write_checkpoint(Collective const& world, WriteRequest const& request) { return Writing(world, request).run(); }

Json corrected_config(Json config, OutputGrid grid) {
  auto const [tp, moe_ep] = grid;
  if (!config.is_object()) return config;
  // A merge of these ranks needs to know the groups.
  if (moe_ep > 1) {
    auto& mapping = config["mapping"];
    if (!mapping.is_object()) mapping = {{"world_size", tp}, {"tp_size", tp}, {"pp_size", 1}};
    mapping["moe_tp_size"] = tp / moe_ep;
    mapping["moe_ep_size"] = moe_ep;
  }
  if (tp == 1 && is_mapping_of_split(config)) config.erase("mapping");
  if (auto const mapping = config.find("mapping"); mapping != config.end() && mapping->is_object()) {
    replace_size(*mapping, {"tp_size", "world_size"}, tp);
    replace_size(*mapping, {"pp_size"}, 1);
    replace_size(*mapping, {"moe_tp_size"}, tp / moe_ep);
    replace_size(*mapping, {"moe_ep_size"}, moe_ep);
  }
  replace_size(config, {"tensor_model_parallel_size", "tensor_parallel_size", "tp_size"}, tp);
  replace_size(config, {"pipeline_model_parallel_size", "pipeline_parallel_size", "pp_size"}, 1);
  replace_size(config, {"expert_model_parallel_size", "expert_parallel_size", "ep_size"}, 1);
  return config;
}

std::vector<ExtraFile> extra_files(ShardSet const& set, OutputGrid grid, ExtraFile const& index) {
  std::vector<ExtraFile> extras;
  std::optional<ExtraFile> config;
  for (auto const& companion : set.sidecars) {
    ExtraFile extra{.name = companion.name, .copy_of = companion.path};
    if (extra.name != "config.json") {
      extras.push_back(std::move(extra));
      continue;
    }
    auto const corrected = corrected_config(set.config, grid);
    // An unchanged config is copied byte for byte.
    if (corrected != set.config) extra = {.name = extra.name, .text = codec::to_python_json(corrected) + "\n"};
    config = std::move(extra);
  }
  if (!index.name.empty()) extras.push_back(index);
  if (config) extras.push_back(std::move(*config));
  return extras;
}

}  // namespace crossrank::checkpoint
