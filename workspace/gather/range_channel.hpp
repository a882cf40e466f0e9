#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/core/pending_work.hpp"

namespace crossrank::workspace {

/// The messages of a group's ranges between nodes.
///
/// A receiver asks the owners of contributions for one after the other, or declines them. An owner answers whenever its
/// thread waits for something, in any group or queue, so that the receiver does not depend on what the owner does while
/// the range is open. Used by one thread at a time.
class RangeChannel final : public detail::PendingWork, public std::enable_shared_from_this<RangeChannel> {
 public:
  enum class Choice : std::uint64_t { send = 1, decline = 2 };

  /// `transport` connects the same ranks as the group, and nothing else uses it.
  explicit RangeChannel(std::shared_ptr<spi::Transport> transport) : transport_(std::move(transport)) {}

  /// Returns the number of the group's next range. All ranks call it once for each range.
  [[nodiscard]] std::uint64_t next_range() noexcept { return ++ranges_; }

  /// Receiver: tells an owner what to do with its contribution to a range.
  void choose(int owner, std::uint64_t range, Choice choice, spi::TimeoutPolicy const& policy);
  /// Receiver: receives the contribution that it has chosen last.
  void receive(int owner, std::shared_ptr<std::vector<std::byte>> const& bytes, spi::TimeoutPolicy const& policy);

  /// Owner: offers its contribution to a range.
  void offer(std::uint64_t range, int receiver, std::vector<std::byte> bytes);
  /// Owner: waits until the receiver has made its choice, and has the contribution if it wants it.
  void serve(std::uint64_t range, spi::TimeoutPolicy const& policy);
  /// Owner: takes an offer back, because the range has failed.
  void withdraw(std::uint64_t range) noexcept;

  void abort(std::string_view why) noexcept { transport_->abort(why); }
  ProgressMade make_progress() noexcept override;

 private:
  /// The message of a receiver.
  struct Asked {
    std::uint64_t range = 0;
    Choice choice = Choice::decline;
  };
  struct Offer {
    int receiver = 0;
    std::shared_ptr<std::vector<std::byte>> bytes{};
    std::optional<spi::RequestId> sending{};
    bool chosen = false;
  };
  /// The next message of one receiver, for which this rank waits.
  struct Expected {
    std::shared_ptr<Asked> message{};
    spi::RequestId request{};
  };

  /// Returns whether a receiver has not made its choice about every offer.
  [[nodiscard]] bool must_hear_from(int receiver) const noexcept;
  /// Expects the next message of a receiver, if one must come and this object does not do so already.
  void expect_from(int receiver);
  /// Does what a receiver has asked for.
  void answer(int receiver, Asked const& message);
  /// Returns whether the receiver has what it wants of an offer.
  [[nodiscard]] static bool is_served(Offer const& offer) noexcept { return offer.chosen && !offer.sending; }
  [[nodiscard]] bool advance();

  std::shared_ptr<spi::Transport> transport_;
  std::uint64_t ranges_ = 0;
  std::map<std::uint64_t, Offer> offers_{};  ///< by the number of the range
  std::map<int, Expected> expected_{};       ///< by receiver
  std::exception_ptr failure_{};             ///< of an answer that was given during another wait
  bool in_use_ = false;                      ///< an answer is being given, which may wait
};

}  // namespace crossrank::workspace
