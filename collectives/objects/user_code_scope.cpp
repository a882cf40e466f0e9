#include "collectives/objects/user_code_scope.hpp"

#include <crossrank/spi/transport.hpp>

namespace crossrank {

UserCodeScope::UserCodeScope(Collective const& group) : transport_(group.transport()) {
  transport_->enter_user_code(1);
}

UserCodeScope::~UserCodeScope() { transport_->enter_user_code(-1); }

}  // namespace crossrank
