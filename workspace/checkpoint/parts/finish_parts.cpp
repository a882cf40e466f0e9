#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/parts/part_folder.hpp"
#include "workspace/checkpoint/parts/parts_plan_state.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"
#include "workspace/checkpoint/write/job/job_folder.hpp"
#include "workspace/checkpoint/write/output_writer.hpp"
#include "workspace/checkpoint/write/unchanged_inputs.hpp"
#include "workspace/checkpoint/write/written_result.hpp"

namespace crossrank::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char const* finish_operation = "finish parts";
constexpr std::size_t max_named = 20;

/// Finishes the job of a plan.
class FinishJob {
 public:
  FinishJob(PartsPlan::State const& plan, FinishOptions const& options)
      : plan_(plan), request_(plan.whole().request), options_(options) {}

  Summary run() {
    auto const started = Clock::now();
    Summary summary{.files = static_cast<int>(request_.files.size())};
    for (auto const& file : request_.files) summary.bytes += file.bytes;
    publish();
    summary.resumed_files = summary.files;
    summary.elapsed = Clock::now() - started;
    return summary;
  }

 private:
  [[nodiscard]] WorkerPoolOptions pool_options() const {
    return {.operation = finish_operation,
            .threads = options_.threads,
            .on_progress = options_.on_progress,
            .stop = options_.stop,
            .stage = "comparing"};
  }

  void publish() {
    auto folder = PartFolder::open(plan_.file.out, plan_.id);
    if (!folder) return compare_published();
    if (options_.dry_run) return check(*folder);
    if (folder->is_published()) return remove_published(*folder);
    auto job = JobFolder::make(publish_request());
    if (folder->is_published() || folder->stage() == PlanStage::gone) {
      // Another process has published the result, or somebody has removed the parts.
      if (!PartFolder::open(plan_.file.out, plan_.id)) job.remove();
      return compare_published();
    }
    if (!job.was_committing()) check_and_write_extras(*folder);
    job.commit();
    mark_published(*folder);
    job.remove_after_success();
  }

  /// Throws what a call that publishes would throw, as far as that is known before.
  void check(PartFolder const& folder) {
    if (folder.stage() != PlanStage::open) return;  // what is left is renames
    JobFolder::check(publish_request());
    require_publishable(folder);
  }

  [[nodiscard]] JobRequest publish_request() const {
    auto request = folder_request(plan_, options_.force);
    request.bytes = 0;  // the parts have written them, or `require_complete` names these parts
    return request;
  }

  void require_publishable(PartFolder const& folder) {
    require_complete(folder);
    UnchangedInputs(request_.operation, request_.inputs).require_all();
  }

  void check_and_write_extras(PartFolder const& folder) {
    require_publishable(folder);
    write_extra_files(request_, folder.directory());
    CROSSRANK_CRASH_POINT("parts.written");
  }

  /// Marks the folder, so that its files are not taken for missing parts while they are removed.
  static void mark_published(PartFolder const& folder) {
    auto const& work = folder.directory();
    if (platform::system().renameat(work.fd(), commit_record_name, work.fd(), published_name) != 0 &&
        !folder.is_published())
      platform::throw_io(std::string(finish_operation) + ": rename", work.path_of(commit_record_name), errno);
    CROSSRANK_CRASH_POINT("parts.published");
  }

  void remove_published(PartFolder const& folder) const {
    auto const lock = take_lock(folder.directory());
    if (lock) remove_job(platform::Directory::open(plan_.file.out, finish_operation), folder.directory());
  }

  /// Throws `FormatError` with the missing and damaged parts.
  void require_complete(PartFolder const& folder) {
    std::map<int, std::string> wrong;
    for (auto const& file : request_.files) {
      if (wrong.contains(file.owner)) continue;
      if (options_.stop.stop_requested())
        throw CancelledError({.operation = finish_operation, .message = "cancelled by the caller"});
      auto const state = folder.state_of(file);
      bool const reads =
          options_.check == PartCheck::all || (options_.check == PartCheck::changed && state == PartFile::unproven);
      if (state == PartFile::missing) {
        wrong.emplace(file.owner, file.name + " is missing or incomplete");
      } else if (reads && !has_recorded_bytes(folder, file)) {
        if (!options_.dry_run) folder.forget(file.name);
        wrong.emplace(file.owner, file.name + " does not match its checksums");
      }
    }
    if (wrong.empty()) return;
    std::vector<std::string> numbers;
    std::vector<std::string> details;
    for (auto const& [part, why] : wrong) {
      numbers.push_back(std::to_string(part));
      details.push_back("part " + std::to_string(part) + ": " + why);
    }
    auto const parts = std::to_string(plan_.file.options.parts);
    auto only = wrong.size() == 1 ? wrong.begin()->second : std::string();
    throw FormatError({.operation = finish_operation,
                       .message = std::to_string(wrong.size()) + " of " + parts +
                                  " parts are missing or damaged: " + list_text(numbers, max_named),
                       .got = std::move(only),
                       .resource = plan_.file.out.string(),
                       .hint = "run these parts again (they count from 0), then finish",
                       .details = std::move(details),
                       .section = "parts"});
  }

  /// Reads a file and compares it with the checksums that its part recorded.
  bool has_recorded_bytes(PartFolder const& folder, OutputFile const& file) {
    auto one = file;
    one.owner = 0;
    auto const world = lone_world();
    try {
      OutputWriter reader(std::span(&one, 1), 0, folder, {.resume = true});
      run_worker_pool(world, reader, pool_options());
      return true;
    } catch (IoError const& error) {
      if (error.info().system_errno != 0) throw;
      return false;
    } catch (FormatError const&) {
      return false;
    }
  }

  void compare_published() {
    require_published(plan_, request_.files, pool_options());
    auto request = request_;
    request.resume = true;
    request.force = false;
    auto const result = WrittenResult::find(request);
    if (!result) throw output_differs(plan_.file.out, "another checkpoint's file");
    result->compare_extras(request);
    UnchangedInputs(request_.operation, request_.inputs).require_all();
  }

  PartsPlan::State const& plan_;
  WriteRequest const& request_;
  FinishOptions const& options_;
};

}  // namespace

Summary finish_parts(PartsPlan const& plan, FinishOptions const& options) {
  require_thread_count(finish_operation, options.threads);
  return FinishJob(plan.state(), options).run();
}

}  // namespace crossrank::checkpoint
