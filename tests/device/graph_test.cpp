// Capture and graphs. Sources: "CUDA C++ Programming Guide", section CUDA Graphs (Guide), and "CUDA Driver API", Stream
// and Graph Management (API).
#include <thread>
#include <vector>

#include "tests/device/driver.hpp"

namespace device_test {
namespace {

class Capture : public Driver {
 protected:
  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
    ASSERT_EQ(cu("cuStreamBeginCapture_v2", s, mode), CUDA_SUCCESS);
  }
  CUresult end() { return cu("cuStreamEndCapture", s, &graph); }
  void SetUp() override {
    Driver::SetUp();
    s = stream();
    address = allocate(4096);
  }
  void TearDown() override {
    if (graph != nullptr) {
      EXPECT_EQ(cu("cuGraphDestroy", graph), CUDA_SUCCESS);
    }
    free(address);
    destroy(s);
    Driver::TearDown();
  }

  CUstream s = nullptr;
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
};

// Guide, Creating a Graph Using Stream Capture: work is not run but appended, and each launch runs it.
TEST_F(Capture, replays_what_it_has_captured) {
  int value = 0;
  ASSERT_EQ(cu("cuMemsetD32_v2", address, 1U, std::size_t{16}), CUDA_SUCCESS);
  begin();
  ASSERT_EQ(cu("cuMemsetD32Async", address, 2U, std::size_t{16}, s), CUDA_SUCCESS);
  ASSERT_EQ(end(), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(&value), address, sizeof value), CUDA_SUCCESS);
  EXPECT_EQ(value, 1);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cu("cuGraphInstantiateWithFlags", &executable, graph, 0ULL), CUDA_SUCCESS);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(cu("cuMemsetD32_v2", address, 1U, std::size_t{16}), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuCtxSynchronize"), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuGraphLaunch", executable, s), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(&value), address, sizeof value), CUDA_SUCCESS);
    EXPECT_EQ(value, 2);
  }
  EXPECT_EQ(cu("cuGraphExecDestroy", executable), CUDA_SUCCESS);
}

// Guide, Creating a Graph Using Stream Capture, and the vendor's sample simpleCudaGraphs, which captures copies from
// and to memory of malloc and of the stack: a node keeps the address, and each launch reads or writes what is there
// then.
TEST_F(Capture, keeps_the_addresses_of_pageable_memory) {
  std::vector<int> from(16, 1);
  std::vector<int> to(16, 0);
  auto const bytes = from.size() * sizeof(int);
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(cu("cuMemcpyHtoDAsync_v2", address, static_cast<void const*>(from.data()), bytes, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(to.data()), address, bytes, s), CUDA_SUCCESS);
  ASSERT_EQ(end(), CUDA_SUCCESS);
  EXPECT_EQ(to.front(), 0);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cu("cuGraphInstantiateWithFlags", &executable, graph, 0ULL), CUDA_SUCCESS);
  for (int const value : {2, 3}) {
    from.assign(from.size(), value);
    ASSERT_EQ(cu("cuGraphLaunch", executable, s), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
    EXPECT_EQ(to, from);
  }
  EXPECT_EQ(cu("cuGraphExecDestroy", executable), CUDA_SUCCESS);
}

// Guide, Cross-stream Dependencies and Events: another stream joins by an event and must be joined again.
TEST_F(Capture, follows_events_into_other_streams) {
  auto const other = stream();
  auto const fork = event();
  auto const join = event();
  begin();
  ASSERT_EQ(cu("cuEventRecord", fork, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamWaitEvent", other, fork, 0U), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemsetD32Async", address, 3U, std::size_t{16}, other), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuEventRecord", join, other), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamWaitEvent", s, join, 0U), CUDA_SUCCESS);
  EXPECT_EQ(end(), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuEventDestroy_v2", fork), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuEventDestroy_v2", join), CUDA_SUCCESS);
  destroy(other);
}

TEST_F(Capture, refuses_to_end_before_other_streams_are_joined) {
  auto const other = stream();
  auto const fork = event();
  begin();
  ASSERT_EQ(cu("cuEventRecord", fork, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamWaitEvent", other, fork, 0U), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemsetD32Async", address, 3U, std::size_t{16}, other), CUDA_SUCCESS);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(cu("cuEventDestroy_v2", fork), CUDA_SUCCESS);
  destroy(other);
}

