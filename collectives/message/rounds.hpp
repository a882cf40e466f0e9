#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/exchange_table.hpp"
#include "collectives/message/group_link.hpp"

namespace crossrank::message {

/// All members have arrived at a round and make the same call.
struct PassedRound {
  std::uint64_t round = 0;
  std::uint32_t flags = 0;             ///< `flag_no_shortcut`
  bool whole = false;                  ///< `payload` holds the bytes of all; otherwise they follow as a flow
  std::vector<std::uint64_t> sizes{};  ///< bytes that the root, or each member, gives; empty for barrier and exchange
  Bytes payload{};                     ///< of an exchange: the `ExchangeMismatch` if two members disagree
  std::vector<std::byte> storage{};    ///< holds `payload` on the first member; elsewhere the packet does
};

/// All members have arrived at a round, but they make different calls.
struct Disagreement {
  std::vector<int> failed_ranks{};  ///< the members of the rarest call
  std::string text{};
};

using RoundOutcome = std::variant<PassedRound, Disagreement>;

/// The barrier rounds of a group, one for each collective.
///
/// Members send their arrival to the first member. It compares the calls once all have arrived, and tells all members
/// that the round has passed. Payloads of up to `small_payload` bytes travel with these packets, and so does what each
/// member sends and expects in an exchange. Costs 2 * (members - 1) packets per round. Needs the network's lock.
class Rounds {
 public:
  explicit Rounds(GroupLink const& link) : link_(link), arrivals_(link.members().size()) {}

  /// The contribution of a member to a round.
  struct Part {
    Bytes bytes{};
    std::uint32_t flags = 0;  ///< `flag_data`, `flag_broadcast`, `flag_exchange`, `flag_no_shortcut`
    int root = 0;
  };
  /// Arrives at the next round. Returns the outcome if this is the first member and all others have arrived.
  [[nodiscard]] std::optional<RoundOutcome> arrive(spi::Signature const& signature, Part const& mine);
  /// Takes another member's arrival. Returns the outcome when it was the last one.
  [[nodiscard]] std::optional<RoundOutcome> take_arrival(int member, PacketHeader const& head, Bytes body);
  /// Reads the packet `passed` of the first member. The payload refers to `body`.
  [[nodiscard]] static PassedRound read_passed(PacketHeader const& head, Bytes body);
  /// Counts a round as passed.
  void pass(std::uint64_t round) noexcept { passed_ = round; }

  /// Returns the number of rounds that this member has arrived at.
  [[nodiscard]] std::uint64_t arrived() const noexcept { return arrived_; }
  /// Returns the number of rounds that have passed.
  [[nodiscard]] std::uint64_t passed() const noexcept { return passed_; }
  /// Returns the number of the next round to pass.
  [[nodiscard]] std::uint64_t current() const noexcept { return passed_ + 1; }
  /// Returns whether any member has arrived at the current round. First member only.
  [[nodiscard]] bool has_arrivals() const noexcept { return present_ != 0; }
  /// Appends the members that have not arrived at the current round. First member only.
  void append_missing(std::vector<int>& to) const;
  [[nodiscard]] std::vector<int> missing() const;

 private:
  struct Arrival {
    PacketHeader head{};
    std::vector<std::byte> payload{};
    std::string arguments{};  ///< of the call (`CallArguments`); may be empty
    [[nodiscard]] auto call() const noexcept { return std::pair(head.op_kind, head.digest); }
  };

  [[nodiscard]] std::optional<RoundOutcome> note(int member, Arrival arrival);
  [[nodiscard]] std::optional<Disagreement> compare() const;
  [[nodiscard]] PassedRound decide();
  [[nodiscard]] std::optional<algorithms::ExchangeMismatch> compare_exchange() const;

  GroupLink const& link_;
  std::uint64_t arrived_ = 0;
  std::uint64_t passed_ = 0;
  std::vector<std::optional<Arrival>> arrivals_;  ///< at the current round; first member only
  std::size_t present_ = 0;                       ///< of `arrivals_`
};

}  // namespace crossrank::message
