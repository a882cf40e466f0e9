#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/message/packet.hpp"

namespace crossrank::message {

enum class Kind : std::uint8_t { barrier, broadcast, all_gatherv, exchange, send, recv };

/// A collective's large payload on its way: what comes from one member, piece after piece, and what goes to another.
///
/// A broadcast is a chain from the root on, an all-gather a ring. Either way what goes out is what this rank has of its
/// own, `lead` bytes, then what has come in.
struct Flow {
  int from = -1;  ///< member; none for the start of a chain
  int to = -1;    ///< member; none for its end
  std::vector<std::span<std::byte>> in{};
  std::vector<Bytes> out{};
  std::size_t lead = 0;
  std::size_t received = 0;
  std::size_t sent = 0;
  std::size_t expected = 0;          ///< bytes that will come in
  std::size_t to_send = 0;           ///< bytes that will go out
  std::vector<std::byte> scratch{};  ///< takes the place of a sink that does not fit

  [[nodiscard]] bool complete() const noexcept { return received == expected && sent == to_send; }
  /// Takes the next bytes; false when there are more than was said.
  [[nodiscard]] bool take(Bytes bytes) noexcept;
  /// What can go out next, at most `most` bytes.
  [[nodiscard]] Bytes next(std::size_t most) const noexcept;
};

/// Parts that go from each member to each other one without a detour, once all know that they fit.
struct Exchange {
  struct Transfer {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::size_t moved = 0;
    [[nodiscard]] bool complete() const noexcept { return moved == bytes; }
  };
  std::vector<Transfer> in{};   ///< by member, of the sink
  std::vector<Transfer> out{};  ///< by member, of the source

  /// Members from which something is still to come, or to which something is still to go.
  [[nodiscard]] std::vector<int> open() const;
};

/// One operation under way.
struct PacketOp {
  Kind kind = Kind::barrier;
  spi::OpKind op_kind = spi::OpKind::none;
  std::uint64_t round = 0;   ///< of a collective
  std::uint64_t number = 0;  ///< of a message, in the order of posting
  spi::Source source{};
  spi::Sink sink{};
  std::vector<std::size_t> counts{};
  int peer = 0;  ///< member: root, dst or src
  std::uint32_t tag = 0;
  std::size_t staged = 0;  ///< of a message: bytes handed to the packet transport
  bool under_way = false;  ///< a message whose first bytes have gone or come
  bool flowing = false;
  bool abandoned = false;  ///< a message given up half sent: the rest goes out from a copy
  bool completed = false;
  Flow flow{};
  Exchange exchange{};
  std::exception_ptr failure{};

  [[nodiscard]] bool is_message() const noexcept { return kind == Kind::send || kind == Kind::recv; }
  [[nodiscard]] char const* name() const noexcept { return spi::to_string(op_kind); }
};

}  // namespace crossrank::message
