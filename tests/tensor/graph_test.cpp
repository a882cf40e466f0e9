// Graphs of work on tensors, on the emulated driver, which invalidates captures by the rules of the real one.
#include <cstdlib>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/tensor.hpp>

#include "tests/support/emulated_driver.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank {
namespace {

using cuda::Graph;
using test::calls;
using test::live;
using test::thrown;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto gpu = Device::cuda(0);

class DeviceGraph : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1); }
  void SetUp() override { test::reset_calls(); }
  void TearDown() override { EXPECT_EQ(test::reports(), 0U); }
};

/// Returns a tensor that the work of any stream can use.
Tensor on_gpu(std::vector<float> const& values) {
  auto made = Tensor::of(values, {static_cast<std::int64_t>(values.size())}).to(gpu);
  current_stream(gpu).synchronize();
  return made;
}

std::vector<float> host_values(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  auto const values = host.as<float>();
  return {values.begin(), values.end()};
}

/// Writes new elements into a tensor, in the order of `stream`.
void write(Tensor& tensor, std::vector<float> const& values, Stream const& stream) {
  StreamGuard const guard(stream);
  tensor.copy_from(Tensor::of(values, tensor.shape()));
}

std::vector<float> read(Tensor const& tensor, Stream const& stream) {
  StreamGuard const guard(stream);
  return host_values(tensor);
}

TEST_F(DeviceGraph, does_the_captured_work_at_each_replay_and_not_before) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto in = on_gpu({1, 2});
  auto out = on_gpu({0, 0});
  auto const graph = Graph::capture(stream, [&] { out.copy_from(in); });
  EXPECT_TRUE(graph);
  EXPECT_THAT(host_values(out), ElementsAre(0, 0));
  graph.replay();
  EXPECT_THAT(host_values(out), ElementsAre(1, 2));
  write(in, {3, 4}, stream);
  graph.replay(stream);
  EXPECT_THAT(host_values(out), ElementsAre(3, 4));
}

TEST_F(DeviceGraph, keeps_the_memory_that_its_work_uses) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto in = on_gpu({1, 2});
  auto out = on_gpu({0, 0});
  auto made_before = on_gpu({0, 0});
  auto const live_before = live("allocation");
  {
    auto const graph = Graph::capture(stream, [&, used = std::exchange(made_before, Tensor{})]() mutable {
      used.copy_from(in);
      auto const made_inside = used.clone();
      out.copy_from(made_inside);
      used = {};
    });
    // Fresh memory must not be that of the graph.
    std::vector<Tensor> others;
    for (int i = 0; i < 8; ++i) others.push_back(on_gpu({7, 7}));
    graph.replay();
    EXPECT_THAT(host_values(out), ElementsAre(1, 2));
    for (auto const& other : others) EXPECT_THAT(host_values(other), Each(7));
    EXPECT_GT(live("allocation"), live_before);
  }
  for (int i = 0; i < 2; ++i) {  // the end of the graph frees tensors, whose memory then waits for their stream
    stream.synchronize();
    cuda::trim(gpu);
  }
  EXPECT_LT(live("allocation"), live_before) << "the memory of the graph and the tensor that it was given";
}

/// The stream of the replay is stuck. It is not the one that was captured, which the memory knows.
TEST_F(DeviceGraph, keeps_its_memory_until_its_last_replay_has_ended) {
  auto const captured = Stream::create(gpu);
  auto const replaying = Stream::create(gpu);
  StreamGuard const guard(Stream::create(gpu));
  auto out = on_gpu({0, 0});
  auto in = on_gpu({1, 2});
  auto graph = Graph::capture(captured, [&] { out.copy_from(in); });
  test::HeldStream held(replaying.native());
  graph.replay(replaying);
  graph = {};
  in = {};
  auto const other = on_gpu({7, 7});
  held.release();
  EXPECT_THAT(read(out, replaying), ElementsAre(1, 2));
  EXPECT_THAT(host_values(other), ElementsAre(7, 7));
}

