#include "lib/node/queue/ring_reader.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/peer_errors.hpp"
#include "lib/node/memory/corruption.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/node/queue/ring_layout.hpp"
#include "lib/platform/crash_point.hpp"

namespace crossrank::node {
namespace {

std::string rank_text(NodeComm const& comm, std::uint32_t rank) {
  if (rank >= static_cast<std::uint32_t>(comm.ranks())) return "an unknown rank";
  auto const& record = comm.record(static_cast<int>(rank));
  return "rank " + std::to_string(record.global_rank) + " (pid " + std::to_string(record.pid) + ")";
}

/// Describes how an endpoint ended.
std::string status_of(NodeComm const& comm, EndpointState state, std::uint32_t rank) {
  auto const who = rank_text(comm, rank);
  switch (state) {
    case EndpointState::closed:
    case EndpointState::gone: return who + " has closed it";
    case EndpointState::dropped: return who + " dropped its last handle without close()";
    case EndpointState::free:
    case EndpointState::taken: break;
  }
  return rank < static_cast<std::uint32_t>(comm.ranks()) ? who + " " + comm.describe(static_cast<int>(rank))
                                                         : who + " has gone";
}

[[noreturn]] void refuse(RingId const& name, std::string message, std::string expected, std::string got,
                         std::string hint) {
  throw UsageError({.operation = "attach to a queue",
                    .message = std::move(message),
                    .expected = std::move(expected),
                    .got = std::move(got),
                    .resource = "queue block " + std::to_string(name.block),
                    .hint = std::move(hint)});
}

[[noreturn]] void refuse_ended(RingId const& name, std::string const& how) {
  refuse(name, "the queue has ended: " + how, "a queue with a live writer", "the handle of a queue that has ended",
         "make a new queue; its writer's handle must stay until all readers have attached");
}

/// Returns the rank of the job that made the writer go, if the program did not choose to: the writer died,
/// or left because of another rank.
std::optional<int> lost_by(NodeComm const& comm, int writer) {
  if (writer < 0 || writer >= comm.ranks()) return std::nullopt;
  auto const& record = comm.record(writer);
  if (comm.has_departed(writer) && comm.is_dead(writer)) return static_cast<int>(record.global_rank);
  auto const cause = read_cause(record.cause);
  return cause ? std::optional(cause->global_rank) : std::nullopt;
}

/// The queue has ended. This is an error of the program only if no rank was lost.
[[noreturn]] void refuse_ended(NodeComm const& comm, RingId const& name, int writer, std::string const& how) {
  auto const lost_rank = lost_by(comm, writer);
  if (!lost_rank) refuse_ended(name, how);
  throw PeerLostError(
      {.operation = "attach to a queue",
       .message = "rank " + std::to_string(*lost_rank) + " of the job was lost, and the queue has ended: " + how,
       .resource = "queue block " + std::to_string(name.block),
       .hint = lost_peer_hint,
       .rank = static_cast<int>(comm.own_record().global_rank),
       .failed_ranks = {*lost_rank},
       .group_usable = false});
}

[[noreturn]] void refuse_place(NodeComm const& comm, RingId const& name, int reader, QueueEndpoint const& place) {
  auto const [use, holder, state] = EndpointWord::unpack(place.state.load(std::memory_order_seq_cst));
  auto const got = "reader " + std::to_string(reader);
  if (state == EndpointState::taken)
    refuse(name, "this reader number is in use by " + rank_text(comm, holder), "an unused number", got,
           "give each reader a number of its own");
  refuse(name, "this reader number was already used: " + status_of(comm, state, holder), "an unused number", got,
         "a reader number can be used once: make a queue with more readers, or a new queue");
}

}  // namespace

std::unique_ptr<RingReader> RingReader::attach(std::shared_ptr<NodeComm> const& comm, RingId const& name, int reader) {
  comm->require_own_process("attach to a queue");
  auto const& header = comm->header();
  if (name.nonce[0] != header.nonce[0] || name.nonce[1] != header.nonce[1])
    refuse(name, "the queue belongs to another job or node", "a handle of this one", "one of another", "");
  // A block that was never made has no pages and must not be touched.
  if (auto const made = comm->blocks().made(); name.block >= made)
    refuse(name, "there is no such queue", "a block below " + std::to_string(made), "this one", "");
  auto const use = BlockUse::unpack(name.use_word);
  if (use.state != BlockState::queue) refuse(name, "there is no such queue", "the handle of a queue", "of a group", "");
  if (comm->blocks().header(name.block).use_word.load(std::memory_order_seq_cst) != name.use_word)
    refuse_ended(*comm, name, use.maker,
                 "its writer, " + rank_text(*comm, static_cast<std::uint32_t>(use.maker)) +
                     ", and all its readers have left it");
  std::unique_ptr<RingReader> made(new RingReader(comm, name, reader));
  made->check();
  if (reader < 0 || reader >= made->readers_) {
    refuse(name, "there is no such reader", "0 to " + std::to_string(made->readers_ - 1), std::to_string(reader),
           "make the queue with as many readers as there will be");
  }
  auto const refuse_if_ended = [&] {
    auto const writer = state_of(made->endpoint(0));
    if (writer == EndpointState::gone || writer == EndpointState::dropped || comm->has_departed(made->writer_))
      refuse_ended(*comm, name, made->writer_,
                   "its writer, " + status_of(*comm, writer, static_cast<std::uint32_t>(made->writer_)));
  };
  refuse_if_ended();
  auto free = EndpointWord{.use = use.number, .state = EndpointState::free}.pack();
  auto const own_rank = static_cast<std::uint32_t>(comm->rank());
  auto const taken = EndpointWord{.use = use.number, .rank = own_rank, .state = EndpointState::taken}.pack();
  if (!made->own().state.compare_exchange_strong(free, taken, std::memory_order_seq_cst))
    refuse_place(*comm, name, reader, made->own());
  try {
    refuse_if_ended();
  } catch (Error const&) {
    // Only while the place belongs to this queue: the block may already belong to the next one.
    auto held = taken;
    made->own().state.compare_exchange_strong(
        held, EndpointWord{.use = use.number, .rank = own_rank, .state = EndpointState::closed}.pack(),
        std::memory_order_seq_cst);
    throw;
  }
  made->left_ = false;
  return made;
}

RingReader::RingReader(std::shared_ptr<NodeComm> comm, RingId const& name, int reader)
    : RingEndpoint(comm, name.block, name.use_word, reader + 1, load_once(comm->blocks().queue(name.block))),
      writer_(static_cast<int>(holder_of(endpoint(0)))),
      chunks_at_(nullptr) {
  left_ = true;  // until it has its place
}

/// Checks that the ring lies inside the writer's arena, and the readers inside the block.
void RingReader::check() {
  ControlGeometry const geometry(comm_->ranks());
  auto const arena = comm_->arena_bytes();
  auto const bytes = ring_bytes(chunk_bytes_, chunks_, arena);
  bool const sound = writer_ >= 0 && writer_ < comm_->ranks() && bytes != 0 && ring_offset_ <= arena - bytes &&
                     readers_ >= 1 && ControlGeometry::queue_bytes(readers_) <= geometry.group_stride() &&
                     ring_offset_ % line_bytes == 0 && chunk_bytes_ >= sizeof(QueueLarge);
  if (!sound) {
    throw FormatError({.operation = "attach to a queue",
                       .message = "the ring lies outside the writer's memory",
                       .expected = "at most " + std::to_string(arena) + " bytes",
                       .got = std::to_string(chunks_) + " chunks of " + std::to_string(chunk_bytes_) + " bytes at " +
                              std::to_string(ring_offset_),
                       .resource = "queue block " + std::to_string(block_),
                       .section = "queue"});
  }
  chunks_at_ = comm_->arena_of(writer_) + ring_offset_;
}

RingReader::~RingReader() { leave(EndpointState::dropped); }

void RingReader::close() noexcept { leave(EndpointState::closed); }

QueueLarge RingReader::large() const noexcept {
  QueueLarge large{};
  std::memcpy(&large, reinterpret_cast<std::byte const*>(&chunk()) + sizeof(QueueChunk), sizeof large);
  return large;
}

std::span<std::byte const> RingReader::peek() const {
  if (auto const number = atomic_ops::published(chunk().number); number != next_) {
    throw_corrupt({.operation = "dequeue",
                   .place = block_text(block_),
                   .field = "messages taken",
                   .expected = "message " + std::to_string(next_),
                   .got = "message " + std::to_string(number) + ", which overwrote an unread message"});
  }
  auto const raw_bytes = chunk().bytes;
  auto const bytes = raw_bytes & ~QueueChunk::large;
  auto const arena = comm_->arena_bytes();
  if ((raw_bytes & QueueChunk::large) == 0 && bytes <= chunk_bytes_)
    return {reinterpret_cast<std::byte const*>(&chunk()) + sizeof(QueueChunk), bytes};
  auto const where = large();
  if ((raw_bytes & QueueChunk::large) != 0 && bytes <= arena && where.offset <= arena - bytes)
    return {comm_->arena_of(writer_) + where.offset, bytes};
  throw FormatError({.operation = "dequeue",
                     .message = "the message lies outside the writer's memory",
                     .expected = "at most " + std::to_string(arena) + " bytes",
                     .got = std::to_string(bytes) + " bytes",
                     .resource = "queue block " + std::to_string(block_),
                     .section = "message"});
}

std::shared_ptr<void const> RingReader::keep() const {
  if ((chunk().bytes & QueueChunk::large) == 0) return nullptr;
  auto const where = large();
  ControlGeometry const geometry(comm_->ranks());
  if (where.slot >= geometry.slot_capacity() || where.offset > comm_->arena_bytes() ||
      !comm_->leases().hold(writer_, where.slot, where.generation, comm_->rank())) {
    throw UsageError({.operation = "dequeue",
                      .message = "too many references to one message",
                      .expected = "at most " + std::to_string(LeaseWord::count_limit) + " at a time",
                      .resource = "queue block " + std::to_string(block_)});
  }
  return {static_cast<void const*>(comm_->arena_of(writer_) + where.offset),
          [comm = comm_, writer = writer_, where](void const*) {
            if (comm->is_own_process()) comm->leases().drop(writer, where.slot, where.generation, comm->rank());
          }};
}

void RingReader::take() noexcept {
  comm_->note(
      {.op_kind = spi::OpKind::dequeue, .block = block_, .round = next_, .bytes = chunk().bytes & ~QueueChunk::large});
  ++next_;
  position_ = position_ + 1 == chunks_ ? 0 : position_ + 1;
  atomic_ops::deliver(own().cursor, next_ - 1, [&] {
    CROSSRANK_CRASH_POINT("node.queue.taken");
    ring(endpoint(0).doorbell);
  });
}

bool RingReader::at_end() const noexcept {
  return has_closed(state_of(endpoint(0))) && !has_message() && !status_.has_failed();
}

/// Messages that the writer sent before it left count. So each finding is followed by a check for messages.
std::optional<RingFailure> RingReader::find_failure() {
  if (has_message()) return std::nullopt;
  if (auto known = status_.failure()) return has_message() ? std::nullopt : known;
  auto const writer_closed = [&] { return has_closed(state_of(endpoint(0))); };
  if (writer_closed()) return std::nullopt;
  bool const writer_lost = state_of(endpoint(0)) == EndpointState::dropped || comm_->has_departed_slow(writer_);
  if (!has_new_departure() && !writer_lost) return std::nullopt;
  if (!writer_lost && !status_.has_dead_reader(status_.lost_endpoints())) return std::nullopt;
  auto const lost = status_.lost_endpoints();  // checked again, to find the death that made other ranks leave
  if (has_message() || writer_closed() || lost.empty()) return std::nullopt;
  return status_.declare(status_.cause_of(lost));
}

RingFailure RingReader::waited_for() const {
  auto const written = endpoint(0).cursor.load(std::memory_order_acquire);
  std::vector<int> in_the_way;
  for (int other = 1; status_.waits(0) && other <= readers_; ++other) {
    bool const is_full = atomic_ops::published(endpoint(other).cursor) + chunks_ <= written;
    if (other != index_ && is_full && !has_closed(state_of(endpoint(other)))) in_the_way.push_back(other);
  }
  auto awaited = status_.awaited_by_writer(in_the_way.empty() ? std::vector<int>{} : status_.waited_for(in_the_way));
  if (in_the_way.empty() && awaited.ranks.empty()) return RingFailure::of(true, status_.waited_for({0}));
  return awaited;
}

}  // namespace crossrank::node
