#include "collectives/user_code.hpp"

#include <crossrank/spi/transport.hpp>

namespace crossrank {

UserCode::UserCode(Collective const& group) : transport_(group.transport()) { transport_->enter_user_code(1); }

UserCode::~UserCode() { transport_->enter_user_code(-1); }

}  // namespace crossrank
