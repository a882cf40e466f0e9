#include "collectives/nccl/nccl_calls.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <crossrank/cuda.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/as_size.hpp"

namespace crossrank::nccl {
namespace {

using api::Comm;
using api::DataType;
using api::Functions;
using api::RedOp;
using spi::DeviceCollective;
using spi::OpKind;
using Step = Communicator::Step;

std::optional<DataType> data_type(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::i8: return DataType::int8;
    case Dtype::u8: return DataType::uint8;
    case Dtype::i32: return DataType::int32;
    case Dtype::u32: return DataType::uint32;
    case Dtype::i64: return DataType::int64;
    case Dtype::u64: return DataType::uint64;
    case Dtype::f16: return DataType::float16;
    case Dtype::bf16: return DataType::bfloat16;
    case Dtype::f32: return DataType::float32;
    case Dtype::f64: return DataType::float64;
    default: return {};
  }
}

std::optional<RedOp> reduce_op(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return RedOp::sum;
    case ReduceOp::prod: return RedOp::prod;
    case ReduceOp::min: return RedOp::min;
    case ReduceOp::max: return RedOp::max;
    case ReduceOp::avg: return RedOp::avg;
    default: return {};
  }
}

bool is_floating(DataType type) noexcept {
  return type == DataType::float16 || type == DataType::bfloat16 || type == DataType::float32 ||
         type == DataType::float64;
}

