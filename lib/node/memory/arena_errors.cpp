#include "lib/node/memory/arena.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::node {

std::string Arena::who_holds() {
  auto held = per_rank<std::size_t>(memory_.ranks);
  std::size_t messages = 0;
  for (auto const& deferred : deferred_) messages += deferred.awaits == Awaits::reader ? deferred.slot.bytes : 0;
  std::size_t own = 0;
  std::size_t unread = 0;
  for (auto const& entry : entries_) {
    if (entry.state == State::held) own += entry.slot.bytes;
    if (entry.state != State::held && entry.state != State::released) continue;
    auto const ranks = holders(entry.slot);
    for (int const reader : ranks.leased) at_rank(held, reader) += entry.slot.bytes;
    if (!ranks.offered.empty()) unread += entry.slot.bytes;
  }
  std::string text = "this rank's own tensors " + std::to_string(own - std::min(own, messages)) + " bytes";
  if (messages != 0) text += ", its messages under way " + std::to_string(messages) + " bytes";
  if (unread != 0) text += ", published for ranks that have not read them " + std::to_string(unread) + " bytes";
  for (int reader = 0; reader < memory_.ranks; ++reader) {
    if (auto const bytes = at_rank(held, reader); bytes != 0) {
      text += ", leased by rank " + std::to_string(reader) + " " + std::to_string(bytes) + " bytes";
    }
  }
  return text;
}

ErrorInfo Arena::no_space_error(std::size_t wanted) {
  auto const used = header_.reserved_bytes.load(std::memory_order_relaxed);
  std::size_t mine = 0;
  for (auto const& entry : entries_) mine += entry.state == State::unused ? 0 : entry.slot.bytes;
  return {.operation = "arena",
          .message = "no space for " + std::to_string(wanted) + " bytes: all arenas of this node hold " +
                     std::to_string(used) + " of at most " + std::to_string(cap_bytes_) + ", those of other ranks " +
                     std::to_string(used - std::min<std::uint64_t>(used, mine)) + "; of this one, " + who_holds(),
          .expected = std::to_string(wanted) + " bytes",
          .got = std::to_string(cap_bytes_ > used ? cap_bytes_ - used : 0) + " bytes",
          .resource = "arena of rank " + std::to_string(memory_.rank),
          .hint =
              "drop received tensors, call clean() of a workspace whose state has been read, or raise "
              "CROSSRANK_ARENA_CAP"};
}

void Arena::fail_full(std::size_t wanted) { throw UnavailableError(no_space_error(wanted)); }

void Arena::fail_refused(std::size_t wanted, int error) {
  auto info = no_space_error(wanted);
  info.got.clear();
  info.hint = "raise the memory limit of this container, or give /dev/shm more space (docker --shm-size)";
  platform::throw_io(std::move(info), error);
}

void Arena::fail_without_range(std::size_t wanted) {
  std::size_t longest = memory_.mapping->size() - end_;
  for (auto const& [offset, bytes] : cold_) longest = std::max(longest, bytes);
  throw UnavailableError(
      {.operation = "arena",
       .message = "no consecutive addresses for " + std::to_string(wanted) + " bytes in an arena of " +
                  std::to_string(memory_.mapping->size()) + " bytes; " + who_holds(),
       .expected = std::to_string(wanted) + " bytes",
       .got = std::to_string(longest) + " bytes",
       .resource = "arena of rank " + std::to_string(memory_.rank),
       .hint = "drop received tensors, or raise the limits of file size and address space (ulimit -f, ulimit -v)"});
}

}  // namespace crossrank::node
