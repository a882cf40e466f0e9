#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "collectives/message/network.hpp"
#include "collectives/message/packet.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::message {

/// A member that has sent nothing for longer does not answer.
inline constexpr auto answers_within = std::chrono::seconds(3);

/// The identity of a group and of this rank in it.
struct GroupIdentity {
  std::uint64_t number = 0;  ///< the same on all members, and different from every other group's
  std::string name{};
  std::vector<int> members{};  ///< ranks of the job
  int rank = 0;                ///< this rank's index in `members`
};

/// A group's access to the network: packets to its members by their rank in the group, and what is known of them.
///
/// Everything but the identity needs the network's lock.
class GroupLink {
 public:
  GroupLink(std::shared_ptr<Network> network, GroupIdentity identity)
      : network_(std::move(network)), identity_(std::move(identity)) {}

  [[nodiscard]] std::shared_ptr<Network> const& shared_network() const noexcept { return network_; }
  [[nodiscard]] Network& network() const noexcept { return *network_; }
  [[nodiscard]] std::uint64_t number() const noexcept { return identity_.number; }
  [[nodiscard]] std::string const& name() const noexcept { return identity_.name; }
  [[nodiscard]] int rank() const noexcept { return identity_.rank; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(identity_.members.size()); }
  [[nodiscard]] std::vector<int> const& members() const noexcept { return identity_.members; }
  /// Returns the rank of the job that is `member` of this group.
  [[nodiscard]] int global_rank(int member) const noexcept { return at_rank(identity_.members, member); }
  /// Returns the member that is `global_rank` in the job; -1 for a rank outside the group.
  [[nodiscard]] int member_of(int global_rank) const noexcept;

  [[nodiscard]] Peer& peer(int member) const noexcept { return network_->peer(global_rank(member)); }
  /// Returns whether another chunk for `member` may be handed to the packet transport.
  [[nodiscard]] bool has_space(int member) const noexcept { return network_->has_space(global_rank(member)); }
  /// Sends a packet of this group.
  void send(int member, PacketHeader head, Bytes body = {}, Bytes more = {}) const;
  /// Sends a packet of this group to all other members.
  void send_to_others(PacketHeader const& head, Bytes body = {}, Bytes more = {}) const;

  /// Returns the fields of an error of this group.
  [[nodiscard]] ErrorInfo info(char const* operation) const;
  /// Returns the `MismatchError` for a member that sends another number of bytes than all agreed on.
  [[nodiscard]] std::exception_ptr size_mismatch(char const* operation, int member, std::size_t expected,
                                                 std::size_t got) const;
  /// Returns a member's host, process and state in words.
  [[nodiscard]] std::string describe(int member) const;

 private:
  std::shared_ptr<Network> network_;
  GroupIdentity identity_;
};

}  // namespace crossrank::message
