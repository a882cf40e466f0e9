#include <chrono>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/parts/part_folder.hpp"
#include "workspace/checkpoint/parts/part_merge.hpp"
#include "workspace/checkpoint/parts/parts_plan_state.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/output_writer.hpp"
#include "workspace/checkpoint/write/unchanged_inputs.hpp"

namespace crossrank::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char const* part_operation = "consolidate part";

/// One run of one part.
class PartWork {
 public:
  PartWork(PartsPlan::State const& plan, int part, PartOptions const& options) : plan_(plan), options_(options) {
    for (auto const& file : plan.file.files) {
      if (file.part == part) files_.push_back(file);
    }
  }

  Summary run() {
    auto const started = Clock::now();
    Summary summary{.files = static_cast<int>(files_.size())};
    for (auto const& file : files_) summary.bytes += file.bytes;
    summary.resumed_files = files_.empty() ? 0 : write();
    summary.elapsed = Clock::now() - started;
    return summary;
  }

 private:
  [[nodiscard]] WorkerPoolOptions pool_options(std::string_view stage) const {
    return {.operation = part_operation,
            .threads = options_.threads,
            .on_progress = options_.on_progress,
            .stop = options_.stop,
            .stage = stage};
  }

  /// Returns the number of files that other runs have finished.
  int write() {
    auto folder = PartFolder::open(plan_.file.out, plan_.id);
    if (!folder) return compare_published();
    try {
      return write_into(*folder);
    } catch (CancelledError const&) {
      throw;
    } catch (Error const&) {
      // The result may have been published while this part ran again. Its files were complete then.
      folder->end_run();
      auto const stage = folder->stage();
      if (stage == PlanStage::open) throw;
      return stage == PlanStage::gone ? compare_published() : static_cast<int>(files_.size());
    }
  }

  int write_into(PartFolder& folder) {
    if (folder.stage() == PlanStage::publishing) return static_cast<int>(files_.size());
    std::vector<PlannedFile> wanted;
    for (auto const& file : files_) {
      auto const state = folder.state_of(without_contents(file));
      bool const keep =
          state == PartFile::complete || (state == PartFile::unproven && options_.read_back == ReadBack::none);
      if (!keep) wanted.push_back(file);
    }
    if (wanted.empty()) return static_cast<int>(files_.size());
    auto merge = open_merge(wanted, folder);
    for (auto& file : merge.files) file.owner = 0;
    folder.begin_run(options_.read_back);
    auto const world = lone_world();
    compare_replicas(world, merge);
    UnchangedInputs inputs(part_operation, std::move(merge.inputs));
    inputs.assign_to(merge.files);
    OutputWriter writer(
        merge.files, 0, folder,
        {.read_back = options_.read_back, .before_record = [&](auto const& file) { inputs.require_for(file); }});
    run_worker_pool(world, writer, pool_options("writing"));
    folder.end_run();
    return static_cast<int>(files_.size() - wanted.size());
  }

  /// Opens only the inputs of the wanted files, if the plan has recipes for them.
  [[nodiscard]] PartMerge open_merge(std::vector<PlannedFile> const& wanted, PartFolder const& folder) const {
    if (auto const* const whole = plan_.known_whole()) return take_part(*whole, wanted);
    if (auto merge = open_part(plan_, wanted, folder.directory())) return *std::move(merge);
    return take_part(plan_.whole(), wanted);
  }

  void compare_replicas(Collective const& world, PartMerge const& merge) const {
    std::vector<std::size_t> tensors;
    for (auto const& file : merge.files) {
      for (auto const& tensor : file.tensors) tensors.push_back(tensor.tensor);
    }
    require_equal_replicas_of(world, *merge.layout, tensors, pool_options({}));
  }

  int compare_published() {
    require_published(plan_, take_part(plan_.whole(), files_).files, pool_options("comparing"));
    return static_cast<int>(files_.size());
  }

  PartsPlan::State const& plan_;
  std::vector<PlannedFile> files_{};
  PartOptions const& options_;
};

}  // namespace

Summary consolidate_part(PartsPlan const& plan, int part, PartOptions const& options) {
  require_part(plan.state(), part);
  require_thread_count(part_operation, options.threads);
  return PartWork(plan.state(), part, options).run();
}

}  // namespace crossrank::checkpoint
