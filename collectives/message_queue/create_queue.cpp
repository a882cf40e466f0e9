#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "collectives/message_queue/queue_node_comm.hpp"
#include "collectives/message_queue/queue_handle.hpp"
#include "collectives/message_queue/queue_offer.hpp"
#include "collectives/message_queue/queue_state.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/environment.hpp"
#include "lib/node/group/group.hpp"
#include "lib/node/group/process_exit.hpp"

/// Creation of queues: collectively by all ranks of a group, or one endpoint at a time.
namespace crossrank {
namespace {

constexpr char const* create = "MessageQueue.create";
constexpr std::size_t max_chunks = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t least_chunk = 64;  // space for the descriptor of a longer message

void check_options(Collective const& group, int writers, QueueOptions const& options) {
  auto const refuse = [&](std::string message, std::string expected, std::string got, std::string hint) {
    throw UsageError(error_in(*group.transport(), {.operation = create,
                                                   .message = std::move(message),
                                                   .expected = std::move(expected),
                                                   .got = std::move(got),
                                                   .resource = "queue \"" + options.name + "\"",
                                                   .hint = std::move(hint)}));
  };
  if (options.writer_rank < 0 || options.writer_rank >= writers) {
    refuse("the writer is not a rank of the group", "0 to " + std::to_string(writers - 1),
           "writer_rank " + std::to_string(options.writer_rank), "");
  }
  if (options.chunks == 0 || options.chunks > max_chunks) {
    refuse(options.chunks == 0 ? "the queue has no chunks" : "too many chunks",
           "1 to " + std::to_string(max_chunks) + " chunks", std::to_string(options.chunks),
           "chunks is the number of messages by which the writer may be ahead; chunk_bytes is the length of each");
  }
}

std::unique_ptr<node::RingWriter> make_ring(std::shared_ptr<node::NodeComm> comm, int readers,
                                            QueueOptions const& options) {
  return node::RingWriter::make(std::move(comm),
                                {.chunk_bytes = std::max(options.chunk_bytes, least_chunk),
                                 .chunks = static_cast<std::uint32_t>(options.chunks),
                                 .readers = readers},
                                options.name);
}

/// Returns the readers of `writer` that are on this node, in the order of their places in the ring.
std::vector<int> local_readers(Collective const& group, int writer) {
  std::vector<int> readers;
  auto const& transport = *group.transport();
  if (!transport.node_memory()) return readers;
  for (int const rank : transport.node_ranks()) {
    if (rank != writer) readers.push_back(rank);
  }
  return readers;
}

}  // namespace

/// Creates a group of two for each reader without a place in the ring, so that the loss of one reader does not affect
/// the others.
void MessageQueue::State::link_remote_readers(Collective const& all, QueueOptions const& options,
                                              std::vector<int> const& local) {
  for (int reader = 0; reader < all.world_size(); ++reader) {
    if (reader == options.writer_rank || std::find(local.begin(), local.end(), reader) != local.end()) continue;
    auto pair = all.split({{options.writer_rank, reader}}, name + " to rank " + std::to_string(reader));
    if (writing) {
      remote_writers.push_back(std::make_unique<queue::RemoteWriter>(std::move(pair), reader));
    } else if (all.rank() == reader) {
      remote_reader = std::make_unique<queue::RemoteReader>(std::move(pair), options.chunk_bytes);
    }
  }
}

MessageQueue MessageQueue::create(Collective const& group, QueueOptions const& options) {
  require_open(group, "MessageQueue.create");
  check_options(group, group.world_size(), options);
  auto state = State::in_group(group, options);
  if (group.world_size() == 1) return MessageQueue(std::move(state));

  auto const readers = local_readers(group, options.writer_rank);
  auto const node = node::group_of(group.transport()->node_memory());
  queue::LocalStep making;
  std::vector<std::byte> offer;
  if (state->writing && !readers.empty()) {
    making.run([&] {
      state->out = make_ring(node->shared_comm(), static_cast<int>(readers.size()), options);
      offer = queue::write_offer(readers, queue::write_handle(state->out->name()));
    });
  }
  auto const offers = queue::exchange(group, options, making, offer);
  auto const ring = queue::read_offer(at_rank(offers, options.writer_rank), group.world_size());

  queue::LocalStep attaching;
  auto const place = std::find(ring.readers.begin(), ring.readers.end(), group.rank()) - ring.readers.begin();
  if (place < std::ssize(ring.readers)) {
    attaching.run([&] {
      auto const name = queue::read_handle(ring.handle);
      state->in = node::RingReader::attach(node->shared_comm(), name, static_cast<int>(place));
    });
  }
  static_cast<void>(queue::exchange(group, options, attaching, {}));
  state->link_remote_readers(group, options, ring.readers);
  return MessageQueue(std::move(state));
}

MessageQueue MessageQueue::create_writer(Collective const& group, int readers, QueueOptions const& options) {
  require_open(group, "MessageQueue.create_writer");
  check_options(group, group.world_size(), options);
  auto comm = queue::queue_node_comm(group);
  if (!comm) {
    throw UnavailableError(
        error_in(*group.transport(), {.operation = "MessageQueue.create_writer",
                                      .message = "the ranks of this group do not share memory",
                                      .got = "backend " + std::string(group.backend()),
                                      .resource = "queue \"" + options.name + "\"",
                                      .hint = "connect with the backend \"shm\", or create the queue with create()"}));
  }
  auto state = std::make_shared<State>();
  state->name = options.name;
  state->writing = true;
  state->timeout = group.timeout_policy().timeout;
  state->warn_every = options.warn_every;
  state->rank = group.global_rank();
  state->writer_rank = group.global_rank();
  state->chunks = options.chunks;
  state->out = make_ring(std::move(comm), readers, options);
  state->out->status().use_global_ranks();
  return MessageQueue(std::move(state));
}

MessageQueue MessageQueue::attach(Collective const& group, std::span<std::byte const> handle, int reader) {
  auto const comm = queue::queue_node_comm(group);
  auto const name = queue::read_handle(handle);
  auto const* const nonce = comm ? comm->header().nonce : nullptr;
  if (nonce == nullptr || nonce[0] != name.nonce[0] || nonce[1] != name.nonce[1]) {
    throw UnavailableError(
        error_in(*group.transport(), {.operation = "MessageQueue.attach",
                                      .message = "the queue is on another node or belongs to another job",
                                      .hint = "attach on the writer's node, or create the queue with create()"}));
  }
  auto state = std::make_shared<State>();
  state->in = node::RingReader::attach(comm, name, reader);
  state->in->status().use_global_ranks();
  state->name = comm->blocks().name(name.block);
  state->timeout = group.timeout_policy().timeout;
  state->warn_every = QueueOptions{}.warn_every;
  state->rank = group.global_rank();
  state->writer_rank = static_cast<int>(comm->record(state->in->writer_rank()).global_rank);
  return MessageQueue(std::move(state));
}

MessageQueue MessageQueue::attach(std::span<std::byte const> handle, int reader) {
  auto const name = queue::read_handle(handle);
  auto const comms = node::find_comms(name.nonce);
  if (comms.empty()) {
    throw UnavailableError({.operation = "MessageQueue.attach",
                            .message = "this process has not joined the job of the queue",
                            .hint = "call connect() for the writer's job first, on the writer's node"});
  }
  if (comms.size() > 1) {
    throw UsageError({.operation = "MessageQueue.attach",
                      .message = "several ranks of the queue's job are in this process",
                      .hint = "name the reading rank: attach(group, handle, reader)"});
  }
  auto const& comm = comms.front();
  auto state = std::make_shared<State>();
  state->in = node::RingReader::attach(comm, name, reader);
  state->in->status().use_global_ranks();
  state->name = comm->blocks().name(name.block);
  state->timeout = environment().timeout.value_or(spi::TimeoutPolicy{}.timeout);
  state->warn_every = QueueOptions{}.warn_every;
  state->rank = static_cast<int>(comm->own_record().global_rank);
  state->writer_rank = static_cast<int>(comm->record(state->in->writer_rank()).global_rank);
  return MessageQueue(std::move(state));
}

}  // namespace crossrank
