#include "collectives/message_queue/queue_handle.hpp"

#include <cstring>
#include <string>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"

namespace crossrank::queue {
namespace {

constexpr std::uint64_t handle_magic = 0x3130515552434358;  // "XCCRUQ01"

struct Handle {
  std::uint64_t magic;
  std::uint64_t nonce[2];
  std::uint64_t use_word;
  std::uint32_t block;
  std::uint32_t reserved;
  std::uint64_t checksum;
};
static_assert(sizeof(Handle) == 48);

std::uint64_t checksum_of(Handle const& handle) {
  return codec::checksum(std::as_bytes(std::span(&handle, 1)).first(offsetof(Handle, checksum)));
}

}  // namespace

std::vector<std::byte> write_handle(node::RingId const& name) {
  Handle handle{.magic = handle_magic,
                .nonce = {name.nonce[0], name.nonce[1]},
                .use_word = name.use_word,
                .block = name.block,
                .reserved = 0,
                .checksum = 0};
  handle.checksum = checksum_of(handle);
  auto const bytes = std::as_bytes(std::span(&handle, 1));
  return {bytes.begin(), bytes.end()};
}

node::RingId read_handle(std::span<std::byte const> bytes) {
  auto const refuse = [](std::string section, std::string expected, std::string got) {
    throw FormatError({.operation = "attach to a queue",
                       .message = "the bytes are not a queue handle",
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .hint = "pass all bytes that MessageQueue::handle() returned",
                       .section = std::move(section)});
  };
  Handle handle{};
  if (bytes.size() != sizeof handle)
    refuse("length", std::to_string(sizeof handle) + " bytes", std::to_string(bytes.size()));
  std::memcpy(&handle, bytes.data(), sizeof handle);
  if (handle.magic != handle_magic || handle.reserved != 0) refuse("magic", "a handle of this version", "other bytes");
  if (handle.checksum != checksum_of(handle)) refuse("checksum", "the checksum of its fields", "another checksum");
  return {.nonce = {handle.nonce[0], handle.nonce[1]}, .block = handle.block, .use_word = handle.use_word};
}

}  // namespace crossrank::queue
