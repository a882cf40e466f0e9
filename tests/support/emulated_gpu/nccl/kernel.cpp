#include "tests/support/emulated_gpu/nccl/kernel.hpp"

#include <cstring>

#include "tests/support/emulated_gpu/nccl/reduction.hpp"

extern "C" CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus*);

namespace emulated::nccl {
namespace {

using Direction = Transfer::Direction;

/// An empty buffer may be a null pointer, which memmove refuses.
void move_bytes(std::byte* to, std::byte const* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

/// One run of one operation on this rank.
class Run {
 public:
  Run(Communicator& comm, Operation const& operation)
      : comm_(comm),
        o_(operation),
        bytes_(operation.count * size_of(operation.type)),
        size_(static_cast<std::size_t>(comm.size)) {}

  /// Returns false when the communicator was stopped.
  bool collective() {
    switch (o_.kind) {
      case Kind::all_reduce: return all_reduce();
      case Kind::reduce: return reduce();
      case Kind::broadcast: return broadcast();
      case Kind::all_gather: return all_gather();
      case Kind::reduce_scatter: return reduce_scatter();
      case Kind::all_to_all: return all_to_all();
      case Kind::gather: return gather();
      case Kind::scatter: return scatter();
      default: return true;
    }
  }

  Transfer point_to_point() {
    bool const send = o_.kind == Kind::send;
    return {send ? Direction::send : Direction::receive, o_.peer, send ? input(bytes_) : output(bytes_), bytes_};
  }

 private:
  std::byte* at(CUdeviceptr address, std::size_t size) {
    return static_cast<std::byte*>(emulated_bytes(address, size, comm_.device));
  }
  std::byte* input(std::size_t size) { return at(o_.send, size); }
  std::byte* output(std::size_t size) { return at(o_.receive, size); }
  bool root() const { return comm_.rank == o_.peer; }

  bool move(std::vector<Transfer> transfers) {
    return move_all(comm_.shared->table(), comm_.rank, std::move(transfers), [this] { return comm_.stopped(); });
  }

  /// Reduces the slice of each rank that starts at `first`, beginning with the neighbour of the owner, as a ring does:
  /// not in the order of the ranks.
  void reduce_slice(std::byte* into, std::vector<std::byte*> const& parts, std::size_t owner, std::size_t first,
                    std::size_t count) {
    auto const element = size_of(o_.type);
    for (std::size_t step = 0; step < size_; ++step) {
      auto* const part = parts[(owner + 1 + step) % size_] + first * element;
      if (step == 0) {
        move_bytes(into, part, count * element);
      } else {
        reduce_into(into, part, count, o_.type, o_.op);
      }
    }
    if (o_.op == ncclAvg) divide(into, count, o_.type, comm_.size);
  }

  std::size_t slice_start(std::size_t rank) const { return o_.count * rank / size_; }

  bool all_reduce() {
    auto const element = size_of(o_.type);
    auto const me = static_cast<std::size_t>(comm_.rank);
    auto* const in = input(bytes_);
    auto* const out = output(bytes_);
    auto const mine = slice_start(me + 1) - slice_start(me);
    std::vector<std::byte> space(mine * element * size_);
    std::vector<std::byte*> parts(size_);
    std::vector<Transfer> transfers;
    for (std::size_t r = 0; r < size_; ++r) {
      parts[r] = space.data() + r * mine * element;
      auto const theirs = slice_start(r + 1) - slice_start(r);
      if (r == me) {
        move_bytes(parts[r], in + slice_start(me) * element, mine * element);
      } else {
        transfers.push_back({Direction::send, static_cast<int>(r), in + slice_start(r) * element, theirs * element});
        transfers.push_back({Direction::receive, static_cast<int>(r), parts[r], mine * element});
      }
    }
    if (!move(std::move(transfers))) return false;
    std::vector<std::byte> result(mine * element);
    reduce_slice(result.data(), parts, me, 0, mine);
    move_bytes(out + slice_start(me) * element, result.data(), result.size());
    transfers.clear();
    for (std::size_t r = 0; r < size_; ++r) {
      if (r == me) continue;
      auto const theirs = slice_start(r + 1) - slice_start(r);
      transfers.push_back({Direction::send, static_cast<int>(r), result.data(), result.size()});
      transfers.push_back({Direction::receive, static_cast<int>(r), out + slice_start(r) * element, theirs * element});
    }
    return move(std::move(transfers));
  }

  bool reduce() {
    if (!root()) return move({{Direction::send, o_.peer, input(bytes_), bytes_}});
    std::vector<std::byte> space;
    auto parts = receive_from_all(bytes_, input(bytes_), space);
    if (parts.empty()) return false;
    auto* const out = output(bytes_);
    for (std::size_t r = 0; r < size_; ++r) {
      auto const first = slice_start(r);
      reduce_slice(out + first * size_of(o_.type), parts, r, first, slice_start(r + 1) - first);
    }
    return true;
  }

  /// Receives `size` bytes from each rank, its own copied; returns where, or nothing when stopped.
  std::vector<std::byte*> receive_from_all(std::size_t size, std::byte const* own, std::vector<std::byte>& space) {
    space.resize(size * size_);
    std::vector<std::byte*> parts(size_);
    std::vector<Transfer> transfers;
    for (std::size_t r = 0; r < size_; ++r) {
      parts[r] = space.data() + r * size;
      if (static_cast<int>(r) == comm_.rank) {
        move_bytes(parts[r], own, size);
      } else {
        transfers.push_back({Direction::receive, static_cast<int>(r), parts[r], size});
      }
    }
    if (!move(std::move(transfers))) parts.clear();
    return parts;
  }

  bool broadcast() {
    if (!root()) return move({{Direction::receive, o_.peer, output(bytes_), bytes_}});
    auto* const in = input(bytes_);
    std::vector<Transfer> transfers;
    for (int r = 0; r < comm_.size; ++r) {
      if (r != comm_.rank) transfers.push_back({Direction::send, r, in, bytes_});
    }
    if (!move(std::move(transfers))) return false;
    move_bytes(output(bytes_), in, bytes_);
    return true;
  }

  bool all_gather() {
    auto* const in = input(bytes_);
    auto* const out = output(bytes_ * size_);
    move_bytes(out + static_cast<std::size_t>(comm_.rank) * bytes_, in, bytes_);
    auto* const mine = out + static_cast<std::size_t>(comm_.rank) * bytes_;
    return with_peers([&](std::size_t) { return mine; }, [&](std::size_t r) { return out + r * bytes_; });
  }

  bool all_to_all() {
    auto* const in = input(bytes_ * size_);
    auto* const out = output(bytes_ * size_);
    auto const me = static_cast<std::size_t>(comm_.rank);
    move_bytes(out + me * bytes_, in + me * bytes_, bytes_);
    return with_peers([&](std::size_t r) { return in + r * bytes_; }, [&](std::size_t r) { return out + r * bytes_; });
  }

  bool gather() {
    if (!root()) return move({{Direction::send, o_.peer, input(bytes_), bytes_}});
    auto* const out = output(bytes_ * size_);
    move_bytes(out + static_cast<std::size_t>(comm_.rank) * bytes_, input(bytes_), bytes_);
    return with_peers(nullptr, [&](std::size_t r) { return out + r * bytes_; });
  }

  bool scatter() {
    if (!root()) return move({{Direction::receive, o_.peer, output(bytes_), bytes_}});
    auto* const in = input(bytes_ * size_);
    move_bytes(output(bytes_), in + static_cast<std::size_t>(comm_.rank) * bytes_, bytes_);
    return with_peers([&](std::size_t r) { return in + r * bytes_; }, nullptr);
  }

  using Place = std::function<std::byte*(std::size_t)>;
  bool with_peers(Place const& from, Place const& to) {
    std::vector<Transfer> transfers;
    for (std::size_t r = 0; r < size_; ++r) {
      if (static_cast<int>(r) == comm_.rank) continue;
      if (from) transfers.push_back({Direction::send, static_cast<int>(r), from(r), bytes_});
      if (to) transfers.push_back({Direction::receive, static_cast<int>(r), to(r), bytes_});
    }
    return move(std::move(transfers));
  }

  bool reduce_scatter() {
    auto* const in = input(bytes_ * size_);
    std::vector<std::byte> space(bytes_ * size_);
    std::vector<std::byte*> parts(size_);
    for (std::size_t r = 0; r < size_; ++r) parts[r] = space.data() + r * bytes_;
    auto const me = static_cast<std::size_t>(comm_.rank);
    move_bytes(parts[me], in + me * bytes_, bytes_);
    if (!with_peers([&](std::size_t r) { return in + r * bytes_; }, [&](std::size_t r) { return parts[r]; }))
      return false;
    reduce_slice(output(bytes_), parts, me, 0, o_.count);
    return true;
  }

  Communicator& comm_;
  Operation const& o_;
  std::size_t bytes_;
  std::size_t size_;
};

struct Work {
  std::shared_ptr<Communicator> comm;
  std::vector<Operation> operations;
  bool captured = false;
};

void copy_to_itself(Communicator const& comm, std::vector<Transfer>& transfers) {
  for (auto& send : transfers) {
    if (send.direction != Direction::send || send.peer != comm.rank) continue;
    for (auto& receive : transfers) {
      if (receive.direction != Direction::receive || receive.peer != comm.rank || receive.done != 0) continue;
      move_bytes(receive.bytes, send.bytes, std::min(send.size, receive.size));
      receive.done = receive.size;
      break;
    }
  }
  std::erase_if(transfers, [&](auto const& transfer) { return transfer.peer == comm.rank; });
}

CUresult run(void* data) {
  auto& work = *static_cast<Work*>(data);
  Communicator& comm = *work.comm;
  emulated_log_event("nccl_kernel_start");
  std::vector<Transfer> transfers;
  try {
    for (auto const& operation : work.operations) {
      if (comm.stopped() || operation.count == 0) continue;
      if (operation.kind == Kind::send || operation.kind == Kind::receive) {
        transfers.push_back(Run(comm, operation).point_to_point());
      } else {
        Run(comm, operation).collective();
      }
    }
    copy_to_itself(comm, transfers);
    if (!comm.stopped()) {
      move_all(comm.shared->table(), comm.rank, std::move(transfers), [&] { return comm.stopped(); });
    }
  } catch (Failure const& failure) {
    comm.state = ncclUnhandledCudaError;
    if (!work.captured) --comm.running;
    return failure.result;
  }
  if (!work.captured) --comm.running;
  return CUDA_SUCCESS;
}

void release(void* data) {
  std::unique_ptr<Work> const work(static_cast<Work*>(data));
  if (work->captured) --work->comm->captured;
}

}  // namespace

ncclResult_t enqueue(std::shared_ptr<Communicator> const& comm, cudaStream_t stream,
                     std::vector<Operation> operations) {
  auto const handle = reinterpret_cast<CUstream>(stream);
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (cuStreamIsCapturing(handle, &status) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  CUdevice device = -1;
  if (emulated_stream_device(handle, &device) != CUDA_SUCCESS || device != comm->device) return ncclInvalidUsage;
  auto work = std::make_unique<Work>(Work{comm, std::move(operations), status == CU_STREAM_CAPTURE_STATUS_ACTIVE});
  ++(work->captured ? comm->captured : comm->running);
  emulated_log_event("nccl_kernel");
  EmulatedWork const description{
      .name = "NCCL kernel",
      .run = run,
      .aborted = [](void* data) { return static_cast<Work*>(data)->comm->stopped() ? 1 : 0; },
      .release = release,
      .data = work.get(),
      .exclusive = 1};
  bool const captured = work->captured;
  static_cast<void>(work.release());  // the stream owns it, also when it refuses it
  if (emulated_enqueue(handle, &description) == CUDA_SUCCESS) return ncclSuccess;
  if (!captured) --comm->running;
  return ncclUnhandledCudaError;
}

}  // namespace emulated::nccl
