#include "lib/node/memory/group_blocks.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/memory/corruption.hpp"
#include "lib/node/memory/segment.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::node {
namespace {

/// Copies word by word: other ranks may be checking whether they can take the block.
void clear(std::byte* at, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t))
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(at + i)).store(0, std::memory_order_relaxed);
}

}  // namespace

GroupBlocks::GroupBlocks(std::byte* control, int ranks, int rank, std::shared_ptr<platform::Fd> control_fd)
    : control_(control), geometry_(ranks), rank_(rank), control_fd_(std::move(control_fd)) {}

GroupHeader& GroupBlocks::header(std::uint32_t index) const noexcept {
  return *reinterpret_cast<GroupHeader*>(control_ + geometry_.groups_offset() + index * geometry_.group_stride());
}

MemberBlock* GroupBlocks::members(std::uint32_t index) const noexcept {
  return reinterpret_cast<MemberBlock*>(reinterpret_cast<std::byte*>(&header(index)) + sizeof(GroupHeader));
}

Channel* GroupBlocks::channels(std::uint32_t index, int size) const noexcept {
  return reinterpret_cast<Channel*>(members(index) + size);
}

std::uint32_t GroupBlocks::made() const noexcept {
  return std::min(reinterpret_cast<ControlHeader*>(control_)->groups_made.load(std::memory_order_acquire),
                  geometry_.group_capacity());
}

int GroupBlocks::member_count(std::uint32_t index) const noexcept {
  auto const max = static_cast<std::uint32_t>(geometry_.ranks());
  return static_cast<int>(std::min(header(index).size.load(std::memory_order_relaxed), max));
}

std::string GroupBlocks::name(std::uint32_t index) const {
  auto const& text = header(index).name;
  return {text, ::strnlen(text, sizeof text)};
}

void GroupBlocks::require_group(std::uint32_t index, std::vector<int> const& members, Origin origin,
                                std::string const& operation) const {
  auto const refuse = [&](std::string field, std::string expected, std::string got) {
    throw_corrupt({.operation = operation,
                   .place = block_text(index),
                   .field = std::move(field),
                   .expected = std::move(expected),
                   .got = std::move(got)});
  };
  if (index >= made()) refuse("number", "below " + std::to_string(made()), std::to_string(index));
  auto const& block = header(index);
  auto const state = BlockUse::unpack(block.use_word.load(std::memory_order_acquire)).state;
  if (state != BlockState::ready) refuse("state", "a group", "state " + std::to_string(static_cast<unsigned>(state)));
  Origin const recorded{.parent = block.parent.load(std::memory_order_relaxed),
                        .round = block.split_round.load(std::memory_order_relaxed)};
  auto const text = [](Origin one) {
    return "round " + std::to_string(one.round) + " of block " + std::to_string(one.parent);
  };
  if (recorded.parent != origin.parent || recorded.round != origin.round)
    refuse("origin", text(origin), text(recorded));
  auto const size = block.size.load(std::memory_order_relaxed);
  if (size != members.size()) refuse("size", std::to_string(members.size()), std::to_string(size));
  for (std::size_t member = 0; member < members.size(); ++member) {
    auto const rank = this->members(index)[member].node_rank.load(std::memory_order_relaxed);
    if (rank != static_cast<std::uint32_t>(members[member]))
      refuse("rank of member " + std::to_string(member), std::to_string(members[member]), std::to_string(rank));
  }
}

bool GroupBlocks::departed(std::uint32_t rank) const noexcept {
  if (rank >= static_cast<std::uint32_t>(geometry_.ranks())) return false;
  auto const state = static_cast<AttachState>(records()[rank].state.load(std::memory_order_acquire));
  return state == AttachState::dead || state == AttachState::left;
}

/// Returns whether members of a block may still learn of it, or have.
bool GroupBlocks::announced(GroupHeader const& group) const noexcept {
  if (group.split_round == 0) return true;
  auto const parent_block = group.parent.load(std::memory_order_relaxed);
  if (parent_block >= geometry_.group_capacity()) return true;
  auto const& parent = header(parent_block);
  // A member that has passed the split and not joined yet is still inside a call of the parent.
  if (parent.use_word.load(std::memory_order_acquire) != group.parent_use_word) return false;
  auto const last = Decision::unpack(parent.decision.load(std::memory_order_acquire));
  return !last.failed() || last.round > group.split_round;
}

bool GroupBlocks::all_left(std::uint32_t index) const noexcept {
  auto const& group = header(index);
  auto const* const all = members(index);
  return std::all_of(all, all + member_count(index), [&](MemberBlock const& member) {
    auto const presence = member.presence.load(std::memory_order_seq_cst);
    return presence == has_left || departed(member.node_rank.load(std::memory_order_relaxed)) ||
           (presence == not_yet_joined && !announced(group));
  });
}

bool GroupBlocks::is_garbage(std::uint32_t index, BlockUse use) const noexcept {
  switch (use.state) {
    case BlockState::free: return true;
    case BlockState::being_made: return departed(static_cast<std::uint32_t>(use.maker));
    case BlockState::ready: return all_left(index);
    case BlockState::queue: return queue_is_over(index);
  }
  return false;
}

