#include <crossrank/spi/add_node_memory.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "collectives/composite/composite_transport.hpp"
#include "collectives/message/message_transport.hpp"
#include "collectives/shm/node_transport.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/group/group.hpp"
#include "lib/node/memory/segment_names.hpp"

namespace crossrank::spi {
namespace {

/// Sent by rank 0, so that all ranks use the same key. Their own ids may differ: MPI connects ranks of several
/// launchers.
struct Start {
  std::array<std::uint64_t, 2> nonce{};  ///< of this start of the job, so that its ranks do not connect to others
  char job[128] = {};                    ///< the job's id
};

Start start_of(std::string const& job) {
  Start start{.nonce = node::random_nonce()};
  job.copy(start.job, sizeof start.job - 1);
  return start;
}

}  // namespace

std::shared_ptr<Transport> add_node_memory(std::shared_ptr<Transport> across, NodeMemoryOptions const& options) {
  auto timeout_policy = options.timeout_policy;
  timeout_policy.timeout = options.connect_timeout;
  Start start;
  if (across->rank() == 0) start = start_of(options.job);
  across->wait(across->post_broadcast({.op_kind = OpKind::broadcast},
                                      {.bytes = std::as_writable_bytes(std::span(&start, 1))}, 0),
               timeout_policy);
  auto map = composite::NodeMap::exchange(*across, timeout_policy);
  auto const& here = map.members_of(map.own);
  auto const global = across->global_ranks();
  std::vector<int> global_here;
  for (int const member : here) global_here.push_back(at_rank(global, member));
  node::NodeOptions const on_node{
      .key = {.job_id = std::string(start.job, ::strnlen(start.job, sizeof start.job)),
              .master = std::to_string(start.nonce[0]) + "-" + std::to_string(start.nonce[1]),
              .step = std::to_string(map.own)},
      .rank = map.place_of(across->rank()),
      .ranks = static_cast<int>(here.size()),
      .global_rank = at_rank(global, across->rank()),
      .timeout = options.connect_timeout,
      .cap_bytes = options.arena_cap,
      .threads = options.threads};
  auto local = node_transport(on_node, across->name(), std::move(global_here), options.timeout_policy);
  auto* const packets = dynamic_cast<message::MessageTransport*>(across.get());
  auto* const group = dynamic_cast<node::Group*>(local->node_memory().get());
  if (packets != nullptr && group != nullptr) packets->network().add_node(group->shared_comm());
  auto const all = all_ranks(static_cast<int>(global.size()));
  auto bulk = across->split({.op_kind = OpKind::split}, all, across->name() + "/bulk", timeout_policy);
  return std::make_shared<composite::CompositeTransport>(composite::CompositeTransport::Subtransports{
      .across = std::move(across), .bulk = std::move(bulk), .local = std::move(local), .map = std::move(map)});
}

}  // namespace crossrank::spi
