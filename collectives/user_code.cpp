#include "collectives/user_code.hpp"

#include <crossrank/spi/transport.hpp>

#include "lib/node/group.hpp"

namespace crossrank {

UserCode::UserCode(Collective const& group) {
  auto const node = group.transport()->node_group();
  if (!node) return;
  domain_ = node->shared_domain();
  domain_->own_record().in_user_code.fetch_add(1, std::memory_order_relaxed);
}

UserCode::~UserCode() {
  if (domain_ && domain_->is_own_process()) domain_->own_record().in_user_code.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace crossrank
