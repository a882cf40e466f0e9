#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include <crossrank/collective.hpp>
#include <crossrank/stream.hpp>
#include <crossrank/tensor.hpp>

#include "tests/collectives/device/gpu_tensors.hpp"
#include "tests/support/process_ranks.hpp"

/// Ranks as processes, each with an emulated GPU of its own and the emulated NCCL.
namespace crossrank::test {

/// Which emulated NCCL the ranks have.
enum class EmulatedNccl { newest, v2_22, v2_18, none };

/// Returns options for ranks on emulated GPUs.
[[nodiscard]] RankOptions gpu_ranks(EmulatedNccl version = EmulatedNccl::newest, int gpus = 4);

/// Returns options for one process of a scenario that makes ranks in threads, with more variables in its environment,
/// which a process reads once.
[[nodiscard]] RankOptions one_process(std::map<std::string, std::string> const& environment = {});

/// Runs a scenario on `ranks` processes and expects that all of them succeed.
void expect_job_ok(int ranks, std::string_view scenario, RankOptions options = gpu_ranks());

/// Joins the job of this process.
[[nodiscard]] Collective connect_gpu_rank(ProgressMode progress = ProgressMode::caller,
                                          CheckLevel check = CheckLevel::local);
/// Joins it with ranks that wait for each other to compare a call, before they enqueue it.
[[nodiscard]] inline Collective connect_comparing_gpu_rank() {
  return connect_gpu_rank(ProgressMode::caller, CheckLevel::collective);
}

/// Ends a scenario: expects that the rank has not misused the driver, and returns 0.
[[nodiscard]] int end_gpu_rank();

/// Returns a tensor on this rank's GPU whose elements on rank r are r + 1.
[[nodiscard]] Tensor filled(Collective const& world, std::int64_t count);

/// Returns how often this process has called a function of the emulated libraries, or an event has happened.
[[nodiscard]] unsigned long long emulated_count(char const* name);
/// Runs `call`, during which `function` of the emulated libraries fails on rank 1. Expects that rank 1 gets the error
/// of the function, and rank 0 an error that names rank 1 and the function.
void expect_refused(int rank, char const* function, std::function<void()> const& call);
/// Waits until this rank's watchdog has aborted a communicator.
void await_abort();
/// Blocks a stream forever: the work that is enqueued later does not start.
void block_stream(Stream const& stream);
/// Makes NCCL report the error on each communicator of this process, as soon as its state is queried.
void fail_communicators(int nccl_result);
/// Sets all counters to zero.
void reset_emulated_counts();

}  // namespace crossrank::test
