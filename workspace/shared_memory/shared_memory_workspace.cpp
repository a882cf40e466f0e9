#include <crossrank/workspace/shared_memory_workspace.hpp>

#include <cstring>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "collectives/message_queue/queue_node_comm.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/tensor/transfer/tensor_mover.hpp"
#include "workspace/shared_memory/arena_state_store.hpp"

namespace crossrank {

SharedMemoryWorkspace::SharedMemoryWorkspace(Collective const& collective) {
  require_open(collective, "SharedMemoryWorkspace");
  auto comm = queue::queue_node_comm(collective);
  if (!comm) {
    throw UnavailableError(
        error_in(*collective.transport(), {.operation = "SharedMemoryWorkspace",
                                           .message = "the ranks of this group do not share memory",
                                           .got = "backend " + std::string(collective.backend()),
                                           .hint = "connect with the backend \"shm\", or use an NFSWorkspace"}));
  }
  store_ = workspace::ArenaStateStore::of(comm);
}

workspace::ArenaStateStore& SharedMemoryWorkspace::initialized(char const* operation) const {
  if (!store_) {
    throw UsageError({.operation = operation,
                      .message = "the workspace is not initialized",
                      .hint = "construct it with SharedMemoryWorkspace(collective)"});
  }
  return *store_;
}

Tensor SharedMemoryWorkspace::empty(Shape const& shape, Dtype dtype) const {
  return initialized("SharedMemoryWorkspace.empty").empty(shape, dtype);
}

Tensor SharedMemoryWorkspace::empty(Shape const& shape, Dtype dtype, Device device) const {
  auto const& store = initialized("SharedMemoryWorkspace.empty");
  if (device.kind == Device::Kind::cpu) return store.empty(shape, dtype);
  return Tensor::empty(shape, dtype, {.device = device, .shareable = true});
}

Tensor SharedMemoryWorkspace::zeros(Shape const& shape, Dtype dtype) const {
  auto tensor = empty(shape, dtype);
  if (auto const bytes = tensor.mutable_bytes(); !bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
  return tensor;
}

void SharedMemoryWorkspace::write_configs_and_weights(Json const& config, StateDict const& weights,
                                                      StateWriteOptions const& options) {
  initialized("SharedMemoryWorkspace.write").write(config, weights, options);
}

std::optional<RankState> SharedMemoryWorkspace::read_configs_and_weights_from_rank(
    int rank, StateReadOptions const& options) const {
  auto state = initialized("SharedMemoryWorkspace.read").read(rank);
  auto const on_gpu = options.in_place ? TensorMover::GpuTensors::keep : TensorMover::GpuTensors::move;
  if (state) TensorMover(options.to, on_gpu).move_all(state->weights);
  return state;
}

void SharedMemoryWorkspace::clean() { initialized("SharedMemoryWorkspace.clean").clean(); }

std::size_t SharedMemoryWorkspace::trim() const {
  constexpr char const* operation = "SharedMemoryWorkspace.trim";
  auto const& comm = initialized(operation).comm();
  comm->require_own_process(operation);
  return comm->arena().trim();
}

}  // namespace crossrank
