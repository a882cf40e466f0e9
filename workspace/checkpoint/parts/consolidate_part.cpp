#include <chrono>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/parts/part_folder.hpp"
#include "workspace/checkpoint/parts/parts_plan_state.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/output_writer.hpp"

namespace crossrank::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char const* part_operation = "consolidate part";

/// One run of one part.
class PartWork {
 public:
  PartWork(PartsPlan::State const& plan, int part, PartOptions const& options)
      : plan_(plan), files_(files_of_part(plan, part)), options_(options) {}

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
    auto folder = PartFolder::open(plan_.file.out, plan_.request.id);
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
    std::vector<OutputFile> wanted;
    for (auto& file : files_) {
      auto const state = folder.state_of(file);
      bool const keep =
          state == PartFile::complete || (state == PartFile::unproven && options_.read_back == ReadBack::none);
      if (keep) continue;
      wanted.push_back(file);
      wanted.back().owner = 0;
    }
    if (wanted.empty()) return static_cast<int>(files_.size());
    folder.begin_run(options_.read_back);
    auto const world = lone_world();
    compare_replicas(world, wanted);
    OutputWriter writer(wanted, 0, folder, {.read_back = options_.read_back});
    run_worker_pool(world, writer, pool_options("writing"));
    require_unchanged(plan_.request);
    folder.end_run();
    return static_cast<int>(files_.size() - wanted.size());
  }

  void compare_replicas(Collective const& world, std::vector<OutputFile> const& wanted) const {
    std::vector<std::size_t> tensors;
    for (auto const& file : wanted) {
      for (auto const& tensor : file.tensors) tensors.push_back(tensor.tensor);
    }
    require_equal_replicas_of(world, *plan_.merge.state().layout, tensors, pool_options({}));
  }

  int compare_published() {
    require_published(plan_, files_, pool_options("comparing"));
    return static_cast<int>(files_.size());
  }

  PartsPlan::State const& plan_;
  std::vector<OutputFile> files_;
  PartOptions const& options_;
};

}  // namespace

Summary consolidate_part(PartsPlan const& plan, int part, PartOptions const& options) {
  require_part(plan.state(), part);
  return PartWork(plan.state(), part, options).run();
}

}  // namespace crossrank::checkpoint
