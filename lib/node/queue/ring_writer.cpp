#include "lib/node/queue/ring_writer.hpp"

#include <chrono>
#include <cstring>
#include <functional>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/group/bulk_copy.hpp"
#include "lib/node/queue/ring_layout.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

/// The time between two searches for memory while no message is taken. Memory also comes back from leases and from
/// other ranks.
constexpr std::chrono::milliseconds between_searches{1};

/// No rank reads the arena of a writer that has gone any more.
std::function<bool()> all_readers_gone(NodeComm& comm, std::uint32_t block, std::uint64_t use_word, int readers) {
  // The communicator's own arena calls this: the communicator outlives it and must not be kept alive by it.
  return [comm = &comm, block, use_word, readers] {
    auto const& blocks = comm->blocks();
    if (blocks.header(block).use_word.load(std::memory_order_acquire) != use_word) return true;
    for (int reader = 1; reader <= readers; ++reader) {
      auto const& endpoint = blocks.endpoints(block)[reader];
      auto const [use, rank, state] = EndpointWord::unpack(endpoint.state.load(std::memory_order_seq_cst));
      if (state != EndpointState::taken) continue;
      bool const known = rank < static_cast<std::uint32_t>(comm->ranks());
      if (!known || !comm->has_departed(static_cast<int>(rank))) return false;
    }
    return true;
  };
}

void copy_parts(NodeComm& comm, std::byte* to, MessageParts parts) {
  for (auto const& part : parts) {
    part.read([&comm, &to](std::span<std::byte const> piece) {
      bulk_copy(comm, to, piece.data(), piece.size());
      to += piece.size();
    });
  }
}

}  // namespace

std::unique_ptr<RingWriter> RingWriter::make(std::shared_ptr<NodeComm> comm, Plan const& plan,
                                             std::string const& name) {
  comm->require_own_process("make a queue");
  auto const bytes = ring_bytes(plan.chunk_bytes, plan.chunks, comm->arena_bytes());
  auto const refuse = [&](std::string message, std::string expected, std::string got, std::string hint) {
    throw UsageError({.operation = "make queue " + name,
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .hint = std::move(hint)});
  };
  if (plan.readers < 1) refuse("a queue without readers", "at least 1", std::to_string(plan.readers), "");
  if (bytes == 0) {
    auto const space = comm->arena_bytes();
    bool const chunk_fits = plan.chunk_bytes <= space && stride_of(plan.chunk_bytes) <= space;
    auto const max = chunk_fits ? space / stride_of(plan.chunk_bytes) : 0;
    throw UnavailableError(
        {.operation = "make queue " + name,
         .message = "a queue that its writer's memory cannot hold",
         .expected = max == 0 ? "chunks of less than " + std::to_string(space) + " bytes"
                              : "at most " + std::to_string(max) + " chunks of that length",
         .got = std::to_string(plan.chunks) + " chunks of " + std::to_string(plan.chunk_bytes) + " bytes",
         .hint = "make chunks or chunk_bytes smaller: longer messages travel in memory of their own"});
  }
  auto& arena = comm->arena();
  auto const ring = arena.allocate(bytes);
  try {
    QueueHeader const queue{.ring_offset = ring.offset,
                            .chunk_bytes = plan.chunk_bytes,
                            .chunks = plan.chunks,
                            .readers = static_cast<std::uint32_t>(plan.readers)};
    auto const block = comm->blocks().make_queue(queue, name);
    return std::unique_ptr<RingWriter>(new RingWriter(std::move(comm), block, ring, queue));
  } catch (...) {
    arena.release(ring);
    throw;
  }
}

RingWriter::RingWriter(std::shared_ptr<NodeComm> comm, std::uint32_t block, Slot ring, QueueHeader const& queue)
    : RingEndpoint(std::move(comm), block, 0, 0, queue), chunks_at_(comm_->arena().at(ring)), ring_(ring) {
  // The slot may have been part of another ring before, whose numbers must not be taken for those of this one.
  for (std::uint32_t i = 0; i < chunks_; ++i) new (chunks_at_ + i * stride()) QueueChunk{};
  auto& blocks = comm_->blocks();
  auto use = BlockUse::unpack(blocks.header(block_).use_word.load(std::memory_order_relaxed));
  auto const own_rank = static_cast<std::uint32_t>(comm_->rank());
  own().state.store(EndpointWord{.use = use.number, .rank = own_rank, .state = EndpointState::taken}.pack(),
                    std::memory_order_relaxed);
  blocks.open_queue(block_);
  use.state = BlockState::queue;
  use_word_ = use.pack();
}

RingWriter::~RingWriter() {
  if (!comm_->is_own_process()) return;
  if (place_) comm_->arena().release(*place_);
  auto const ready = all_readers_gone(*comm_, block_, use_word_, readers_);
  leave(state_of(own()) == EndpointState::closed ? EndpointState::gone : EndpointState::dropped);
  comm_->arena().release_when(ready, ring_);
  for (auto const& held : held_) comm_->arena().release_when(ready, held.slot);
}

std::uint64_t RingWriter::slowest() const noexcept {
  auto least = next_ - 1;
  for (int reader = 1; reader <= readers_; ++reader) {
    auto const& held = endpoint(reader);
    auto const taken = atomic_ops::published(held.cursor);
    if (taken < least && !has_closed(state_of(held))) least = taken;
  }
  return least;
}

