#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/objects/user_code_scope.hpp"
#include "lib/node/group/group.hpp"
#include "workspace/gather/exchange_backend.hpp"
#include "workspace/gather/range_channel.hpp"

namespace crossrank::workspace {

/// The two rounds of a range whose group spans nodes.
///
/// In the first round all ranks announce their contributions. Ranks on the receiver's node publish theirs in the node's
/// memory; with files, all ranks publish files. Ranks on other nodes keep a packed copy and send it when the receiver
/// asks for it (`RangeChannel`), one rank at a time, so that the receiver never holds a contribution that it does not
/// want. All ranks wait for the first round. `Release::lazy` behaves like the strict release.
class MultiNodeRange {
 public:
  struct RangeInputs {
    char const* operation = "";
    Collective collective{};
    std::vector<int> members{};  ///< ranks in the group; the first one receives
    spi::TimeoutPolicy timeout_policy{};
    std::uint64_t digest = 0;
    CallArguments arguments{};
    std::unique_ptr<ExchangeBackend> exchange{};  ///< through this node's memory; null if there is none
    std::function<std::unique_ptr<ExchangeBackend>()>
        make_exchange{};  ///< creates an exchange through files; may throw
    bool files = false;
    std::exception_ptr failure{};  ///< why this rank cannot provide its item
  };
  explicit MultiNodeRange(RangeInputs inputs);
  ~MultiNodeRange();
  MultiNodeRange(MultiNodeRange const&) = delete;
  MultiNodeRange& operator=(MultiNodeRange const&) = delete;

  /// Runs the first round.
  void open(Contribution const& mine, bool writes);
  void receive(std::size_t index, Collector& collector);
  /// Runs the second round.
  void close();
  void abort(std::string_view why) noexcept;

 private:
  /// A rank's message in the first round.
  struct OpenMessage {
    ContributionDescriptor part{};
    std::uint32_t error_bytes = 0;       ///< 0: the rank could do its part
    std::array<std::byte, 628> error{};  ///< `encode_error` wrote it

    [[nodiscard]] bool failed() const noexcept { return error_bytes != 0; }
  };
  [[nodiscard]] OpenMessage publish(Contribution const& mine);
  [[nodiscard]] bool on_this_node(int member) const;
  [[nodiscard]] int node_rank_of(int member) const;
  void end_group(Error const& e) noexcept;
  void close_round();
  void throw_if_one_failed();
  [[nodiscard]] std::shared_ptr<std::vector<std::byte>> allocate_for(int member, std::uint64_t bytes) const;
  void receive_remote(std::size_t index, std::uint64_t size, Collector& collector);
  void send_choice(int member, RangeChannel::Choice choice);
  [[nodiscard]] spi::Transport& transport() const { return *inputs_.collective.transport(); }

  RangeInputs inputs_;
  std::shared_ptr<node::Group> group_;        ///< the ranks of this node
  std::shared_ptr<RangeChannel> channel_;     ///< for messages between nodes
  std::uint64_t range_ = 0;                   ///< its number on the channel
  std::vector<OpenMessage> open_messages_{};  ///< by rank in the group
  std::vector<bool> received_{};              ///< by item
  std::vector<std::byte> kept_{};             ///< the packed contribution for a receiver on another node
  bool serves_ = false;                       ///< this rank's contribution is on another node than the receiver
  std::unique_ptr<UserCodeScope> user_code_{};
};

}  // namespace crossrank::workspace