// Guide, Prohibited and Unhandled Operations: waiting for a stream that is captured invalidates the capture.
TEST_F(Capture, is_invalidated_by_a_wait_for_its_stream) {
  begin();
  EXPECT_EQ(cu("cuStreamSynchronize", s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cu("cuMemsetD32Async", address, 3U, std::size_t{16}, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
}

// API, cuThreadExchangeStreamCaptureMode: an unsafe call fails, unless the thread's mode is relaxed.
TEST_F(Capture, allows_unsafe_calls_in_relaxed_mode_only) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(cu("cuThreadExchangeStreamCaptureMode", &mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  auto const fresh = allocate(4096);
  ASSERT_EQ(cu("cuThreadExchangeStreamCaptureMode", &mode), CUDA_SUCCESS);
  CUdeviceptr refused = 0;
  EXPECT_EQ(cu("cuMemAlloc_v2", &refused, std::size_t{4096}), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  free(fresh);
}

// Guide, Prohibited and Unhandled Operations: the legacy stream may not depend on a capture of a blocking stream.
TEST_F(Capture, is_invalidated_by_the_legacy_stream) {
  auto const blocking = stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(cu("cuStreamBeginCapture_v2", blocking, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuMemsetD32Async", address, 3U, std::size_t{16}, CUstream{}), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cu("cuStreamEndCapture", blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu("cuStreamBeginCapture_v2", CUstream{}, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  destroy(blocking);
}

// Guide, Prohibited and Unhandled Operations: an event from outside the capture may not be waited for inside.
TEST_F(Capture, is_isolated_from_events_outside) {
  auto const outside = event();
  auto const other = stream();
  ASSERT_EQ(cu("cuEventRecord", outside, other), CUDA_SUCCESS);
  begin();
  EXPECT_EQ(cu("cuStreamWaitEvent", s, outside, 0U), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu("cuEventDestroy_v2", outside), CUDA_SUCCESS);
  destroy(other);
}

// API, cuStreamIsCapturing: none, active, and invalidated until the capture is ended.
TEST_F(Capture, tells_its_status) {
  auto status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  auto const now = [&] {
    EXPECT_EQ(cu("cuStreamIsCapturing", s, &status), CUDA_SUCCESS);
    return status;
  };
  EXPECT_EQ(now(), CU_STREAM_CAPTURE_STATUS_NONE);
  begin();
  EXPECT_EQ(now(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cu("cuStreamQuery", s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(now(), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(now(), CU_STREAM_CAPTURE_STATUS_NONE);
}

// Guide, Prohibited and Unhandled Operations: an event that was recorded in a capture stands for nodes of the graph, so
// that it can be neither asked nor waited for, also in relaxed mode.
TEST_F(Capture, is_invalidated_by_a_query_of_its_events) {
  auto const inside = event();
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(cu("cuEventRecord", inside, s), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuEventQuery", inside), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu("cuEventDestroy_v2", inside), CUDA_SUCCESS);
}

// API, cuThreadExchangeStreamCaptureMode: in relaxed mode a thread may query other events and allocate memory.
TEST_F(Capture, stays_valid_in_relaxed_mode_when_its_thread_looks_at_other_events) {
  auto const outside = event();
  auto const other = stream();
  ASSERT_EQ(cu("cuEventRecord", outside, other), CUDA_SUCCESS);
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  while (cu("cuEventQuery", outside) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
  auto const fresh = allocate(4096);
  EXPECT_EQ(end(), CUDA_SUCCESS);
  free(fresh);
  EXPECT_EQ(cu("cuEventDestroy_v2", outside), CUDA_SUCCESS);
  destroy(other);
}

// Guide, Prohibited and Unhandled Operations: two captures cannot be joined.
TEST_F(Capture, is_invalidated_by_a_merge_with_another_one) {
  auto const other = stream();
  auto const inside = event();
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(cu("cuStreamBeginCapture_v2", other, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuEventRecord", inside, s), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuStreamWaitEvent", other, inside, 0U), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CUgraph none = nullptr;
  EXPECT_EQ(cu("cuStreamEndCapture", other, &none), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu("cuEventDestroy_v2", inside), CUDA_SUCCESS);
  destroy(other);
}

// API, cuStreamEndCapture: by the thread that began it.
TEST_F(Capture, is_ended_by_the_thread_that_began_it) {
  begin();
  std::thread([&] {
    ASSERT_EQ(cu("cuCtxSetCurrent", context), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuStreamEndCapture", s, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace device_test
