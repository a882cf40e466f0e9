#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include <crossrank/device.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/spi/device_messages.hpp"
#include "lib/node/memory/call_arguments.hpp"

namespace crossrank::algorithms {

/// A range of bytes of a buffer.
struct ByteRun {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// A validated call in bytes, which an `Execution` runs on any transport.
struct Call {
  /// What a call does on the CPU transport.
  enum class HostPart : std::uint8_t {
    whole,               ///< the operation itself
    comparison,          ///< only compares the signatures, by a barrier: the data goes another way
    exchange_of_counts,  ///< only compares the signatures, and gathers `in`
    nothing,             ///< the data goes another way, and nobody compares
  };

  /// The members that only messages use.
  struct Message {
    int partner = 0;  ///< the other side; none for a receive from any rank
    std::uint32_t tag = 0;
    std::shared_ptr<int> source{};             ///< where a receive from any rank stores the sender
    DeviceMessages* on_devices = nullptr;      ///< the transport, where the payload may stay on a GPU
    std::weak_ptr<DeviceSlot> device_slot{};   ///< holds the payload of such a send
    std::shared_ptr<DevicePayload> payload{};  ///< where such a receive finds the payload
  };

  spi::Signature signature{};
  spi::Source in{};                           ///< none where this rank gives nothing
  spi::Sink out{};                            ///< none where this rank gets nothing
  std::vector<std::size_t> counts{};          ///< by rank, of what is gathered, scattered or sent
  std::vector<std::size_t> receive_counts{};  ///< by rank, of an exchange
  bool is_even = false;                       ///< of an exchange: on all ranks all parts have the same size
  int root = 0;
  Message message{};
  spi::Reduction reduction{};
  ReduceOrder order = ReduceOrder::any;  ///< of tensors on a device; others are always reduced in rank order
  Device device{};                       ///< where the tensors are
  std::vector<ByteRun> in_runs{};  ///< the bytes of `in` on a device that this piece of a longer call takes; empty: all
  std::vector<ByteRun> out_runs{};  ///< likewise of `out`
  HostPart host_part = HostPart::whole;
  CallArguments arguments{};       ///< the arguments for people, in case that ranks disagree
  char const* called = nullptr;    ///< how the user called it, where that is not the operation's own name
  std::function<void()> pack{};    ///< fills the buffer of `in` before the first operation; empty: nothing to do
  std::function<void()> unpack{};  ///< takes the results from the buffer of `out` after the last one

  /// What the operations of this call are posted with; valid as long as the call stays where it is.
  [[nodiscard]] spi::Signature noted() const noexcept {
    return {signature.op_kind, signature.digest, arguments.bytes()};
  }
  [[nodiscard]] std::size_t in_bytes() const noexcept { return bytes_of(in.bytes.size(), in_runs); }
  [[nodiscard]] std::size_t out_bytes() const noexcept { return bytes_of(out.bytes.size(), out_runs); }
  [[nodiscard]] char const* name() const noexcept {
    return called != nullptr ? called : spi::to_string(signature.op_kind);
  }

 private:
  [[nodiscard]] static std::size_t bytes_of(std::size_t all, std::vector<ByteRun> const& runs) noexcept {
    if (runs.empty()) return all;
    return std::accumulate(runs.begin(), runs.end(), std::size_t{0},
                           [](std::size_t sum, ByteRun const& run) { return sum + run.bytes; });
  }
};

}  // namespace crossrank::algorithms
