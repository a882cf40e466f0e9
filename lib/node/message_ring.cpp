#include "lib/node/message_ring.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/bulk_copy.hpp"
#include "lib/node/counters.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

constexpr std::uint64_t line_bytes = 64;

std::uint64_t stride_of(std::uint64_t chunk_bytes) noexcept {
  return (sizeof(QueueChunk) + chunk_bytes + line_bytes - 1) / line_bytes * line_bytes;
}

EndState state_of(QueueEnd const& end) noexcept {
  return EndWord::unpack(end.state.load(std::memory_order_seq_cst)).state;
}

bool has_closed(EndState state) noexcept { return state == EndState::closed || state == EndState::gone; }

/// Bytes of the ring; 0 when they cannot be, whatever the two numbers are.
std::uint64_t ring_bytes(std::uint64_t chunk_bytes, std::uint32_t chunks, std::uint64_t arena_bytes) noexcept {
  if (chunks == 0 || chunk_bytes > arena_bytes) return 0;
  auto const stride = stride_of(chunk_bytes);
  return stride > arena_bytes / chunks ? 0 : stride * chunks;
}

/// Nobody reads any more what the writer that has gone left in its arena.
std::function<bool()> all_readers_gone(NodeDomain& domain, std::uint32_t block, std::uint64_t life, int readers) {
  // Runs inside the domain's own arena: the domain outlives it, and must not be kept alive by it.
  return [domain = &domain, block, life, readers] {
    auto const& blocks = domain->blocks();
    if (blocks.header(block).life.load(std::memory_order_acquire) != life) return true;
    for (int reader = 1; reader <= readers; ++reader) {
      auto const& end = blocks.ends(block)[reader];
      if (state_of(end) != EndState::taken) continue;
      auto const rank = end.domain_rank.load(std::memory_order_acquire);
      bool const known = rank < static_cast<std::uint32_t>(domain->ranks());
      if (!known || !domain->has_departed(static_cast<int>(rank))) return false;
    }
    return true;
  };
}

}  // namespace

// ---------------------------------------------------------------- both ends

RingEnd::RingEnd(std::shared_ptr<NodeDomain> domain, std::uint32_t block, std::uint64_t life, int index)
    : domain_(std::move(domain)),
      block_(block),
      life_(life),
      index_(index),
      ends_(domain_->blocks().ends(block)),
      ring_offset_(domain_->blocks().queue(block).ring_offset),
      chunk_bytes_(domain_->blocks().queue(block).chunk_bytes),
      chunks_(domain_->blocks().queue(block).chunks),
      readers_(static_cast<int>(domain_->blocks().queue(block).readers)) {}

RingName RingEnd::name() const noexcept {
  auto const& header = domain_->header();
  return {.nonce = {header.nonce[0], header.nonce[1]}, .block = block_, .life = life_};
}

std::size_t RingEnd::stride() const noexcept { return stride_of(chunk_bytes_); }

void RingEnd::cancel() noexcept {
  cancelled_.exchange(true, std::memory_order_seq_cst);
  ring(own().bell);
}

void RingEnd::announce(EndState state) noexcept {
  own().state.exchange(EndWord{.use = BlockLife::unpack(life_).use, .state = state}.pack(), std::memory_order_seq_cst);
  if (state == EndState::dropped) domain_->header().departures.fetch_add(1, std::memory_order_seq_cst);
  for (int other = 0; other <= readers_; ++other) {
    if (other != index_) ring(end(other).bell);
  }
}

void RingEnd::leave(EndState how) noexcept {
  if (!left_ && domain_->is_own_process()) announce(how);
  left_ = true;
}

WaitEnd RingEnd::wait_asleep(std::function<bool()> const& done, std::function<bool()> const& lost,
                             RingWait const& limits) {
  auto& bell = own().bell;
  platform::Deadline deadline(limits.timeout);
  auto next_warning = limits.warn_every;
  std::stop_callback const on_stop(limits.stop, [&bell] { ring(bell); });
  auto ended = WaitEnd::timeout;
  for (;;) {
    auto const seen = steps::announce_sleep(bell);
    if (done()) {
      ended = WaitEnd::ready;
    } else if (cancelled_.load(std::memory_order_seq_cst) || limits.stop.stop_requested()) {
      ended = WaitEnd::cancelled;
    } else if (lost()) {
      ended = done() ? WaitEnd::ready : WaitEnd::lost;
    } else if (!deadline.expired()) {
      count(counters().futex_waits);
      platform::system().futex_wait(reinterpret_cast<std::uint32_t const*>(&bell), seen,
                                    std::min(deadline.next_wait(), limits.look_every));
      deadline.tick();
      if (deadline.idle() >= next_warning) {
        next_warning = deadline.idle() + limits.warn_every;
        limits.warn(deadline.idle());
      }
      continue;
    }
    break;
  }
  steps::announce_awake(bell);
  return ended;
}

