#include "collectives/message_queue/queue_node_comm.hpp"

#include <mutex>
#include <string>

#include <crossrank/spi/transport.hpp>

#include "collectives/fake/fake_transport.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/node/group/group.hpp"
#include "lib/node/memory/segment_names.hpp"

namespace crossrank::queue {
namespace {

struct SelfComm {
  std::mutex mutex;
  std::weak_ptr<node::NodeComm> comm;
};

std::shared_ptr<node::NodeComm> lone_node_comm() {
  static NoDestructor<SelfComm> held;  // queues may outlive static objects
  auto& lone = held.value;
  std::lock_guard const lock(lone.mutex);
  if (auto comm = lone.comm.lock(); comm && comm->is_own_process()) return comm;
  auto comm = node::NodeComm::join({.key = {.job_id = "self", .step = std::to_string(node::random_nonce()[0])},
                                    .threads = true,
                                    .group_name = "self"});
  lone.comm = comm;
  return comm;
}

}  // namespace

std::shared_ptr<node::NodeComm> queue_node_comm(Collective const& group) {
  if (auto const node = node::group_of(group.transport()->node_memory())) return node->shared_comm();
  if (group.world_size() != 1) return nullptr;
  auto comm = lone_node_comm();
  // The group of a single rank keeps its own published states.
  if (auto const alone = std::dynamic_pointer_cast<fake::FakeTransport>(group.transport())) alone->keep(comm);
  return comm;
}

}  // namespace crossrank::queue
