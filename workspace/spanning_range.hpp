#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/user_code.hpp"
#include "lib/node/group.hpp"
#include "workspace/medium.hpp"

namespace crossrank::workspace {

/// The two meetings of a range whose group stands on several nodes.
///
/// At the first all ranks say what they hand over. Ranks on the receiver's node leave it in the node's shared memory,
/// or all of them in files; those on other nodes keep a copy and send it when the receiver asks for it, one at a time,
/// so that it never holds what it does not want. All ranks wait for the first meeting, and `Release::lazy` is as
/// strict.
class SpanningRange {
 public:
  struct Parts {
    char const* operation = "";
    Collective collective{};
    std::vector<int> members{};  ///< of the group; the first one receives
    spi::Patience patience{};
    std::uint64_t digest = 0;
    CallNotes notes{};
    std::unique_ptr<Medium> medium{};                        ///< the memory of this node; null where there is none
    std::function<std::unique_ptr<Medium>()> make_medium{};  ///< files; may fail
    bool files = false;
  };
  explicit SpanningRange(Parts parts);

  /// The first meeting.
  void open(Contribution const& mine, bool writes);
  void receive(std::size_t index, Collector& collector);
  /// The second meeting.
  void close();
  void abort(std::string_view why) noexcept;

 private:
  /// What a rank says at the first meeting.
  struct Announced {
    Descriptor part{};
    bool failed = false;
    std::array<char, 64> error_type{};
    std::array<char, 440> error_text{};
  };
  enum class Wish : std::uint8_t { send = 1, decline = 2 };

  [[nodiscard]] Announced publish(Contribution const& mine);
  [[nodiscard]] bool on_this_node(int member) const;
  [[nodiscard]] int place_of(int member) const;
  void meet();
  void throw_if_one_failed();
  void receive_remote(int member, Announced const& announced, Collector& collector);
  void say(int member, Wish wish);
  void serve();
  [[nodiscard]] spi::Transport& transport() const { return *parts_.collective.transport(); }

  Parts parts_;
  std::shared_ptr<node::Group> group_;       ///< of this node
  std::shared_ptr<spi::Transport> channel_;  ///< for what goes between nodes
  std::vector<Announced> announced_{};       ///< by member of the group
  std::vector<bool> received_{};             ///< by item
  std::vector<std::byte> kept_{};            ///< for a receiver on another node
  bool serves_ = false;
  std::unique_ptr<UserCode> user_code_{};
};

}  // namespace crossrank::workspace
