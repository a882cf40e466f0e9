#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include <crossrank/device.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/stream.hpp>

namespace crossrank {

/// Memory on the sender's GPU that holds the payload of one message, from the copy of the tensor until the receiver's
/// stream has passed its own copy. The owner uses it again once no other reference is left and the receiver has done
/// so.
struct DeviceSlot {
  std::byte* data = nullptr;                ///< on the device
  std::shared_ptr<spi::Storage> storage{};  ///< the memory that the slot is a part of
  std::size_t number = 0;                   ///< among the slots of its owner
  Event written{};                          ///< the end of the copy of the tensor
};

/// A payload that a receive has found on a GPU, in place of bytes in host memory. Without memory: it was in host
/// memory.
struct DevicePayload {
  std::shared_ptr<spi::Storage> memory{};  ///< of the sender, open in this process
  std::size_t offset = 0;                  ///< of the first byte
  std::shared_ptr<void const> lease{};     ///< keeps the sender from using the slot again
};

/// Interface of a transport besides `spi::Transport` if its messages can leave their payloads on a GPU.
class DeviceMessages {
 public:
  virtual ~DeviceMessages() = default;

  /// Returns memory for a message of `bytes` bytes to `dst`. Null when the message must go through host memory: `dst`
  /// has not opened this rank's memory, all slots are in use, or the device has no memory for them.
  [[nodiscard]] virtual std::shared_ptr<DeviceSlot> take_device_slot(Stream const& stream, std::size_t bytes,
                                                                     int dst) = 0;
  /// Does the same as `post_send` for a payload in `slot`, which has been written. `bytes` is its length.
  [[nodiscard]] virtual spi::RequestId post_device_send(std::shared_ptr<DeviceSlot> slot, std::size_t bytes, int dst,
                                                        std::uint32_t tag) = 0;
  /// Does the same as `post_recv`, or as `post_recv_any` where `source` is not null. A payload on a GPU is stored in
  /// `found` and not copied.
  [[nodiscard]] virtual spi::RequestId post_device_recv(spi::Sink bytes, int src, std::uint32_t tag,
                                                        std::shared_ptr<int> source,
                                                        std::shared_ptr<DevicePayload> found) = 0;

 protected:
  DeviceMessages() = default;
  DeviceMessages(DeviceMessages const&) = default;
  DeviceMessages& operator=(DeviceMessages const&) = default;
  DeviceMessages(DeviceMessages&&) = default;
  DeviceMessages& operator=(DeviceMessages&&) = default;
};

}  // namespace crossrank
