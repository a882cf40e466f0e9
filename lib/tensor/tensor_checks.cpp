#include "lib/tensor/tensor_checks.hpp"

#include <utility>

#include <crossrank/spi/storage.hpp>

#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/transfer/host_copies.hpp"

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

void require_usable(Tensor const& tensor, char const* operation) {
  if (!tensor.defined()) throw_undefined({.operation = operation});
  if (auto why = tensor.storage()->revoked_by(); !why.empty()) throw_revoked(tensor, operation, std::move(why));
}

void require_writable(Tensor const& tensor, char const* operation) {
  require_usable(tensor, operation);
  auto holder = tensor.storage()->frozen_by();
  if (holder.empty()) {
    if (on_gpu(tensor))
      spi::device_provider(tensor.device().kind).will_write(current_stream(tensor.device()), tensor.storage());
    return;
  }
  throw UsageError({.operation = operation,
                    .message = "the bytes cannot be written while others hold them",
                    .got = std::move(holder),
                    .resource = to_string(tensor),
                    .hint = "clone() makes a writable copy"});
}

void require_readable(Tensor const& tensor, char const* operation) {
  require_usable(tensor, operation);
  if (on_gpu(tensor) && tensor.nbytes() > 0) require_no_capture(current_stream(tensor.device()), operation);
}

}  // namespace crossrank