bool GroupBlocks::is_anyone_ringing() const noexcept {
  for (int rank = 0; rank < geometry_.ranks(); ++rank)
    if (records()[rank].ringing.load(std::memory_order_seq_cst) != 0 && !departed(static_cast<std::uint32_t>(rank)))
      return true;
  return false;
}

std::optional<std::uint32_t> GroupBlocks::try_claim(std::size_t bytes, std::string const& name, bool& rung) {
  for (std::uint32_t index = 0; index < geometry_.group_capacity(); ++index) {
    // A block that was never made has no reserved pages and must not be touched before. Other blocks, which may have
    // been shorter, have at least the first page.
    if (index < made() && !is_garbage(index, BlockUse::unpack(header(index).use_word.load(std::memory_order_seq_cst))))
      continue;
    auto const offset = geometry_.groups_offset() + index * geometry_.group_stride();
    if (int const error = reserve_pages(*control_fd_, offset, bytes); error != 0) {
      auto const& path = reinterpret_cast<ControlHeader*>(control_)->flight_file;
      std::string const file(path, ::strnlen(path, sizeof path));
      platform::throw_io("make group " + name, file.empty() ? "control segment" : file, error,
                         control_memory_hint(file, error));
    }
    auto& word = header(index).use_word;
    auto seen = word.load(std::memory_order_seq_cst);
    auto use = BlockUse::unpack(seen);
    if (!is_garbage(index, use)) continue;
    use = {.number = use.number + 1, .maker = rank_, .state = BlockState::being_made};
    // Fails when the block has been taken for another use since it was judged.
    if (!word.compare_exchange_strong(seen, use.pack(), std::memory_order_seq_cst)) continue;
    // Another rank may ring the doorbells of the former use. It would write into the new one.
    if (use.number == 1 || !is_anyone_ringing()) return index;
    free(index, use);
    rung = true;
  }
  return std::nullopt;
}

std::uint32_t GroupBlocks::claim(std::size_t bytes, std::string const& name) {
  platform::Deadline deadline(std::chrono::seconds(1));
  platform::Backoff backoff;
  while (true) {
    bool rung = false;
    if (auto const index = try_claim(bytes, name, rung)) return *index;
    if (!rung || deadline.expired()) break;
    backoff.pause(deadline.next_wait());
    deadline.tick();
  }
  throw UnavailableError({.operation = "make group " + name,
                          .message = "too many groups and queues at once on this node",
                          .expected = "at most " + std::to_string(geometry_.group_capacity()) + " in use by the " +
                                      std::to_string(geometry_.ranks()) + " ranks here",
                          .hint = "drop unused group and queue handles on all of their ranks"});
}

BlockUse GroupBlocks::open(std::uint32_t index, BlockState state) noexcept {
  auto& groups_made = reinterpret_cast<ControlHeader*>(control_)->groups_made;
  auto high = groups_made.load(std::memory_order_relaxed);
  while (high <= index && !groups_made.compare_exchange_weak(high, index + 1, std::memory_order_acq_rel)) {
  }
  auto& word = header(index).use_word;
  auto use = BlockUse::unpack(word.load(std::memory_order_relaxed));
  use.state = state;
  word.store(use.pack(), std::memory_order_release);
  return use;
}

GroupBlocks::Made GroupBlocks::make(std::vector<int> const& members, std::string const& name, Origin origin) {
  auto const index = claim(ControlGeometry::group_bytes(static_cast<int>(members.size())), name);
  fill(index, members, name, origin);
  return {.index = index, .use = open(index, BlockState::ready)};
}

void GroupBlocks::fill(std::uint32_t index, std::vector<int> const& members, std::string const& name,
                       Origin origin) noexcept {
  auto& group = header(index);
  auto* const blocks = this->members(index);
  clear(reinterpret_cast<std::byte*>(blocks),
        ControlGeometry::group_bytes(static_cast<int>(members.size())) - sizeof(GroupHeader));
  for (std::size_t i = 0; i < members.size(); ++i)
    blocks[i].node_rank.store(static_cast<std::uint32_t>(members[i]), std::memory_order_relaxed);
  group.size = static_cast<std::uint32_t>(members.size());
  group.parent = origin.parent;
  group.parent_use_word = header(origin.parent).use_word.load(std::memory_order_relaxed);
  group.split_round = origin.round;
  std::memset(group.name, 0, sizeof group.name);
  name.copy(group.name, sizeof group.name - 1);
  group.decision.store(0, std::memory_order_relaxed);
}

void GroupBlocks::free(std::uint32_t index, BlockUse from) noexcept {
  auto expected = from.pack();
  from.state = BlockState::free;
  header(index).use_word.compare_exchange_strong(expected, from.pack(), std::memory_order_acq_rel);
}

void GroupBlocks::discard(Made const& made) noexcept { free(made.index, made.use); }

void GroupBlocks::join(std::uint32_t index, int member) noexcept {
  members(index)[member].presence.store(joined, std::memory_order_release);
}

void GroupBlocks::leave(std::uint32_t index, int member) noexcept {
  auto const use = BlockUse::unpack(header(index).use_word.load(std::memory_order_acquire));
  // Of two members that leave at once, the later one of these operations sees the other.
  members(index)[member].presence.exchange(has_left, std::memory_order_seq_cst);
  if (all_left(index)) free(index, use);
}

}  // namespace crossrank::node