// ---------------------------------------------------------------- writing

std::unique_ptr<RingWriter> RingWriter::make(std::shared_ptr<NodeDomain> domain, Plan const& plan,
                                             std::string const& name) {
  domain->require_own_process("make a queue");
  auto const bytes = ring_bytes(plan.chunk_bytes, plan.chunks, domain->arena_bytes());
  if (bytes == 0 || plan.readers < 1) {
    throw UsageError({.operation = "make queue " + name,
                      .message = "a queue of no or too many bytes or readers",
                      .expected = "at least one chunk, one reader, and at most the arena's " +
                                  std::to_string(domain->arena_bytes()) + " bytes",
                      .got = std::to_string(plan.chunks) + " chunks of " + std::to_string(plan.chunk_bytes) +
                             " bytes for " + std::to_string(plan.readers) + " readers"});
  }
  auto& arena = domain->arena();
  auto const ring = arena.allocate(bytes);
  try {
    auto const block = domain->blocks().make_queue({.ring_offset = ring.offset,
                                                    .chunk_bytes = plan.chunk_bytes,
                                                    .chunks = plan.chunks,
                                                    .readers = static_cast<std::uint32_t>(plan.readers)},
                                                   name);
    return std::unique_ptr<RingWriter>(new RingWriter(std::move(domain), block, ring));
  } catch (...) {
    arena.release(ring);
    throw;
  }
}

RingWriter::RingWriter(std::shared_ptr<NodeDomain> domain, std::uint32_t block, Slot ring)
    : RingEnd(domain, block, 0, 0), chunks_at_(domain_->arena().at(ring)), ring_(ring) {
  // The slot may have been another ring before: no number of that may be taken for one of this.
  for (std::uint32_t i = 0; i < chunks_; ++i) new (chunks_at_ + i * stride()) QueueChunk{};
  auto& blocks = domain_->blocks();
  auto life = BlockLife::unpack(blocks.header(block_).life.load(std::memory_order_relaxed));
  own().domain_rank.store(static_cast<std::uint32_t>(domain_->rank()), std::memory_order_relaxed);
  own().state.store(EndWord{.use = life.use, .state = EndState::taken}.pack(), std::memory_order_relaxed);
  blocks.open_queue(block_);
  life.state = BlockState::queue;
  life_ = life.pack();
}

RingWriter::~RingWriter() {
  if (!domain_->is_own_process()) return;
  auto const ready = all_readers_gone(*domain_, block_, life_, readers_);
  leave(state_of(own()) == EndState::closed ? EndState::gone : EndState::dropped);
  domain_->arena().release_when(ready, ring_);
  for (auto const& held : held_) domain_->arena().release_when(ready, held.slot);
}

std::uint64_t RingWriter::slowest() const noexcept {
  auto least = next_ - 1;
  for (int reader = 1; reader <= readers_; ++reader) {
    auto const& its = end(reader);
    auto const taken = steps::published(its.cursor);
    if (taken < least && !has_closed(state_of(its))) least = taken;
  }
  return least;
}

bool RingWriter::has_room() noexcept {
  if (next_ - 1 - floor_ < chunks_) return true;
  floor_ = slowest();
  return next_ - 1 - floor_ < chunks_;
}

bool RingWriter::drained() noexcept { return slowest() == next_ - 1; }

void RingWriter::put(std::span<std::byte const> head, std::span<std::byte const> body) {
  auto* const at = chunks_at_ + position_ * stride();
  auto* const payload = at + sizeof(QueueChunk);
  auto& chunk = *reinterpret_cast<QueueChunk*>(at);
  auto const bytes = head.size() + body.size();
  if (bytes > chunk_bytes_) {
    put_large(payload, head, body);
    chunk.bytes = bytes | QueueChunk::large;
  } else {
    bulk_copy(*domain_, payload, head.data(), head.size());
    bulk_copy(*domain_, payload + head.size(), body.data(), body.size());
    chunk.bytes = bytes;
  }
  domain_->note({.verb = spi::Verb::enqueue, .block = block_, .round = next_, .bytes = bytes});
  CROSSRANK_CRASH_POINT("node.queue.written");
  steps::publish(chunk.number, next_);
  CROSSRANK_CRASH_POINT("node.queue.published");
  for (int reader = 1; reader <= readers_; ++reader) ring(end(reader).bell);
  own().cursor.store(next_, std::memory_order_relaxed);  // for inspection only
  ++next_;
  position_ = position_ + 1 == chunks_ ? 0 : position_ + 1;
}

