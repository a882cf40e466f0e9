#include "lib/node/inspect/device_view.hpp"

#include <algorithm>
#include <cstring>

namespace crossrank::node {
namespace {

double seconds_since(std::uint64_t then, std::uint64_t now) {
  return now > then ? static_cast<double>(now - then) * 1e-9 : 0.0;
}

std::optional<double> age_of(std::uint64_t then, std::uint64_t now) {
  if (then == 0) return {};
  return seconds_since(then, now);
}

/// The process that wrote the name may have written anything.
std::string name_of(DeviceFlightOperation const& operation) {
  return {operation.name.data(), ::strnlen(operation.name.data(), operation.name.size())};
}

bool is_under_way(DeviceOperationView const& operation) {
  return operation.stage != DeviceStage::ended && operation.stage != DeviceStage::aborted;
}

bool is_collective_of(DeviceOperationView const& operation, std::uint32_t block) {
  return operation.block == block && operation.path != DevicePath::message && operation.path != DevicePath::none;
}

/// Returns whether both paths count their operations together.
bool share_sequence(DevicePath one, DevicePath other) {
  return (one == DevicePath::staged) == (other == DevicePath::staged);
}

/// Returns the oldest operation of a rank that is under way in the group, or null.
DeviceOperationView const* oldest_under_way(std::vector<DeviceOperationView> const& operations, std::uint32_t block) {
  for (auto const& operation : operations) {
    if (is_collective_of(operation, block) && is_under_way(operation)) return &operation;
  }
  return nullptr;
}

/// Returns the stage at which a rank has the operation `sequence`, or nothing when it has not called it.
std::optional<DeviceStage> stage_of(std::vector<DeviceOperationView> const& operations, std::uint32_t block,
                                    DeviceCallView const& call) {
  std::optional<DeviceStage> stage;
  for (auto const& operation : operations) {
    if (!is_collective_of(operation, block) || !share_sequence(operation.path, call.path)) continue;
    if (operation.sequence == call.sequence) return operation.stage;
    // Its entry has been displaced by those of later operations.
    if (operation.sequence > call.sequence) stage = DeviceStage::ended;
  }
  return stage;
}

/// Returns whether a rank made another operation under the number of the call.
bool made_another(std::vector<DeviceOperationView> const& operations, std::uint32_t block, DeviceCallView const& call) {
  return std::ranges::any_of(operations, [&](DeviceOperationView const& operation) {
    return is_collective_of(operation, block) && share_sequence(operation.path, call.path) &&
           operation.sequence == call.sequence && (operation.op_kind != call.op_kind || operation.root != call.root);
  });
}

}  // namespace

char const* to_string(DeviceStage stage) noexcept {
  switch (stage) {
    case DeviceStage::calling: return "calling";
    case DeviceStage::enqueued: return "enqueued";
    case DeviceStage::started: return "started";
    case DeviceStage::ended: return "ended";
    case DeviceStage::aborted: return "aborted";
  }
  return "unknown";
}

char const* to_string(DevicePath path) noexcept {
  switch (path) {
    case DevicePath::none: break;
    case DevicePath::nccl: return "nccl";
    case DevicePath::staged: return "staged";
    case DevicePath::message: return "message";
    case DevicePath::graph: return "graph";
    case DevicePath::transport: return "transport";
  }
  return "unknown";
}

DeviceOperationView view_device_operation(DeviceFlightRecord const& record, std::uint64_t now) {
  auto const& operation = record.operation;
  return {.name = name_of(operation),
          .op_kind = operation.op_kind,
          .path = operation.path,
          .block = operation.block,
          .sequence = operation.sequence,
          .bytes = operation.bytes,
          .device = operation.device,
          .stream = operation.stream,
          .communicator = operation.communicator,
          .group_ranks = operation.ranks,
          .root = operation.root,
          .stage = record.stage,
          .age = seconds_since(record.called_at, now),
          .started_age = age_of(record.started_at, now),
          .ended_age = age_of(record.ended_at, now)};
}

std::optional<DeviceCallView> view_device_call(std::uint32_t block, std::vector<DeviceOperationsOfRank> const& ranks) {
  std::optional<DeviceCallView> call;
  for (auto const& rank : ranks) {
    auto const* const oldest = oldest_under_way(*rank.operations, block);
    if (oldest == nullptr || (call && call->sequence <= oldest->sequence)) continue;
    call = DeviceCallView{.name = oldest->name,
                          .op_kind = oldest->op_kind,
                          .path = oldest->path,
                          .sequence = oldest->sequence,
                          .root = oldest->root};
  }
  if (!call) return {};
  for (auto const& rank : ranks) {
    auto const stage = stage_of(*rank.operations, block, *call);
    if (made_another(*rank.operations, block, *call)) {
      call->different.push_back(rank.rank);
    } else if (!stage || *stage == DeviceStage::calling) {
      call->missing.push_back(rank.rank);
    } else if (*stage == DeviceStage::enqueued) {
      call->enqueued.push_back(rank.rank);
    } else {
      (*stage == DeviceStage::started ? call->started : call->ended).push_back(rank.rank);
    }
  }
  return call;
}

}  // namespace crossrank::node