TEST_F(DeviceGraph, keeps_the_memory_of_tensors_that_are_dropped_after_its_capture) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto in = on_gpu({1, 2});
  auto out = on_gpu({0, 0});
  auto const graph = Graph::capture(stream, [&] { out.copy_from(in); });
  in = {};
  auto const other = on_gpu({7, 7});
  graph.replay();
  EXPECT_THAT(host_values(out), ElementsAre(1, 2));
  EXPECT_THAT(host_values(other), ElementsAre(7, 7));
}

/// A tensor that was made inside and is dropped after the capture: only the graph keeps its memory.
TEST_F(DeviceGraph, keeps_the_memory_of_a_tensor_that_leaves_its_body) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto in = on_gpu({1, 2});
  auto out = on_gpu({0, 0});
  auto const live_before = live("allocation");
  {
    Tensor made_inside;
    auto const graph = Graph::capture(stream, [&] {
      made_inside = in.clone();
      out.copy_from(made_inside);
    });
    made_inside = {};
    stream.synchronize();
    cuda::trim(gpu);  // frees what nobody keeps
    EXPECT_GT(live("allocation"), live_before);
    for (int replays = 0; replays < 3; ++replays) {
      graph.replay();
      EXPECT_THAT(host_values(out), ElementsAre(1, 2));
    }
  }
  for (int i = 0; i < 2; ++i) {  // as above
    stream.synchronize();
    cuda::trim(gpu);
  }
  EXPECT_EQ(live("allocation"), live_before);
}

TEST_F(DeviceGraph, follows_events_into_other_streams) {
  auto const stream = Stream::create(gpu);
  auto const other = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto in = on_gpu({1, 2});
  auto middle = on_gpu({0, 0});
  auto out = on_gpu({0, 0});
  stream.synchronize();
  auto const graph = Graph::capture(stream, [&] {
    other.wait(stream.record());
    {
      StreamGuard const on_other(other);
      middle.copy_from(in);
    }
    stream.wait(other.record());
    out.copy_from(middle);
  });
  graph.replay();
  EXPECT_THAT(host_values(out), ElementsAre(1, 2));
}

TEST_F(DeviceGraph, a_wait_of_the_host_inside_is_a_usage_error) {
  auto const stream = Stream::create(gpu);
  auto tensor = on_gpu({1, 2});
  EXPECT_THROW(static_cast<void>(Graph::capture(stream, [&] { static_cast<void>(host_values(tensor)); })), UsageError);
  EXPECT_FALSE(stream.is_capturing());
  EXPECT_THAT(read(tensor, stream), ElementsAre(1, 2)) << "the stream continues";
}

/// The driver would record the address of the memory, and a replay would read what is there by then.
TEST_F(DeviceGraph, a_copy_with_pageable_memory_is_a_usage_error_and_leaves_the_capture_valid) {
  auto const stream = Stream::create(gpu);
  auto const in = on_gpu({1, 2});
  auto out = on_gpu({0, 0});
  auto const graph = Graph::capture(stream, [&] {
    out.copy_from(in);
    auto const host = Tensor::of(std::vector<float>{7, 7}, {2});
    EXPECT_THAT(thrown<UsageError>([&] { out.copy_from(host); }).info().hint, HasSubstr("pinned memory"));
    EXPECT_THROW(static_cast<void>(host.to(gpu)), UsageError);
    EXPECT_THROW(out.copy_from(host, {.non_blocking = true}), UsageError);
    EXPECT_THROW(static_cast<void>(host_values(out)), UsageError);
  });
  graph.replay(stream);
  EXPECT_THAT(read(out, stream), ElementsAre(1, 2)) << "the refused copies are not part of the graph";
}

TEST_F(DeviceGraph, reads_pinned_memory_at_each_replay) {
  auto const stream = Stream::create(gpu);
  auto out = on_gpu({0, 0});
  auto pinned = Tensor::zeros({2}, Dtype::f32, MemoryOptions{.pinned = true});
  auto const graph = Graph::capture(stream, [&] {
    EXPECT_THROW(out.copy_from(pinned), UsageError) << "the host would wait";
    out.copy_from(pinned, {.non_blocking = true});
  });
  for (float const value : {1.F, 2.F}) {
    for (auto& element : pinned.as_mutable<float>()) element = value;
    graph.replay(stream);
    EXPECT_THAT(read(out, stream), Each(value));
  }
}

