#include "lib/tensor/unusable_tensor.hpp"

#include <utility>

#include <crossrank/spi/storage.hpp>

namespace crossrank {

void throw_undefined(ErrorInfo info) {
  info.message += "tensor is undefined";
  info.hint = "assign it first";
  throw UsageError(std::move(info));
}

void throw_revoked(Tensor const& tensor, char const* operation, std::string why) {
  ErrorInfo info{.operation = operation, .message = std::move(why), .resource = to_string(tensor)};
  auto const rank = tensor.storage()->revoked_by_rank();
  if (!rank) throw UsageError(std::move(info));
  info.failed_ranks = {*rank};
  throw PeerLostError(std::move(info));
}

}  // namespace crossrank
