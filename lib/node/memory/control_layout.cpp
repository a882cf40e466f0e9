#include "lib/node/memory/control_layout.hpp"

#include <algorithm>

#include "lib/core/as_size.hpp"
#include "lib/core/round_up.hpp"
#include "lib/node/memory/device_flight_layout.hpp"
#include "lib/node/memory/queue_layout.hpp"

namespace crossrank::node {
namespace {

constexpr std::size_t max_group_bytes = std::size_t{4} << 30;   // virtual; a block is reserved when it is first used
constexpr std::size_t max_lease_bytes = std::size_t{16} << 30;  // virtual; rows are reserved as slots are first used

}  // namespace

ControlGeometry::ControlGeometry(int ranks) : ranks_(ranks) {}

std::size_t ControlGeometry::flights_offset() const noexcept {
  return round_up(records_offset() + as_size(ranks_) * sizeof(RankRecord), page_bytes);
}

std::size_t ControlGeometry::device_flights_offset() const noexcept {
  return flights_offset() + as_size(ranks_) * sizeof(FlightRing);
}

std::size_t ControlGeometry::groups_offset() const noexcept {
  return round_up(device_flights_offset() + as_size(ranks_) * sizeof(DeviceFlightRing), page_bytes);
}

std::size_t ControlGeometry::group_bytes(int members) noexcept {
  auto const n = as_size(members);
  return round_up(sizeof(GroupHeader) + n * sizeof(MemberBlock) + n * n * sizeof(Channel), page_bytes);
}

std::size_t ControlGeometry::queue_bytes(int readers) noexcept {
  auto const endpoints = as_size(readers) + 1;
  return round_up(sizeof(GroupHeader) + sizeof(QueueHeader) + endpoints * sizeof(QueueEndpoint), page_bytes);
}

std::size_t ControlGeometry::group_stride() const noexcept { return group_bytes(ranks_); }

std::uint32_t ControlGeometry::group_capacity() const noexcept {
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(max_group_bytes / group_stride(), 256, 1024));
}

std::size_t ControlGeometry::leases_offset() const noexcept {
  return groups_offset() + group_capacity() * group_stride();
}

std::size_t ControlGeometry::lease_row_bytes() const noexcept {
  return round_up(as_size(ranks_) * sizeof(std::uint64_t), 64);
}

std::uint32_t ControlGeometry::slot_capacity() const noexcept {
  auto const fits = max_lease_bytes / (lease_row_bytes() * as_size(ranks_));
  return static_cast<std::uint32_t>(std::min<std::size_t>(fits, 65536));
}

std::size_t ControlGeometry::total_bytes() const noexcept {
  auto const leases = as_size(ranks_) * slot_capacity() * lease_row_bytes();
  return round_up(leases_offset() + leases, page_bytes);
}

}  // namespace crossrank::node
