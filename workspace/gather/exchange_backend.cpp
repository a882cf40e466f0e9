#include "workspace/gather/exchange_backend.hpp"

#include <algorithm>
#include <cstring>

#include <crossrank/error.hpp>

#include "lib/codec/message/config_binary.hpp"

namespace crossrank::workspace {

ContributionDescriptor ContributionDescriptor::of(node::Post const& post) {
  ContributionDescriptor part{.offset = post.offset,
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

ContributionDescriptor ContributionDescriptor::of(node::Arrival const& arrival) {
  ContributionDescriptor part{.offset = arrival.offset,
                              .bytes = arrival.bytes,
                              .generation = arrival.generation,
                              .slot = arrival.slot,
                              .is_inline = (arrival.flags & node::arrival_inline) != 0};
  if (part.is_inline) std::memcpy(part.inlined.data(), arrival.inlined, part.inlined_part().size());
  return part;
}

std::span<std::byte const> ContributionDescriptor::inlined_part() const noexcept {
  return {inlined.data(), std::min<std::size_t>(bytes, inlined.size())};
}

void throw_beside(std::exception_ptr const& own, Error const& of_group) {
  if (of_group.group_usable()) std::rethrow_exception(own);
  try {
    std::rethrow_exception(own);
  } catch (Error const& error) {
    if (!error.group_usable()) throw;
    auto info = error.info();
    info.group_usable = false;
    info.details.push_back(std::string("the group has failed as well: ") + of_group.what());
    throw_error(error.code(), std::move(info));
  } catch (std::exception const&) {
    throw_error(of_group.code(), of_group.info());
  }
}

void require_sendable_config(Contribution const& own) {
  if (own.config != nullptr) static_cast<void>(codec::encode_config_binary(*own.config));
}

}  // namespace crossrank::workspace