bool all_equal(std::span<std::size_t const> counts) noexcept {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

/// The calls of NCCL that one call of ours becomes.
class Plan {
 public:
  Plan(Communicator& communicator, DeviceCollective const& call, Stream const& stream)
      : communicator_(communicator),
        call_(call),
        stream_(stream),
        native_(cuda::native(stream)),
        rank_(as_size(communicator.place().rank)),
        offsets_(offsets_of(call.counts)) {}

  void run(spi::DevicePollHook const& poll_hook) {
    switch (call_.op_kind) {
      case OpKind::all_reduce: all_reduce(); break;
      case OpKind::reduce: reduce(); break;
      case OpKind::broadcast: broadcast(); break;
      case OpKind::all_gatherv: all_gather(); break;
      case OpKind::reduce_scatterv: reduce_scatter(); break;
      case OpKind::gatherv: gather(); break;
      case OpKind::scatterv: scatter(); break;
      case OpKind::all_to_allv: all_to_all(); break;
      default: break;  // `can_run` refuses the others
    }
    communicator_.enqueue(call_.name, steps_, poll_hook);
  }

 private:
  static constexpr auto byte = DataType::uint8;

  static std::vector<std::size_t> offsets_of(std::span<std::size_t const> counts) {
    std::vector<std::size_t> offsets(counts.size());
    for (std::size_t r = 1; r < counts.size(); ++r) offsets[r] = offsets[r - 1] + counts[r - 1];
    return offsets;
  }

  [[nodiscard]] bool is_root() const noexcept { return call_.root == communicator_.place().rank; }
  [[nodiscard]] std::byte const* in(std::size_t at = 0) const noexcept { return call_.in.data() + at; }
  [[nodiscard]] std::byte* out(std::size_t at = 0) const noexcept { return call_.out.data() + at; }
  [[nodiscard]] DataType type() const noexcept { return data_type(call_.reduction.dtype).value_or(byte); }
  [[nodiscard]] RedOp op() const noexcept { return reduce_op(call_.reduction.op).value_or(RedOp::sum); }
  [[nodiscard]] std::size_t elements(std::size_t bytes) const { return bytes * 8 / bits_of(call_.reduction.dtype); }

  template <class Body>
  void add(char const* function, Body body) {
    steps_.push_back({.function = function, .call = std::move(body)});
  }
  void send(std::byte const* from, std::size_t bytes, std::size_t to) {
    if (bytes == 0) return;
    add("ncclSend", [=, this](Functions const& f, Comm* comm) {
      return f.ncclSend(from, bytes, byte, static_cast<int>(to), comm, native_);
    });
  }
  void receive(std::byte* into, std::size_t bytes, std::size_t from) {
    if (bytes == 0) return;
    add("ncclRecv", [=, this](Functions const& f, Comm* comm) {
      return f.ncclRecv(into, bytes, byte, static_cast<int>(from), comm, native_);
    });
  }
  /// Copies this rank's own part, which NCCL would send to itself.
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) const {
    if (bytes == 0 || to == from) return;
    spi::device_provider(stream_.device().kind)
        .copy(stream_, {.to = to,
                        .to_device = stream_.device(),
                        .from = from,
                        .from_device = stream_.device(),
                        .run_bytes = bytes});
  }

  void all_reduce() {
    auto const count = elements(call_.in.size());
    if (count == 0) return;
    add("ncclAllReduce", [=, this](Functions const& f, Comm* comm) {
      return f.ncclAllReduce(in(), out(), count, type(), op(), comm, native_);
    });
  }

  void reduce() {
    auto const count = elements(call_.in.size());
    if (count == 0) return;
    add("ncclReduce", [=, this](Functions const& f, Comm* comm) {
      return f.ncclReduce(in(), out(), count, type(), op(), call_.root, comm, native_);
    });
  }

  void broadcast() {
    auto const bytes = call_.out.size();
    if (bytes == 0) return;
    add("ncclBroadcast", [=, this](Functions const& f, Comm* comm) {
      return f.ncclBroadcast(out(), out(), bytes, byte, call_.root, comm, native_);
    });
  }

  /// Different counts are one broadcast of each rank.
  void all_gather() {
    if (all_equal(call_.counts)) {
      auto const bytes = call_.counts.front();
      if (bytes == 0) return;
      return add("ncclAllGather", [=, this](Functions const& f, Comm* comm) {
        return f.ncclAllGather(in(), out(), bytes, byte, comm, native_);
      });
    }
    for (std::size_t r = 0; r < offsets_.size(); ++r) {
      auto const bytes = call_.counts[r];
      if (bytes == 0) continue;
      auto* const part = out(offsets_[r]);
      auto const* const from = r == rank_ ? in() : part;
      add("ncclBroadcast", [=, this](Functions const& f, Comm* comm) {
        return f.ncclBroadcast(from, part, bytes, byte, static_cast<int>(r), comm, native_);
      });
    }
  }

  /// Different counts are one reduction to each rank.
  void reduce_scatter() {
    if (all_equal(call_.counts)) {
      auto const count = elements(call_.counts.front());
      if (count == 0) return;
      return add("ncclReduceScatter", [=, this](Functions const& f, Comm* comm) {
        return f.ncclReduceScatter(in(), out(), count, type(), op(), comm, native_);
      });
    }
    for (std::size_t r = 0; r < offsets_.size(); ++r) {
      auto const count = elements(call_.counts[r]);
      if (count == 0) continue;
      auto const* const part = in(offsets_[r]);
      add("ncclReduce", [=, this](Functions const& f, Comm* comm) {
        return f.ncclReduce(part, out(), count, type(), op(), static_cast<int>(r), comm, native_);
      });
    }
  }

  void gather() {
    auto const mine = call_.counts[rank_];
    if (communicator_.functions().ncclGather != nullptr && all_equal(call_.counts)) {
      if (mine == 0) return;
      return add("ncclGather", [=, this](Functions const& f, Comm* comm) {
        return f.ncclGather(in(), out(), mine, byte, call_.root, comm, native_);
      });
    }
    if (!is_root()) return send(in(), mine, as_size(call_.root));
    copy(out(offsets_[rank_]), in(), mine);
    for (std::size_t r = 0; r < offsets_.size(); ++r) {
      if (r != rank_) receive(out(offsets_[r]), call_.counts[r], r);
    }
  }

  void scatter() {
    auto const mine = call_.counts[rank_];
    if (communicator_.functions().ncclScatter != nullptr && all_equal(call_.counts)) {
      if (mine == 0) return;
      return add("ncclScatter", [=, this](Functions const& f, Comm* comm) {
        return f.ncclScatter(in(), out(), mine, byte, call_.root, comm, native_);
      });
    }
    if (!is_root()) return receive(out(), mine, as_size(call_.root));
    copy(out(), in(offsets_[rank_]), mine);
    for (std::size_t r = 0; r < offsets_.size(); ++r) {
      if (r != rank_) send(in(offsets_[r]), call_.counts[r], r);
    }
  }

  /// The counts of one rank may be equal where those of another are not.
  void all_to_all() {
    auto const incoming = offsets_of(call_.receive_counts);
    if (call_.has_equal_parts && communicator_.functions().ncclAlltoAll != nullptr) {
      auto const bytes = call_.counts.front();
      if (bytes == 0) return;
      return add("ncclAlltoAll", [=, this](Functions const& f, Comm* comm) {
        return f.ncclAlltoAll(in(), out(), bytes, byte, comm, native_);
      });
    }
    copy(out(incoming[rank_]), in(offsets_[rank_]), call_.counts[rank_]);
    for (std::size_t r = 0; r < offsets_.size(); ++r) {
      if (r == rank_) continue;
      send(in(offsets_[r]), call_.counts[r], r);
      receive(out(incoming[r]), call_.receive_counts[r], r);
    }
  }

  Communicator& communicator_;
  DeviceCollective const& call_;
  Stream const& stream_;
  CUstream_st* native_;
  std::size_t rank_;
  std::vector<std::size_t> offsets_;
  std::vector<Step> steps_{};
};

}  // namespace

bool can_run(DeviceCollective const& call) noexcept {
  return !spi::is_reduction(call.op_kind) || (data_type(call.reduction.dtype) && reduce_op(call.reduction.op));
}

bool may_lose_nan(DeviceCollective const& call) noexcept {
  auto const op = call.reduction.op;
  auto const dtype = data_type(call.reduction.dtype);
  return spi::is_reduction(call.op_kind) && (op == ReduceOp::min || op == ReduceOp::max) && dtype &&
         is_floating(*dtype);
}

void enqueue_call(Communicator& communicator, DeviceCollective const& call, Stream const& stream,
                  spi::DevicePollHook const& poll_hook) {
  Plan(communicator, call, stream).run(poll_hook);
}

}  // namespace crossrank::nccl