TEST_F(DeviceGraph, an_invalidated_capture_is_a_usage_error_also_when_the_cause_was_caught) {
  auto const stream = Stream::create(gpu);
  auto in = on_gpu({1, 2});
  auto out = on_gpu({0, 0});
  auto const capture = [&] {
    return Graph::capture(stream, [&] {
      out.copy_from(in);
      EXPECT_THROW(stream.synchronize(), UsageError);
    });
  };
  EXPECT_THROW(static_cast<void>(capture()), UsageError);
  EXPECT_FALSE(stream.is_capturing());
  auto const graph = Graph::capture(stream, [&] { out.copy_from(in); });
  graph.replay(stream);
  EXPECT_THAT(read(out, stream), ElementsAre(1, 2));
}

TEST_F(DeviceGraph, a_stream_that_is_not_joined_again_is_a_usage_error) {
  auto const stream = Stream::create(gpu);
  auto const other = Stream::create(gpu);
  auto tensor = on_gpu({1, 2});
  auto const source = on_gpu({3, 4});
  stream.synchronize();
  EXPECT_THROW(static_cast<void>(Graph::capture(stream,
                                                [&] {
                                                  other.wait(stream.record());
                                                  StreamGuard const guard(other);
                                                  tensor.copy_from(source);
                                                })),
               UsageError);
  EXPECT_FALSE(other.is_capturing());
}

TEST_F(DeviceGraph, passes_the_errors_of_its_body_on) {
  auto const stream = Stream::create(gpu);
  EXPECT_THROW(static_cast<void>(Graph::capture(stream, [] { throw std::runtime_error("mine"); })), std::runtime_error);
  EXPECT_FALSE(stream.is_capturing());
  EXPECT_EQ(calls("cuGraphInstantiateWithFlags"), 0U);
}

TEST_F(DeviceGraph, refuses_streams_that_cannot_be_captured) {
  auto const stream = Stream::create(gpu);
  auto const nothing = [] {};
  EXPECT_THROW(static_cast<void>(Graph::capture(current_stream(gpu), nothing)), UsageError) << "the default stream";
  EXPECT_THROW(static_cast<void>(Graph::capture(Stream(), nothing)), UsageError) << "the CPU";
  auto const nested = [&] { static_cast<void>(Graph::capture(Stream::create(gpu), nothing)); };
  EXPECT_THROW(static_cast<void>(Graph::capture(stream, nested)), UsageError);
  EXPECT_FALSE(stream.is_capturing());
}

TEST_F(DeviceGraph, refuses_replays_that_cannot_be) {
  auto const stream = Stream::create(gpu);
  auto tensor = on_gpu({1, 2});
  auto const source = on_gpu({3, 4});
  stream.synchronize();
  auto const graph = Graph::capture(stream, [&] { tensor.copy_from(source); });
  EXPECT_THROW(Graph().replay(), UsageError);
  EXPECT_THROW(graph.replay(Stream::create(Device::cuda(1))), UsageError);
  EXPECT_THROW(static_cast<void>(Graph::capture(stream, [&] { graph.replay(stream); })), UsageError);
  EXPECT_EQ(calls("cuGraphLaunch"), 0U);
  graph.replay(stream);
  EXPECT_THAT(read(tensor, stream), ElementsAre(3, 4));
}

