#include "collectives/message/packet_op.hpp"

#include <algorithm>

#include "lib/tensor/copy_memory.hpp"

namespace crossrank::message {

bool Flow::take(Bytes bytes) noexcept {
  std::size_t start = 0;
  if (bytes.size() > expected - received) return false;
  for (auto const& piece : in) {
    while (!bytes.empty() && received >= start && received < start + piece.size()) {
      auto const part = std::min(bytes.size(), start + piece.size() - received);
      copy_memory(piece.data() + (received - start), bytes.data(), part);
      bytes = bytes.subspan(part);
      received += part;
    }
    start += piece.size();
  }
  return bytes.empty();
}

Bytes Flow::next(std::size_t most) const noexcept {
  auto const available = std::min(lead + received, to_send);
  if (sent >= available) return {};
  std::size_t start = 0;
  for (auto const& piece : out) {
    if (sent < start + piece.size())
      return piece.subspan(sent - start, std::min({most, available - sent, start + piece.size() - sent}));
    start += piece.size();
  }
  return {};
}

std::vector<int> Exchange::open() const {
  std::vector<int> members;
  for (std::size_t member = 0; member < in.size(); ++member) {
    if (!in[member].complete() || !out[member].complete()) members.push_back(static_cast<int>(member));
  }
  return members;
}

}  // namespace crossrank::message