bool RingWriter::has_space() noexcept {
  if (next_ - 1 - floor_ < chunks_) return true;
  floor_ = slowest();
  return next_ - 1 - floor_ < chunks_;
}

bool RingWriter::has_memory(std::size_t bytes) {
  if (bytes <= chunk_bytes_) return true;
  if (place_ && place_->bytes >= bytes) return true;
  if (place_) comm_->arena().release(*std::exchange(place_, std::nullopt));
  release_taken();
  auto const now = platform::system().now();
  if (held_.size() >= full_with_ && bytes >= refused_bytes_ && now < search_again_at_) return false;
  try {
    place_ = comm_->arena().allocate(bytes, Arena::WhenFull::ask);
    full_with_ = SIZE_MAX;
    return true;
  } catch (UnavailableError const&) {
    full_with_ = held_.empty() ? SIZE_MAX : held_.size();
    refused_bytes_ = bytes;
    search_again_at_ = now + between_searches;
    return held_.empty();
  }
}

std::uint64_t RingWriter::awaited_message() const noexcept {
  if (next_ - 1 - floor_ >= chunks_) return next_ - chunks_;
  return !held_.empty() && held_.size() >= full_with_ ? held_.front().number : 0;
}

bool RingWriter::drained() noexcept { return slowest() == next_ - 1; }

void RingWriter::put(MessageParts parts) {
  auto* const at = chunks_at_ + position_ * stride();
  auto* const payload = at + sizeof(QueueChunk);
  auto& chunk = *reinterpret_cast<QueueChunk*>(at);
  std::size_t bytes = 0;
  for (auto const& part : parts) bytes += part.size();
  // May take a lock, which would otherwise wait for the stores below: readers poll the chunk meanwhile and take its
  // cache line away once more.
  comm_->note({.op_kind = spi::OpKind::enqueue, .block = block_, .round = next_, .bytes = bytes});
  if (bytes > chunk_bytes_) {
    put_large(payload, parts, bytes);
    chunk.bytes = bytes | QueueChunk::large;
  } else {
    copy_parts(*comm_, payload, parts);
    chunk.bytes = bytes;
  }
  CROSSRANK_CRASH_POINT("node.queue.written");
  atomic_ops::deliver(chunk.number, next_, [&] {
    CROSSRANK_CRASH_POINT("node.queue.published");
    for (int reader = 1; reader <= readers_; ++reader) ring(endpoint(reader).doorbell);
  });
  own().cursor.store(next_, std::memory_order_relaxed);  // for inspection only
  ++next_;
  position_ = position_ + 1 == chunks_ ? 0 : position_ + 1;
}

void RingWriter::put_large(std::byte* payload, MessageParts parts, std::size_t bytes) {
  release_taken();
  bool const placed = place_ && place_->bytes >= bytes;
  auto const slot = placed ? *std::exchange(place_, std::nullopt) : comm_->arena().allocate(bytes);
  try {
    copy_parts(*comm_, comm_->arena().at(slot), parts);
    held_.push_back({slot, next_});
  } catch (...) {
    comm_->arena().release(slot);
    throw;
  }
  QueueLarge const large{.offset = slot.offset, .generation = slot.generation, .slot = slot.id, .unused = 0};
  std::memcpy(payload, &large, sizeof large);
}

void RingWriter::release_taken() noexcept {
  if (held_.empty()) return;
  floor_ = slowest();
  for (; !held_.empty() && held_.front().number <= floor_; held_.pop_front())
    comm_->arena().release(held_.front().slot);
}

void RingWriter::close() noexcept {
  if (left_ || !comm_->is_own_process() || has_closed(state_of(own()))) return;
  status_.close();
  announce(EndpointState::closed);
}

std::optional<RingFailure> RingWriter::find_failure() {
  if (auto known = status_.failure()) return known;
  if (status_.lost_endpoints().empty()) return std::nullopt;
  auto const lost = status_.lost_endpoints();  // a second check: finds a death that others have left for
  if (lost.empty()) return std::nullopt;
  return status_.declare(status_.cause_of(lost));
}

std::vector<int> RingWriter::waited_for(std::uint64_t number) const {
  auto endpoints = readers_before(number);
  for (auto& endpoint : endpoints) ++endpoint;
  return status_.waited_for(endpoints);
}

std::vector<int> RingWriter::readers_before(std::uint64_t number) const {
  std::vector<int> behind;
  for (int reader = 0; reader < readers_; ++reader) {
    if (taken_by(reader) < number && !has_closed(state_of(endpoint(reader + 1)))) behind.push_back(reader);
  }
  return behind;
}

bool RingWriter::has_no_readers() const noexcept {
  for (int reader = 1; reader <= readers_; ++reader) {
    if (!has_closed(state_of(endpoint(reader)))) return false;
  }
  return true;
}

std::uint64_t RingWriter::taken_by(int reader) const noexcept {
  return atomic_ops::published(endpoint(reader + 1).cursor);
}

int RingWriter::rank_of(int reader) const noexcept {
  auto const rank = holder_of(endpoint(reader + 1));
  return rank < static_cast<std::uint32_t>(comm_->ranks()) ? static_cast<int>(rank) : -1;
}

}  // namespace crossrank::node