void RingWriter::put_large(std::byte* payload, std::span<std::byte const> head, std::span<std::byte const> body) {
  release_taken();
  auto const slot = domain_->arena().allocate(head.size() + body.size());
  auto* const to = domain_->arena().at(slot);
  bulk_copy(*domain_, to, head.data(), head.size());
  bulk_copy(*domain_, to + head.size(), body.data(), body.size());
  QueueLarge const large{.offset = slot.offset, .generation = slot.generation, .slot = slot.id, .unused = 0};
  std::memcpy(payload, &large, sizeof large);
  held_.push_back({slot, next_});
}

void RingWriter::release_taken() noexcept {
  if (held_.empty()) return;
  floor_ = slowest();
  for (; !held_.empty() && held_.front().number <= floor_; held_.pop_front())
    domain_->arena().release(held_.front().slot);
}

void RingWriter::close() noexcept {
  if (!left_ && domain_->is_own_process() && !has_closed(state_of(own()))) announce(EndState::closed);
}

std::vector<int> RingWriter::lost_readers() const {
  std::vector<int> lost;
  for (int reader = 0; reader < readers_; ++reader) {
    auto const state = state_of(end(reader + 1));
    int const rank = rank_of(reader);
    bool const died = state == EndState::taken && rank >= 0 && domain_->has_departed_slow(rank);
    // It may have closed its end just before it left.
    if (state == EndState::dropped || (died && !has_closed(state_of(end(reader + 1))))) lost.push_back(reader);
  }
  return lost;
}

std::vector<int> RingWriter::readers_before(std::uint64_t number) const {
  std::vector<int> behind;
  for (int reader = 0; reader < readers_; ++reader) {
    if (taken_by(reader) < number && !has_closed(state_of(end(reader + 1)))) behind.push_back(reader);
  }
  return behind;
}

bool RingWriter::deserted() const noexcept {
  for (int reader = 1; reader <= readers_; ++reader) {
    if (!has_closed(state_of(end(reader)))) return false;
  }
  return true;
}

bool RingWriter::somebody_departed() noexcept {
  auto const now = domain_->header().departures.load(std::memory_order_acquire);
  return std::exchange(departures_, now) != now;
}

std::uint64_t RingWriter::taken_by(int reader) const noexcept { return steps::published(end(reader + 1).cursor); }

int RingWriter::rank_of(int reader) const noexcept {
  auto const rank = end(reader + 1).domain_rank.load(std::memory_order_acquire);
  return rank < static_cast<std::uint32_t>(domain_->ranks()) ? static_cast<int>(rank) : -1;
}

// ---------------------------------------------------------------- reading

std::unique_ptr<RingReader> RingReader::attach(std::shared_ptr<NodeDomain> domain, RingName const& name, int reader) {
  domain->require_own_process("attach to a queue");
  auto const refuse = [&](std::string message, std::string expected, std::string got) {
    throw UsageError({.operation = "attach to a queue",
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .resource = "queue block " + std::to_string(name.block)});
  };
  auto const& header = domain->header();
  if (name.nonce[0] != header.nonce[0] || name.nonce[1] != header.nonce[1])
    refuse("the queue belongs to another job or node", "a handle of this one", "one of another");
  // A block that was never made has no pages: it must not be touched.
  if (name.block >= header.groups_made.load(std::memory_order_acquire))
    refuse("there is no such queue", "a block below " + std::to_string(header.groups_made.load()), "this one");
  auto& life = domain->blocks().header(name.block).life;
  if (BlockLife::unpack(name.life).state != BlockState::queue || life.load(std::memory_order_seq_cst) != name.life)
    refuse("the queue has ended", "", "");
  std::unique_ptr<RingReader> made(new RingReader(domain, name, reader));
  made->check();
  if (reader < 0 || reader >= made->readers_)
    refuse("there is no such reader", "0 to " + std::to_string(made->readers_ - 1), std::to_string(reader));
  auto const use = BlockLife::unpack(name.life).use;
  auto free = EndWord{.use = use, .state = EndState::free}.pack();
  auto const taken = EndWord{.use = use, .state = EndState::taken}.pack();
  if (!made->own().state.compare_exchange_strong(free, taken, std::memory_order_seq_cst))
    refuse("the reader's place is taken", "a free one", "reader " + std::to_string(reader));
  made->own().domain_rank.store(static_cast<std::uint32_t>(domain->rank()), std::memory_order_seq_cst);
  made->left_ = false;
  auto const writer = state_of(made->end(0));
  if (writer == EndState::gone || writer == EndState::dropped || domain->has_departed(made->writer_)) {
    made->close();
    refuse("the writer has gone", "a handle that it keeps until all have read", "");
  }
  return made;
}

