#include "collectives/message_queue/lone_domain.hpp"

#include <mutex>
#include <string>

#include <crossrank/spi/transport.hpp>

#include "collectives/fake/fake_transport.hpp"
#include "lib/core/immortal.hpp"
#include "lib/node/group.hpp"
#include "lib/node/names.hpp"

namespace crossrank::queue {
namespace {

struct Lone {
  std::mutex mutex;
  std::weak_ptr<node::NodeDomain> domain;
};

std::shared_ptr<node::NodeDomain> lone_domain() {
  static Immortal<Lone> held;  // queues may outlive statics
  auto& lone = held.value;
  std::lock_guard const lock(lone.mutex);
  if (auto domain = lone.domain.lock(); domain && domain->is_own_process()) return domain;
  auto domain = node::NodeDomain::join({.key = {.job_id = "alone", .step = std::to_string(node::random_nonce()[0])},
                                        .threads = true,
                                        .group_name = "alone"});
  lone.domain = domain;
  return domain;
}

}  // namespace

std::shared_ptr<node::NodeDomain> queue_domain(Collective const& group) {
  if (auto const node = group.transport()->node_group()) return node->shared_domain();
  if (group.world_size() != 1) return nullptr;
  auto domain = lone_domain();
  // What a process that is alone has published there stays as long as its group does.
  if (auto const alone = std::dynamic_pointer_cast<fake::FakeTransport>(group.transport())) alone->keep(domain);
  return domain;
}

}  // namespace crossrank::queue
