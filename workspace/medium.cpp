#include "workspace/medium.hpp"

#include <algorithm>
#include <cstring>

namespace crossrank::workspace {

Descriptor Descriptor::of(node::Post const& post) {
  Descriptor part{.offset = post.offset,
                  .bytes = post.bytes,
                  .generation = post.slot.generation,
                  .slot = post.slot.id,
                  .is_inline = post.bytes == 0};
  if (part.is_inline) {
    part.bytes = std::min(post.inlined.size(), part.inlined.size());
    std::copy_n(post.inlined.begin(), part.bytes, part.inlined.begin());
  }
  return part;
}

Descriptor Descriptor::of(node::Arrival const& arrival) {
  Descriptor part{.offset = arrival.offset,
                  .bytes = arrival.bytes,
                  .generation = arrival.generation,
                  .slot = arrival.slot,
                  .is_inline = (arrival.flags & node::arrival_inline) != 0};
  if (part.is_inline) std::memcpy(part.inlined.data(), arrival.inlined, part.inlined_part().size());
  return part;
}

std::span<std::byte const> Descriptor::inlined_part() const noexcept {
  return {inlined.data(), std::min<std::size_t>(bytes, inlined.size())};
}

}  // namespace crossrank::workspace