RingReader::RingReader(std::shared_ptr<NodeDomain> domain, RingName const& name, int reader)
    : RingEnd(std::move(domain), name.block, name.life, reader + 1),
      writer_(static_cast<int>(end(0).domain_rank.load(std::memory_order_acquire))),
      chunks_at_(nullptr) {
  left_ = true;  // until it has its place
}

/// What the writer says of its ring lies inside its arena, and the readers inside the block.
void RingReader::check() {
  ControlGeometry const geometry(domain_->ranks());
  auto const arena = domain_->arena_bytes();
  auto const bytes = ring_bytes(chunk_bytes_, chunks_, arena);
  bool const sound = writer_ >= 0 && writer_ < domain_->ranks() && bytes != 0 && ring_offset_ <= arena - bytes &&
                     readers_ >= 1 && ControlGeometry::queue_bytes(readers_) <= geometry.group_stride() &&
                     ring_offset_ % line_bytes == 0 && chunk_bytes_ >= sizeof(QueueLarge);
  if (!sound) {
    throw FormatError({.operation = "attach to a queue",
                       .message = "a ring outside its writer's memory",
                       .expected = "at most " + std::to_string(arena) + " bytes",
                       .got = std::to_string(chunks_) + " chunks of " + std::to_string(chunk_bytes_) + " bytes at " +
                              std::to_string(ring_offset_),
                       .resource = "queue block " + std::to_string(block_),
                       .section = "queue"});
  }
  chunks_at_ = domain_->arena_of(writer_) + ring_offset_;
}

RingReader::~RingReader() { leave(EndState::dropped); }

void RingReader::close() noexcept { leave(EndState::closed); }

QueueLarge RingReader::large() const noexcept {
  QueueLarge large{};
  std::memcpy(&large, reinterpret_cast<std::byte const*>(&chunk()) + sizeof(QueueChunk), sizeof large);
  return large;
}

std::span<std::byte const> RingReader::peek() const {
  auto const said = chunk().bytes;
  auto const bytes = said & ~QueueChunk::large;
  auto const arena = domain_->arena_bytes();
  if ((said & QueueChunk::large) == 0 && bytes <= chunk_bytes_)
    return {reinterpret_cast<std::byte const*>(&chunk()) + sizeof(QueueChunk), bytes};
  auto const where = large();
  if ((said & QueueChunk::large) != 0 && bytes <= arena && where.offset <= arena - bytes)
    return {domain_->arena_of(writer_) + where.offset, bytes};
  throw FormatError({.operation = "dequeue",
                     .message = "a message outside its writer's memory",
                     .expected = "at most " + std::to_string(arena) + " bytes",
                     .got = std::to_string(bytes) + " bytes",
                     .resource = "queue block " + std::to_string(block_),
                     .section = "message"});
}

std::shared_ptr<void const> RingReader::keep() const {
  if ((chunk().bytes & QueueChunk::large) == 0) return nullptr;
  auto const where = large();
  ControlGeometry const geometry(domain_->ranks());
  if (where.slot >= geometry.slot_capacity() ||
      !domain_->leases().hold(writer_, where.slot, where.generation, domain_->rank())) {
    throw UsageError({.operation = "dequeue",
                      .message = "a message cannot be kept once more",
                      .expected = "at most " + std::to_string(LeaseWord::count_limit) + " at a time",
                      .resource = "queue block " + std::to_string(block_)});
  }
  return {static_cast<void const*>(domain_->arena_of(writer_) + where.offset),
          [domain = domain_, writer = writer_, where](void const*) {
            if (domain->is_own_process()) domain->leases().drop(writer, where.slot, where.generation, domain->rank());
          }};
}

void RingReader::take() noexcept {
  domain_->note(
      {.verb = spi::Verb::dequeue, .block = block_, .round = next_, .bytes = chunk().bytes & ~QueueChunk::large});
  ++next_;
  position_ = position_ + 1 == chunks_ ? 0 : position_ + 1;
  steps::publish(own().cursor, next_ - 1);
  CROSSRANK_CRASH_POINT("node.queue.taken");
  ring(end(0).bell);
}

bool RingReader::at_end() const noexcept { return has_closed(state_of(end(0))) && !has_message(); }

bool RingReader::writer_lost() const noexcept {
  bool const gone = state_of(end(0)) == EndState::dropped || domain_->has_departed_slow(writer_);
  // What it said before it went counts.
  return gone && !has_message() && !has_closed(state_of(end(0)));
}

}  // namespace crossrank::node
