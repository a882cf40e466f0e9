#include "collectives/message/group_link.hpp"

#include <algorithm>
#include <chrono>

#include "lib/platform/system.hpp"

namespace crossrank::message {

int GroupLink::member_of(int global_rank) const noexcept {
  auto const found = std::ranges::find(identity_.members, global_rank);
  return found == identity_.members.end() ? -1 : static_cast<int>(found - identity_.members.begin());
}

void GroupLink::send(int member, PacketHeader head, Bytes body, Bytes more) const {
  head.group = identity_.number;
  network_->send(global_rank(member), head, body, more);
}

void GroupLink::send_to_others(PacketHeader const& head, Bytes body, Bytes more) const {
  for (int member = 0; member < size(); ++member) {
    if (member != rank()) send(member, head, body, more);
  }
}

ErrorInfo GroupLink::info(char const* operation) const {
  return {.operation = operation, .group = name(), .rank = rank(), .world_size = size()};
}

std::exception_ptr GroupLink::size_mismatch(char const* operation, int member, std::size_t expected,
                                            std::size_t got) const {
  auto error = info(operation);
  error.message = "rank " + std::to_string(member) + " sent a different number of bytes than agreed";
  error.expected = std::to_string(expected);
  error.got = std::to_string(got);
  error.failed_ranks = {member};
  return std::make_exception_ptr(MismatchError(std::move(error)));
}

std::string GroupLink::describe(int member) const {
  auto const& known = peer(member);
  std::string text = "host " + (known.host_name.empty() ? std::string("unknown") : known.host_name);
  if (known.pid != 0) text += " pid " + std::to_string(known.pid);
  if (member == rank()) return text;
  if (known.dead) return text + ", dead";
  if (known.heard.count() == 0) return text + ", never heard from";
  auto const silent = std::chrono::duration_cast<std::chrono::milliseconds>(platform::system().now() - known.heard);
  text += silent > answers_within ? ", does not answer: dead, stopped or unreachable" : ", alive";
  return text + ", last heard from " + std::to_string(silent.count()) + " ms ago";
}

}  // namespace crossrank::message
