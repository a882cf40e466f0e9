#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <boost/container/small_vector.hpp>

#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/objects/user_code_scope.hpp"
#include "lib/node/group/group.hpp"
#include "workspace/gather/exchange_backend.hpp"
#include "workspace/gather/multi_node_range.hpp"

namespace crossrank::workspace {

/// The kind of the items of a range. Ranks that disagree get `MismatchError`.
enum class ItemKind : std::uint8_t { tensor = 1, state_dict = 2, ranked_state = 3 };

/// The two rounds of one range on one rank, independent of the exchange backend.
///
/// A writer publishes, arrives at the first round without waiting for it, and arrives at the second round when it
/// closes. The receiver waits for the first round, keeps a copy of the descriptors of all contributions, and arrives at
/// the second round when it closes. A group of one rank has no rounds.
class RangeSession {
 public:
  /// Opens the range, which is the first round. `operation` is the name of the call for error messages.
  RangeSession(char const* operation, ItemKind kind, Contribution const& mine, RankSpan ranks, Collective const& group,
               GatherOptions const& options);
  ~RangeSession();
  RangeSession(RangeSession const&) = delete;
  RangeSession& operator=(RangeSession const&) = delete;

  [[nodiscard]] bool is_receiver() const noexcept { return role_ == Role::receiver; }
  /// Returns the number of items on this rank: all members on the receiver, 0 on a writer.
  [[nodiscard]] std::size_t size() const noexcept { return is_receiver() ? members_.size() : 0; }
  /// Returns the rank of the job that contributed item `index`; `is_own` tells whether that is this rank.
  [[nodiscard]] int rank_of(std::size_t index) const noexcept { return ranks_[index]; }
  [[nodiscard]] bool is_own(std::size_t index) const noexcept { return members_[index] == rank_; }
  /// Returns whether `abort` ends a group, which it does when there are other ranks that may wait.
  [[nodiscard]] bool has_group() const noexcept { return group_ || multi_node_; }
  /// Receives item `index`, which must belong to another rank and must not have been received before.
  void receive(std::size_t index, Collector& collector);
  /// Signals that this rank makes progress.
  void progress() noexcept;
  /// Runs the second round.
  void close();
  void abort(std::string_view why) noexcept;
  [[noreturn]] void fail_usage(std::string message, std::string got, std::string hint = {}) const;

 private:
  enum class Role : std::uint8_t { receiver, writer, unlisted };

  void map_ranks();
  void choose_exchange();
  [[nodiscard]] std::unique_ptr<ExchangeBackend> file_exchange() const;
  void open_alone();
  void open_across_nodes(ItemKind kind, Contribution const& mine);
  [[nodiscard]] std::uint64_t digest(ItemKind kind) const;
  /// Returns the arguments that the digest covers.
  [[nodiscard]] CallArguments arguments(ItemKind kind) const;
  void open(ItemKind kind, Contribution const& mine);
  void open_as_receiver();
  void close_round_after_failure();
  void decline_rest() noexcept;
  void decline_arrived() noexcept;
  /// Returns whether this rank must close the range before any other call on the group.
  [[nodiscard]] bool closes_first() const noexcept {
    return options_.release == Release::lazy && is_receiver() && has_group();
  }

  char const* operation_;
  Collective collective_;
  // Inline capacity avoids allocations, because a range through the arenas takes only microseconds.
  using Ranks = boost::container::small_vector<int, 8>;
  Ranks ranks_;    ///< ranks of the job, as given
  Ranks members_;  ///< the same ranks in the group
  spi::TimeoutPolicy timeout_policy_;
  GatherOptions options_;
  std::shared_ptr<node::Group> group_;  ///< null in a group of one rank
  std::unique_ptr<ExchangeBackend> exchange_;
  std::unique_ptr<MultiNodeRange> multi_node_;  ///< null unless the group spans nodes
  bool files_ = false;
  bool lazy_ = false;
  int rank_ = 0;
  Role role_ = Role::unlisted;
  std::uint64_t range_ = 0;
  std::uint64_t round_ = 0;
  struct MemberContribution {
    ContributionDescriptor part{};
    bool received = false;
  };
  /// By member. Copies, because ranges opened inside this one overwrite the arrival lines.
  boost::container::small_vector<MemberContribution, 2> contributions_;
  bool open_ = false;
  std::optional<UserCodeScope> user_code_{};  ///< while the caller reads the items
};

}  // namespace crossrank::workspace