TEST_F(DeviceGraph, refuses_replays_while_others_hold_what_it_writes) {
  auto const stream = Stream::create(gpu);
  auto tensor = on_gpu({1, 2});
  auto const source = on_gpu({3, 4});
  stream.synchronize();
  auto const graph = Graph::capture(stream, [&] { tensor.copy_from(source); });
  std::string holder = "a view of rank 1";
  auto const hold = [&](Tensor const& held) { EXPECT_TRUE(held.storage()->hold([&holder] { return holder; })); };
  hold(source);  // it only reads that
  graph.replay(stream);
  hold(tensor);
  auto const info = test::error_of<UsageError>([&] { graph.replay(stream); });
  EXPECT_EQ(info.got, holder);
  EXPECT_EQ(calls("cuGraphLaunch"), 1U);
  holder.clear();
  graph.replay(stream);
  EXPECT_THAT(read(tensor, stream), ElementsAre(3, 4));
}

/// A capture by another library in another thread, in the mode that refuses unsafe calls in all threads.
class CaptureElsewhere {
 public:
  explicit CaptureElsewhere(Stream const& stream)
      : thread_([this, native = stream.native()] {
          test::Capture capture(native);
          begun_.set_value();
          end_.get_future().wait();
          valid_.set_value(capture.end());
        }) {
    begun_.get_future().wait();
  }
  ~CaptureElsewhere() {
    if (!ended_) end_.set_value();
    thread_.join();
  }
  CaptureElsewhere(CaptureElsewhere const&) = delete;
  CaptureElsewhere& operator=(CaptureElsewhere const&) = delete;

  /// Ends the capture. Returns whether it was still valid.
  [[nodiscard]] bool end() {
    ended_ = true;
    end_.set_value();
    return valid_.get_future().get();
  }

 private:
  std::promise<void> begun_{};
  std::promise<void> end_{};
  std::promise<bool> valid_{};
  bool ended_ = false;
  std::thread thread_;
};

TEST_F(DeviceGraph, calls_of_this_thread_leave_a_capture_of_another_library_valid) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  MemoryOptions const shareable{.device = gpu, .shareable = true};
  auto const source = Tensor::zeros({1 << 16}, Dtype::f32, gpu);
  std::optional used = Tensor::empty({1 << 16}, Dtype::f32, shareable);
  stream.synchronize();
  auto const captured = Stream::create(gpu);
  CaptureElsewhere capture(captured);
  Tensor made;
  Tensor pinned;
  {
    test::HeldStream const held(stream.native());
    used->copy_from(source);
    used.reset();                                      // kept until the stream has passed, which is an event to query
    made = Tensor::zeros({4}, Dtype::f32, shareable);  // cuMemAlloc
    pinned = Tensor::zeros({4}, Dtype::f32, MemoryOptions{.pinned = true});  // cuMemHostAlloc
    EXPECT_FALSE(stream.query());
    EXPECT_EQ(calls("cuMemFree_v2"), 0U) << "the stream still uses the memory";
  }
  stream.synchronize();
  cuda::trim(gpu);
  EXPECT_EQ(calls("cuMemFree_v2"), 1U);
  EXPECT_TRUE(capture.end());
}

TEST_F(DeviceGraph, a_failed_query_of_an_event_frees_no_memory) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto const source = Tensor::zeros({1 << 16}, Dtype::f32, gpu);
  std::optional used = Tensor::empty({1 << 16}, Dtype::f32, MemoryOptions{.device = gpu, .shareable = true});
  {
    test::HeldStream const held(stream.native());
    used->copy_from(source);
    test::fail_call("cuEventQuery", 1, 900);
    used.reset();
    EXPECT_EQ(calls("cuMemFree_v2"), 0U);
  }
  stream.synchronize();
  cuda::trim(gpu);
  EXPECT_EQ(calls("cuMemFree_v2"), 1U);
}

TEST_F(DeviceGraph, leaves_nothing_behind) {
  auto const stream = Stream::create(gpu);
  {
    auto tensor = on_gpu({1, 2});
    auto const source = on_gpu({3, 4});
    stream.synchronize();
    auto const graph = Graph::capture(stream, [&] { tensor.copy_from(source); });
    EXPECT_EQ(live("graph"), 1U);
    auto const same = graph;
    same.replay(stream);
    EXPECT_EQ(calls("cuGraphInstantiateWithFlags"), 1U);
  }
  EXPECT_EQ(live("graph"), 0U);
}

}  // namespace
}  // namespace crossrank
