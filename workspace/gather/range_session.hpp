#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <boost/container/small_vector.hpp>

#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"
#include "workspace/gather/exchange_backend.hpp"
#include "workspace/gather/multi_node_range.hpp"

namespace crossrank::workspace {

/// What the items of a range are; ranks that disagree get `MismatchError`.
enum class ItemKind : std::uint8_t { tensor = 1, state_dict = 2, ranked_state = 3 };

/// The two rounds of one range on one rank, whatever travels between them.
///
/// A writer publishes, arrives at the first round and, when it closes, at the second, without having waited for the
/// first. The receiver waits for the first, keeps a copy of what the others published, and arrives at the second when
/// it closes. A group of one has no rounds.
class RangeSession {
 public:
  /// Opens the range: the first round. `operation` is the name of the call, for errors.
  RangeSession(char const* operation, ItemKind kind, Contribution const& mine, RankSpan ranks, Collective const& group,
               GatherOptions const& options);
  ~RangeSession();
  RangeSession(RangeSession const&) = delete;
  RangeSession& operator=(RangeSession const&) = delete;

  [[nodiscard]] bool is_receiver() const noexcept { return is_receiver_; }
  /// Items that there are on this rank.
  [[nodiscard]] std::size_t size() const noexcept { return is_receiver_ ? members_.size() : 0; }
  /// Rank of the job that item `index` is of, and whether that is this rank.
  [[nodiscard]] int rank_of(std::size_t index) const noexcept { return ranks_[index]; }
  [[nodiscard]] bool is_own(std::size_t index) const noexcept { return members_[index] == rank_; }
  /// Receives item `index`, which is not this rank's own and was not received before.
  void receive(std::size_t index, Collector& collector);
  /// Counts as progress of this rank.
  void progress() noexcept;
  /// The second round.
  void close();
  void abort(std::string_view why) noexcept;
  [[nodiscard]] bool is_open() const noexcept { return open_; }
  [[noreturn]] void fail_usage(std::string message, std::string got) const;

 private:
  void map_ranks();
  void choose_exchange();
  void open_alone();
  void open_across_nodes(ItemKind kind, Contribution const& mine);
  [[nodiscard]] std::uint64_t digest(ItemKind kind) const;
  /// What the digest is of.
  [[nodiscard]] CallArguments arguments() const;
  void open(ItemKind kind, Contribution const& mine);
  void open_as_receiver();
  void close_round_after_failure();
  void decline_rest() noexcept;
  void leave_user_code() noexcept;
  /// Whether this rank can make no call on the group before it has closed the range.
  [[nodiscard]] bool closes_first() const noexcept {
    return options_.release == Release::lazy && is_receiver_ && (group_ || multi_node_);
  }

  char const* operation_;
  Collective collective_;
  // A call through the arenas takes little time: what few ranks need lies in the session itself.
  using Ranks = boost::container::small_vector<int, 8>;
  Ranks ranks_;    ///< of the job, as given
  Ranks members_;  ///< the same in the group
  spi::TimeoutPolicy timeout_policy_;
  GatherOptions options_;
  std::shared_ptr<node::Group> group_;  ///< null in a group of one
  std::unique_ptr<ExchangeBackend> exchange_;
  std::unique_ptr<MultiNodeRange> multi_node_;  ///< where the group stands on several nodes
  bool files_ = false;
  bool lazy_ = false;
  int rank_ = 0;
  bool is_receiver_ = false;
  bool is_writer_ = false;
  std::uint64_t range_ = 0;
  std::uint64_t round_ = 0;
  struct MemberContribution {
    ContributionDescriptor part{};
    bool received = false;
  };
  /// Of each member. Copies: the lines in which they arrived are written again by ranges opened inside this one.
  boost::container::small_vector<MemberContribution, 2> contributions_;
  bool open_ = false;
  bool in_user_code_ = false;
};

}  // namespace crossrank::workspace
