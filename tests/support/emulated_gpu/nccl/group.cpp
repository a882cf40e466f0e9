#include "tests/support/emulated_gpu/nccl/group.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/support/emulated_gpu/nccl/version.hpp"

extern "C" CUresult cuCtxSetCurrent(CUcontext);

namespace emulated::nccl {
namespace {

struct Batch {
  std::shared_ptr<Communicator> comm;
  cudaStream_t stream;
  std::vector<Operation> operations;
};
struct Job {
  std::shared_ptr<Communicator> comm;
  std::function<void()> run;
};
struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Job> jobs;
  std::vector<Batch> batches;
};
Group& group() {
  thread_local Group instance;
  return instance;
}

ncclResult_t run_job(Job const& job) {
  try {
    cuCtxSetCurrent(job.comm->context);
    job.run();
    return ncclSuccess;
  } catch (Refused const& refused) {
    remember(refused.why);
    return refused.result;
  } catch (Failure const&) {
    return ncclUnhandledCudaError;
  }
}

/// EMULATED_NCCL_IN_PROGRESS: when the group of a communicator that does not block is done. "always": later; "never":
/// at once; "for_ever": never, as without an answer of another rank; unset: every second time later. Where the launch
/// queue has a limit, unset means as in the real versions: later since 2.23, which has a thread for launches.
std::string in_progress() {
  char const* const mode = std::getenv("EMULATED_NCCL_IN_PROGRESS");
  return mode == nullptr ? "" : mode;
}

bool later() {
  static std::atomic<unsigned> calls{0};
  auto const mode = in_progress();
  if (mode.empty() && std::getenv("EMULATED_GPU_LAUNCH_QUEUE") != nullptr) return version() >= 22300;
  return mode.empty() ? calls++ % 2 == 0 : mode == "always" || mode == "for_ever";
}

ncclResult_t flush_jobs(std::vector<Job> jobs) {
  ncclResult_t result = ncclSuccess;
  std::vector<std::pair<std::thread, std::shared_ptr<ncclResult_t>>> threads;
  for (auto& job : jobs) {
    if (!job.comm->blocking) {
      job.comm->state = ncclInProgress;
      result = ncclInProgress;
      leave_job(job.comm);
      std::thread([job] { job.comm->state = run_job(job); }).detach();
    } else if (jobs.size() == 1) {
      return run_job(job);
    } else {
      auto outcome = std::make_shared<ncclResult_t>(ncclSuccess);
      threads.emplace_back([job, outcome] { *outcome = run_job(job); }, outcome);
    }
  }
  for (auto& [thread, outcome] : threads) {
    thread.join();
    if (*outcome != ncclSuccess) result = *outcome;
  }
  return result;
}

ncclResult_t flush(Group& g) {
  auto const error = g.error;
  auto jobs = std::move(g.jobs);
  auto batches = std::move(g.batches);
  g = {};
  if (error != ncclSuccess) return error;
  auto result = flush_jobs(std::move(jobs));
  if (result != ncclSuccess && result != ncclInProgress) return result;
  for (auto& batch : batches) {
    if (batch.comm->blocking || !later()) {
      if (auto const one = enqueue(batch.comm, batch.stream, std::move(batch.operations)); one != ncclSuccess)
        return one;
      continue;
    }
    batch.comm->state = ncclInProgress;
    result = ncclInProgress;
    leave_job(batch.comm);
    std::thread([batch] {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      while (in_progress() == "for_ever" && !batch.comm->stopped())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      cuCtxSetCurrent(batch.comm->context);
      batch.comm->state = batch.comm->stopped() ? ncclSuccess : enqueue(batch.comm, batch.stream, batch.operations);
    }).detach();
  }
  return result;
}

}  // namespace

ncclResult_t add(std::shared_ptr<Communicator> comm, cudaStream_t stream, Operation operation) {
  Group& g = group();
  auto const same = [&](Batch const& batch) { return batch.comm == comm; };
  auto const found = std::find_if(g.batches.begin(), g.batches.end(), same);
  if (found == g.batches.end()) {
    g.batches.push_back({std::move(comm), stream, {operation}});
  } else {
    demand(found->stream == stream, ncclInvalidUsage, "a group uses one stream for each communicator here");
    found->operations.push_back(operation);
  }
  return g.depth > 0 ? ncclSuccess : flush(g);
}

ncclResult_t add_job(std::shared_ptr<Communicator> comm, std::function<void()> job) {
  Group& g = group();
  g.jobs.push_back({std::move(comm), std::move(job)});
  return g.depth > 0 ? ncclSuccess : flush(g);
}

}  // namespace emulated::nccl

using namespace emulated::nccl;

extern "C" {

ncclResult_t ncclGroupStart() {
  return call("ncclGroupStart", [] {
    ++group().depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  return call("ncclGroupEnd", [] {
    Group& g = group();
    demand(g.depth > 0, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--g.depth > 0) return ncclSuccess;
    return flush(g);
  });
}
}
