#include "lib/node/inspect/device_flight.hpp"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lib/node/inspect/device_view.hpp"

namespace crossrank::node {
namespace {

constexpr DeviceFlightOperation example{.op_kind = spi::OpKind::broadcast,
                                        .path = DevicePath::nccl,
                                        .block = 1023,
                                        .ranks = 4096,
                                        .root = 4095,
                                        .device = 7,
                                        .sequence = 12,
                                        .bytes = std::uint64_t{1} << 40,
                                        .communicator = 0xdeadbeefcafe,
                                        .stream = 0x7fffffffffff,
                                        .name = {"a_name_of_23_characters"}};

TEST(DeviceFlightRing, returns_an_operation_as_it_was_written) {
  auto const ring = std::make_unique<DeviceFlightRing>();
  EXPECT_EQ(write_device_flight(*ring, example, 1'000), 1U);
  auto const records = read_device_flight(*ring);
  ASSERT_EQ(records.size(), 1U);
  auto const& operation = records[0].operation;
  EXPECT_EQ(operation.op_kind, example.op_kind);
  EXPECT_EQ(operation.path, example.path);
  EXPECT_EQ(operation.block, example.block);
  EXPECT_EQ(operation.ranks, example.ranks);
  EXPECT_EQ(operation.root, example.root);
  EXPECT_EQ(operation.device, example.device);
  EXPECT_EQ(operation.sequence, example.sequence);
  EXPECT_EQ(operation.bytes, example.bytes);
  EXPECT_EQ(operation.communicator, example.communicator);
  EXPECT_EQ(operation.stream, example.stream);
  EXPECT_EQ(operation.name, example.name);
  EXPECT_EQ(records[0].called_at, 1'000U);
  EXPECT_EQ(records[0].stage, DeviceStage::calling);
}

TEST(DeviceFlightRing, leaves_the_root_empty_where_there_is_none) {
  auto const ring = std::make_unique<DeviceFlightRing>();
  static_cast<void>(write_device_flight(*ring, {.op_kind = spi::OpKind::all_reduce, .path = DevicePath::staged}, 1));
  EXPECT_FALSE(read_device_flight(*ring).at(0).operation.root.has_value());
}

TEST(DeviceFlightRing, takes_a_name_without_an_end) {
  auto const ring = std::make_unique<DeviceFlightRing>();
  DeviceFlightOperation operation;
  operation.name.fill('n');
  static_cast<void>(write_device_flight(*ring, operation, 1));
  EXPECT_EQ(view_device_operation(read_device_flight(*ring).at(0), 2).name, std::string(24, 'n'));
}

TEST(DeviceFlightRing, keeps_the_time_of_each_stage) {
  auto const ring = std::make_unique<DeviceFlightRing>();
  auto const number = write_device_flight(*ring, example, 10);
  advance_device_flight(*ring, number, DeviceStage::enqueued, 20);
  EXPECT_EQ(read_device_flight(*ring).at(0).stage, DeviceStage::enqueued);
  EXPECT_EQ(read_device_flight(*ring).at(0).started_at, 0U);
  advance_device_flight(*ring, number, DeviceStage::started, 30);
  EXPECT_EQ(read_device_flight(*ring).at(0).stage, DeviceStage::started);
  EXPECT_EQ(read_device_flight(*ring).at(0).ended_at, 0U);
  advance_device_flight(*ring, number, DeviceStage::ended, 40);
  auto const ended = read_device_flight(*ring).at(0);
  EXPECT_EQ(ended.stage, DeviceStage::ended);
  EXPECT_EQ(ended.started_at, 30U);
  EXPECT_EQ(ended.ended_at, 40U);
}

TEST(DeviceFlightRing, does_not_mark_a_newer_operation_in_the_same_place) {
  auto const ring = std::make_unique<DeviceFlightRing>();
  auto const old = write_device_flight(*ring, example, 1);
  for (std::size_t i = 0; i < DeviceFlightRing::entries; ++i) static_cast<void>(write_device_flight(*ring, example, 2));
  advance_device_flight(*ring, old, DeviceStage::ended, 3);
  auto const records = read_device_flight(*ring);
  EXPECT_EQ(records.size(), DeviceFlightRing::entries);
  EXPECT_EQ(records.front().number, old + 1);
  for (auto const& record : records) EXPECT_EQ(record.stage, DeviceStage::calling);
}

TEST(DeviceFlightRing, takes_operations_of_several_threads) {
  auto const ring = std::make_unique<DeviceFlightRing>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) static_cast<void>(write_device_flight(*ring, example, 1));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(read_device_flight(*ring).size(), 40U);
}

// ---------------------------------------------------------------- views

DeviceOperationView seen(std::uint64_t sequence, DeviceStage stage, DevicePath path = DevicePath::nccl) {
  return {.op_kind = spi::OpKind::all_reduce, .path = path, .block = 3, .sequence = sequence, .stage = stage};
}

TEST(DeviceCallView, names_the_ranks_at_each_stage_of_the_oldest_call) {
  std::vector<DeviceOperationView> const started{seen(1, DeviceStage::ended), seen(2, DeviceStage::started)};
  std::vector<DeviceOperationView> const enqueued{seen(1, DeviceStage::ended), seen(2, DeviceStage::enqueued),
                                                  seen(3, DeviceStage::enqueued)};
  std::vector<DeviceOperationView> const ended{seen(1, DeviceStage::ended), seen(2, DeviceStage::ended)};
  std::vector<DeviceOperationView> const displaced{seen(60, DeviceStage::ended)};
  std::vector<DeviceOperationView> const missing{seen(1, DeviceStage::ended)};
  auto const call = view_device_call(3, {{0, &started}, {1, &enqueued}, {2, &ended}, {3, &displaced}, {4, &missing}});
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->sequence, 2U);
  EXPECT_EQ(call->started, std::vector<int>{0});
  EXPECT_EQ(call->enqueued, std::vector<int>{1});
  EXPECT_EQ(call->ended, (std::vector<int>{2, 3}));
  EXPECT_EQ(call->missing, std::vector<int>{4});
}

TEST(DeviceCallView, leaves_out_messages_and_other_groups) {
  std::vector<DeviceOperationView> const message{seen(1, DeviceStage::started, DevicePath::message)};
  EXPECT_FALSE(view_device_call(3, {{0, &message}}).has_value());
  std::vector<DeviceOperationView> const collective{seen(1, DeviceStage::started)};
  EXPECT_TRUE(view_device_call(3, {{0, &collective}}).has_value());
  EXPECT_FALSE(view_device_call(4, {{0, &collective}}).has_value());
}

}  // namespace
}  // namespace crossrank::node
