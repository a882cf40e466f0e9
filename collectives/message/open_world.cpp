#include "collectives/message/network.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "collectives/spi/argument_digest.hpp"
#include "collectives/message/message_transport.hpp"
#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/environment.hpp"
#include "lib/platform/host.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::message {
namespace {

/// Sent by each rank when it joins. The size is fixed, so one small round carries the records of all ranks.
struct JoinRecord {
  std::int64_t pid = 0;
  char host_id[64] = {};
  char host_name[64] = {};
  char backend[16] = {};
};

platform::Host this_host() {
  auto const& declared = environment().host_id;
  return declared.empty() ? platform::this_host() : platform::Host{declared, declared};
}

/// Returns an id that fits into a record, and is the same only for the same id.
std::string record_id(std::string const& id) {
  if (id.size() < sizeof(JoinRecord::host_id)) return id;
  return "checksum " + codec::to_hex(codec::checksum(std::as_bytes(std::span(id))));
}

JoinRecord join_record_of(spi::WorldOptions const& options) {
  JoinRecord mine{.pid = ::getpid()};
  auto const host = this_host();
  record_id(options.host_id.empty() ? host.id : options.host_id).copy(mine.host_id, sizeof mine.host_id - 1);
  (options.host_name.empty() ? host.name : options.host_name).copy(mine.host_name, sizeof mine.host_name - 1);
  options.backend.copy(mine.backend, sizeof mine.backend - 1);
  return mine;
}

std::string backend_of(JoinRecord const& record, std::size_t rank) {
  std::string const name(record.backend, ::strnlen(record.backend, sizeof record.backend));
  return "\"" + name + "\" (rank " + std::to_string(rank) + ")";
}

/// Backends over one group exchange different messages. Without this check, their first calls would seem to differ.
void require_one_backend(std::vector<JoinRecord> const& all) {
  auto const& first = all.front();
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (std::memcmp(all[rank].backend, first.backend, sizeof first.backend) == 0) continue;
    throw MismatchError(
        {.operation = "connect",
         .message = "the ranks request different backends",
         .expected = backend_of(first, 0),
         .got = backend_of(all[rank], rank),
         .hint = "set CROSSRANK_BACKEND, or the backend in the options of connect(), alike on all ranks",
         .group_usable = false});
  }
}

}  // namespace

std::shared_ptr<spi::Transport> Network::open_world(spi::WorldOptions const& options) {
  require_usable("connect");
  MessageTransport::Identity identity{.name = "world"};
  {
    auto const guard = lock();
    silence_limit_ = std::max<std::chrono::nanoseconds>(silence_limit_, options.timeout_policy.timeout);
    identity.rank = packet_transport().rank();
    identity.members = all_ranks(packet_transport().world_size());
    identity.number = ArgumentDigest()
                          .add(codec::checksum(std::as_bytes(std::span(options.job))))
                          .add(count_world(options.job))
                          .value();
  }
  auto world = std::make_shared<MessageTransport>(shared_from_this(), identity);
  auto timeout_policy = options.timeout_policy;
  timeout_policy.timeout = options.connect_timeout;
  auto const mine = join_record_of(options);
  std::vector<JoinRecord> all(identity.members.size());
  std::vector<std::size_t> const counts(all.size(), sizeof mine);
  world->wait(
      world->post_all_gatherv({.op_kind = spi::OpKind::all_gatherv}, {.bytes = std::as_bytes(std::span(&mine, 1))},
                              counts, {.bytes = std::as_writable_bytes(std::span(all))}),
      timeout_policy);
  require_one_backend(all);
  {
    auto const guard = lock();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      auto& joined = peer(static_cast<int>(rank));
      joined.pid = all[rank].pid;
      joined.host_id = all[rank].host_id;
      joined.host_name = all[rank].host_name;
    }
  }
  world->find_node_ranks();
  return world;
}

}  // namespace crossrank::message

namespace crossrank::spi {
namespace {

constexpr auto first_pause = std::chrono::microseconds(20);
constexpr auto longest_pause = std::chrono::milliseconds(5);

}  // namespace

std::shared_ptr<Network> make_network(std::unique_ptr<PacketTransport> packet_transport) {
  auto network = std::make_shared<message::Network>(std::move(packet_transport));
  network->start();
  return network;
}

bool poll_until(std::function<bool()> const& done, std::chrono::milliseconds limit) {
  auto& system = platform::system();
  std::chrono::nanoseconds pause = first_pause;
  for (auto const start = system.now(); !done();) {
    if (system.now() - start >= limit) return false;
    system.sleep(pause);
    pause = std::min<std::chrono::nanoseconds>(pause * 2, longest_pause);
  }
  return true;
}

}  // namespace crossrank::spi
