#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/message_queue/queue_handle.hpp"
#include "collectives/message_queue/queue_state.hpp"
#include "lib/node/group.hpp"
#include "lib/node/process_exit.hpp"

/// How queues come to be: by all ranks of a group together, or an end at a time.
namespace crossrank {
namespace {

constexpr char const* create = "MessageQueue.create";
constexpr std::size_t least_chunk = 64;  // holds the place of a message that is longer

/// What a rank says when a queue is made: what it wants, and what it has to give or why it has not.
struct Offer {
  std::int64_t writer = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t chunks = 0;
  std::uint64_t failed = 0;
};

std::vector<std::byte> write_offer(Offer const& offer, std::span<std::byte const> rest) {
  auto const head = std::as_bytes(std::span(&offer, 1));
  std::vector<std::byte> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

Offer offer_in(std::span<std::byte const> bytes) {
  Offer offer{};
  std::memcpy(&offer, bytes.data(), std::min(bytes.size(), sizeof offer));
  return offer;
}

std::span<std::byte const> rest_of(std::span<std::byte const> bytes) {
  return bytes.subspan(std::min(bytes.size(), sizeof(Offer)));
}

std::string text_of(std::span<std::byte const> bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

void check_options(Collective const& group, int writers, QueueOptions const& options) {
  bool const sound = options.writer_rank >= 0 && options.writer_rank < writers && options.chunks > 0 &&
                     options.chunks <= std::numeric_limits<std::uint32_t>::max();
  if (sound) return;
  throw UsageError(
      {.operation = create,
       .message = "a queue needs a writer of the group and at least one chunk",
       .expected = "a writer below " + std::to_string(writers),
       .got = "writer " + std::to_string(options.writer_rank) + ", " + std::to_string(options.chunks) + " chunks",
       .resource = "queue \"" + options.name + "\"",
       .group = group.name(),
       .rank = group.rank(),
       .world_size = group.world_size()});
}

std::unique_ptr<node::RingWriter> make_ring(node::Group& group, int readers, QueueOptions const& options) {
  return node::RingWriter::make(group.shared_domain(),
                                {.chunk_bytes = std::max(options.chunk_bytes, least_chunk),
                                 .chunks = static_cast<std::uint32_t>(options.chunks),
                                 .readers = readers},
                                options.name);
}

/// Ranks of the group that stand on this node and read what `writer` writes, in the order of their places.
std::vector<int> local_readers(Collective const& group, int writer) {
  std::vector<int> readers;
  auto const& transport = *group.transport();
  if (!transport.node_group()) return readers;
  for (int const rank : transport.node_ranks()) {
    if (rank != writer) readers.push_back(rank);
  }
  return readers;
}

[[noreturn]] void throw_remote(Collective const& group, QueueOptions const& options, int rank,
                               std::string const& text) {
  throw RemoteError({.operation = create,
                     .message = "rank " + std::to_string(rank) + " could not make its end: " + text,
                     .resource = "queue \"" + options.name + "\"",
                     .group = group.name(),
                     .rank = group.rank(),
                     .world_size = group.world_size(),
                     .culprits = {rank}});
}

void check_agreement(Collective const& group, QueueOptions const& options,
                     std::vector<std::vector<std::byte>> const& all) {
  auto const first = offer_in(all.front());
  for (int rank = 1; rank < group.world_size(); ++rank) {
    auto const its = offer_in(all[static_cast<std::size_t>(rank)]);
    if (its.writer == first.writer && its.chunk_bytes == first.chunk_bytes && its.chunks == first.chunks) continue;
    auto const say = [](Offer const& offer) {
      return "writer " + std::to_string(offer.writer) + ", " + std::to_string(offer.chunks) + " chunks of " +
             std::to_string(offer.chunk_bytes) + " bytes";
    };
    throw MismatchError({.operation = create,
                         .message = "ranks 0 and " + std::to_string(rank) + " want different queues",
                         .expected = say(first),
                         .got = say(its),
                         .resource = "queue \"" + options.name + "\"",
                         .remedy = "give every rank the same options",
                         .group = group.name(),
                         .rank = group.rank(),
                         .world_size = group.world_size(),
                         .culprits = {rank}});
  }
}

/// Runs this rank's part of a step that all do; what it threw is thrown again once the others know.
class Part {
 public:
  template <class Body>
  void run(Body&& body) {
    try {
      body();
    } catch (std::exception const& e) {
      failure_ = std::current_exception();
      text_ = e.what();
    }
  }
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  [[nodiscard]] std::string const& text() const noexcept { return text_; }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_{};
  std::string text_{};
};

}  // namespace

MessageQueue MessageQueue::create(Collective const& group, QueueOptions const& options) {
  check_options(group, group.world_size(), options);
  auto state = std::make_shared<State>();
  state->name = options.name;
  state->writing = group.rank() == options.writer_rank;
  state->timeout = group.patience().timeout;
  state->warn_every = options.warn_every;
  state->group = group.name();
  state->rank = group.rank();
  state->world_size = group.world_size();
  state->writer_rank = options.writer_rank;
  if (group.world_size() == 1) return MessageQueue(std::move(state));

  auto const readers = local_readers(group, options.writer_rank);
  auto const node = group.transport()->node_group();
  Part part;
  std::vector<std::byte> mine;
  if (state->writing && !readers.empty()) {
    part.run([&] {
      state->out = make_ring(*node, static_cast<int>(readers.size()), options);
      state->reader_ranks = readers;
      mine = queue::write_handle(state->out->name());
    });
  }
  Offer offer{.writer = options.writer_rank,
              .chunk_bytes = options.chunk_bytes,
              .chunks = options.chunks,
              .failed = part.failed() ? 1U : 0U};
  auto const say = [&](Part const& its) {
    offer.failed = its.failed() ? 1U : 0U;
    auto const text = std::as_bytes(std::span(its.text().data(), its.text().size()));
    return group.all_gatherv(write_offer(offer, its.failed() ? text : std::span<std::byte const>(mine)));
  };
  auto const check = [&](Part const& its, std::vector<std::vector<std::byte>> const& all) {
    its.rethrow();
    for (int rank = 0; rank < group.world_size(); ++rank) {
      auto const& bytes = all[static_cast<std::size_t>(rank)];
      if (offer_in(bytes).failed != 0) throw_remote(group, options, rank, text_of(rest_of(bytes)));
    }
  };
  auto const offers = say(part);
  check(part, offers);
  check_agreement(group, options, offers);

  Part attaching;
  auto const place = std::find(readers.begin(), readers.end(), group.rank());
  if (!state->writing) {
    attaching.run([&] {
      auto const name = queue::read_handle(rest_of(offers[static_cast<std::size_t>(options.writer_rank)]));
      state->in = node::RingReader::attach(node->shared_domain(), name, static_cast<int>(place - readers.begin()));
    });
  }
  check(attaching, say(attaching));
  return MessageQueue(std::move(state));
}

MessageQueue MessageQueue::create_writer(Collective const& group, int readers, QueueOptions const& options) {
  check_options(group, group.world_size(), options);
  auto const node = group.transport()->node_group();
  if (!node) {
    throw UnavailableError({.operation = "MessageQueue.create_writer",
                            .message = "the ranks of this group share no memory",
                            .got = "backend " + std::string(group.backend()),
                            .resource = "queue \"" + options.name + "\"",
                            .remedy = "connect with the backend \"shm\", or make the queue with create()",
                            .group = group.name(),
                            .rank = group.rank(),
                            .world_size = group.world_size()});
  }
  auto state = std::make_shared<State>();
  state->name = options.name;
  state->writing = true;
  state->timeout = group.patience().timeout;
  state->warn_every = options.warn_every;
  state->rank = group.global_rank();
  state->writer_rank = group.global_rank();
  state->out = make_ring(*node, readers, options);
  return MessageQueue(std::move(state));
}

MessageQueue MessageQueue::attach(Collective const& group, std::span<std::byte const> handle, int reader) {
  auto const node = group.transport()->node_group();
  auto const name = queue::read_handle(handle);
  auto const nonce = node ? node->domain().header().nonce : nullptr;
  if (nonce == nullptr || nonce[0] != name.nonce[0] || nonce[1] != name.nonce[1]) {
    throw UnavailableError({.operation = "MessageQueue.attach",
                            .message = "the queue is not on this node, or of another job",
                            .remedy = "attach on the writer's node, or make the queue with create()",
                            .group = group.name(),
                            .rank = group.rank(),
                            .world_size = group.world_size()});
  }
  auto state = std::make_shared<State>();
  state->in = node::RingReader::attach(node->shared_domain(), name, reader);
  state->name = node->domain().blocks().header(name.block).name;
  state->timeout = group.patience().timeout;
  state->warn_every = QueueOptions{}.warn_every;
  state->rank = group.global_rank();
  state->writer_rank = static_cast<int>(node->domain().record(state->in->writer_rank()).global_rank);
  return MessageQueue(std::move(state));
}

MessageQueue MessageQueue::attach(std::span<std::byte const> handle, int reader) {
  auto const name = queue::read_handle(handle);
  auto const domains = node::find_domains(name.nonce);
  if (domains.empty()) {
    throw UnavailableError({.operation = "MessageQueue.attach",
                            .message = "this process is in no job that the queue belongs to",
                            .remedy = "connect() to the writer's job, on its node, first"});
  }
  if (domains.size() > 1) {
    throw UsageError({.operation = "MessageQueue.attach",
                      .message = "several ranks of this process are in the queue's job",
                      .remedy = "say which one reads: attach(group, handle, reader)"});
  }
  auto const& domain = domains.front();
  auto state = std::make_shared<State>();
  state->in = node::RingReader::attach(domain, name, reader);
  state->name = domain->blocks().header(name.block).name;
  state->timeout = spi::Patience{}.timeout;
  state->warn_every = QueueOptions{}.warn_every;
  state->rank = static_cast<int>(domain->own_record().global_rank);
  state->writer_rank = static_cast<int>(domain->record(state->in->writer_rank()).global_rank);
  return MessageQueue(std::move(state));
}

}  // namespace crossrank
