#include "collectives/message_queue/queue_offer.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <crossrank/error.hpp>

#include "collectives/spi/error_in.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"

namespace crossrank::queue {
namespace {

constexpr char const* create = "MessageQueue.create";

/// The options of one rank. In the message, the rank's contribution or its error text follows.
struct Offer {
  std::int64_t writer = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t chunks = 0;
  std::uint64_t failed = 0;  ///< 1: an encoded error follows
};

std::vector<std::byte> put_ahead(Offer const& offer, std::span<std::byte const> rest) {
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

[[noreturn]] void throw_remote(Collective const& group, QueueOptions const& options, int rank,
                               std::span<std::byte const> encoded) {
  auto const error = decode_error(encoded);
  auto info = error_in(*group.transport(),
                       {.operation = create,
                        .message = "rank " + std::to_string(rank) + " could not create its endpoint: " + error.text(),
                        .resource = "queue \"" + options.name + "\"",
                        .failed_ranks = {rank}});
  // If one rank lacks support, all ranks get an `UnavailableError`.
  if (error.code == ErrorCode::unavailable) throw UnavailableError(std::move(info));
  throw RemoteError(std::move(info));
}

void check_agreement(Collective const& group, QueueOptions const& options,
                     std::vector<std::vector<std::byte>> const& all) {
  auto const first = offer_in(all.front());
  for (int rank = 1; rank < group.world_size(); ++rank) {
    auto const rank_offer = offer_in(at_rank(all, rank));
    if (rank_offer.writer == first.writer && rank_offer.chunk_bytes == first.chunk_bytes &&
        rank_offer.chunks == first.chunks)
      continue;
    auto const say = [](Offer const& offer) {
      return "writer " + std::to_string(offer.writer) + ", " + std::to_string(offer.chunks) + " chunks of " +
             std::to_string(offer.chunk_bytes) + " bytes";
    };
    throw MismatchError(
        error_in(*group.transport(), {.operation = create,
                                      .message = "ranks 0 and " + std::to_string(rank) + " passed different options",
                                      .expected = say(first),
                                      .got = say(rank_offer),
                                      .resource = "queue \"" + options.name + "\"",
                                      .hint = "pass the same options on every rank",
                                      .failed_ranks = {rank}}));
  }
}

}  // namespace

std::vector<std::vector<std::byte>> exchange(Collective const& group, QueueOptions const& options,
                                             LocalStep const& part, std::span<std::byte const> mine) {
  Offer const offer{.writer = options.writer_rank,
                    .chunk_bytes = options.chunk_bytes,
                    .chunks = options.chunks,
                    .failed = part.failure() ? 1U : 0U};
  auto const error = part.failure() ? describe_exception(part.failure()) : ErrorRecord{};
  auto const encoded = part.failure() ? encode_error(fields_of(error.code, error.info)) : std::vector<std::byte>{};
  auto all = group.all_gatherv(put_ahead(offer, part.failure() ? encoded : mine));
  part.rethrow();
  for (int rank = 0; rank < group.world_size(); ++rank) {
    auto const& bytes = at_rank(all, rank);
    if (offer_in(bytes).failed != 0) throw_remote(group, options, rank, rest_of(bytes));
  }
  check_agreement(group, options, all);
  for (auto& bytes : all)
    bytes.erase(bytes.begin(), bytes.begin() + std::min<std::ptrdiff_t>(sizeof(Offer), std::ssize(bytes)));
  return all;
}

std::vector<std::byte> write_offer(std::vector<int> const& readers, std::vector<std::byte> const& handle) {
  auto const count = static_cast<std::uint64_t>(readers.size());
  auto const head = std::as_bytes(std::span(&count, 1));
  std::vector<std::byte> bytes(head.begin(), head.end());
  auto const ranks = std::as_bytes(std::span(readers));
  bytes.insert(bytes.end(), ranks.begin(), ranks.end());
  bytes.insert(bytes.end(), handle.begin(), handle.end());
  return bytes;
}

RingOffer read_offer(std::span<std::byte const> bytes, int world_size) {
  RingOffer offer;
  if (bytes.empty()) return offer;
  std::uint64_t count = 0;
  std::memcpy(&count, bytes.data(), std::min(bytes.size(), sizeof count));
  auto const rest = bytes.subspan(std::min(bytes.size(), sizeof count));
  bool sound = count < static_cast<std::uint64_t>(world_size) && count * sizeof(int) <= rest.size();
  if (sound) {
    offer.readers.resize(count);
    std::memcpy(offer.readers.data(), rest.data(), offer.readers.size() * sizeof(int));
    sound = std::all_of(offer.readers.begin(), offer.readers.end(), [&](int r) { return r >= 0 && r < world_size; });
  }
  if (!sound)
    throw FormatError(
        {.operation = create, .message = "the writer's description of its ring is invalid", .section = "offer"});
  auto const handle = rest.subspan(offer.readers.size() * sizeof(int));
  offer.handle.assign(handle.begin(), handle.end());
  return offer;
}

}  // namespace crossrank::queue
