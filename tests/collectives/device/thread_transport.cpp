#include "tests/collectives/device/thread_transport.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>
#include <crossrank/spi/device_transport.hpp>

#include "collectives/algorithms/reduce.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/tensor/transfer/staging_buffers.hpp"

namespace crossrank::test {
namespace {

using spi::DeviceCollective;
using spi::OpKind;

/// Page-locked memory on its way between a device and a call. It goes back to a store that never frees: that would wait
/// for streams, whose work may wait for this rank.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(std::size_t bytes) : buffer_(store().take(bytes)), bytes_(bytes) {}
  ~HostBuffer() {
    if (buffer_.storage) store().give_back(std::move(buffer_));
  }
  HostBuffer(HostBuffer const&) = delete;
  HostBuffer& operator=(HostBuffer const&) = delete;

  [[nodiscard]] std::byte* data() const { return buffer_.storage->data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }

 private:
  static device::StagingBuffers& store() {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed: calls may end after `main`
    static auto* const all = new device::StagingBuffers(Device::Kind::cuda);
    return *all;
  }

  device::StagingBuffers::Buffer buffer_{};
  std::size_t bytes_ = 0;
};

/// A call of one rank: what it was given, and its input and output on the host.
struct HostCall {
  OpKind op_kind = OpKind::none;
  std::vector<std::size_t> counts{};
  std::vector<std::size_t> receive_counts{};
  int root = 0;
  spi::Reduction reduction{};
  std::shared_ptr<HostBuffer> input{};   ///< null where the rank gives nothing
  std::shared_ptr<HostBuffer> output{};  ///< null where it gets nothing
};

std::size_t offset_of(std::vector<std::size_t> const& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

/// Where the ranks of a group meet. A rank that aborts ends its own waits only, as the kernels of NCCL do, and nobody
/// meets after that.
class Rendezvous {
 public:
  explicit Rendezvous(int ranks) : calls_(as_size(ranks)), aborted_(as_size(ranks)) {}

  /// Waits for the calls of all ranks. Returns false when this one has aborted.
  bool arrive(int rank, HostCall const* call) {
    std::unique_lock lock(mutex_);
    at_rank(calls_, rank) = call;
    return pass(lock, rank, [] {});
  }
  bool leave(int rank) {
    std::unique_lock lock(mutex_);
    return pass(lock, rank, [] {});
  }
  /// Waits for all ranks on the host.
  void join(int rank, std::chrono::milliseconds timeout, spi::DevicePollHook const& poll_hook) {
    auto const until = std::chrono::steady_clock::now() + timeout;
    std::unique_lock lock(mutex_);
    bool const joined = pass(lock, rank, [&] {
      if (poll_hook) poll_hook();
      if (std::chrono::steady_clock::now() > until)
        throw TimeoutError({.operation = "join threads", .message = "a rank is missing"});
    });
    if (!joined) throw BackendError({.operation = "join threads", .message = "the group has been aborted"});
  }
  void abort(int rank) {
    std::lock_guard const lock(mutex_);
    at_rank(aborted_, rank) = true;
    is_broken_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool is_aborted(int rank) {
    std::lock_guard const lock(mutex_);
    return at_rank(aborted_, rank);
  }
  [[nodiscard]] std::vector<HostCall const*> const& calls() const noexcept { return calls_; }

 private:
  template <class Poll>
  bool pass(std::unique_lock<std::mutex>& lock, int rank, Poll const& poll) {
    auto const round = round_;
    if (++arrived_ == calls_.size() && !is_broken_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    while (round_ == round && !at_rank(aborted_, rank)) {
      changed_.wait_for(lock, std::chrono::milliseconds(10));
      lock.unlock();
      poll();
      lock.lock();
    }
    return round_ != round;
  }

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::vector<HostCall const*> calls_;
  std::vector<bool> aborted_;
  bool is_broken_ = false;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
};

/// Computes what a rank gets from the calls of all.
class Combination {
 public:
  Combination(std::vector<HostCall const*> const& calls, int rank)
      : calls_(calls), mine_(*at_rank(calls, rank)), rank_(rank), out_(mine_.output->data()) {}

  void run() {
    switch (mine_.op_kind) {
      case OpKind::broadcast: return take(mine_.root, 0, 0, mine_.output->size_bytes());
      case OpKind::all_reduce:
      case OpKind::reduce: return reduce(0, mine_.output->size_bytes());
      case OpKind::reduce_scatterv: return reduce(offset_of(mine_.counts, rank_), at_rank(mine_.counts, rank_));
      case OpKind::all_gatherv:
      case OpKind::gatherv:
        for (int r = 0; r < ranks(); ++r) take(r, 0, offset_of(mine_.counts, r), at_rank(mine_.counts, r));
        return;
      case OpKind::scatterv: return take(mine_.root, offset_of(mine_.counts, rank_), 0, at_rank(mine_.counts, rank_));
      case OpKind::all_to_allv:
        for (int r = 0; r < ranks(); ++r) {
          take(r, offset_of(at_rank(calls_, r)->counts, rank_), offset_of(mine_.receive_counts, r),
               at_rank(mine_.receive_counts, r));
        }
        return;
      default: return;
    }
  }

 private:
  [[nodiscard]] int ranks() const { return static_cast<int>(calls_.size()); }
  void take(int from, std::size_t at, std::size_t to, std::size_t bytes) {
    if (bytes != 0) std::memcpy(out_ + to, at_rank(calls_, from)->input->data() + at, bytes);
  }
  void reduce(std::size_t at, std::size_t bytes) {
    std::vector<std::byte const*> inputs;
    for (auto const* const call : calls_) inputs.push_back(call->input->data() + at);
    algorithms::reducer(mine_.reduction, "reduce on threads")(out_, inputs, bytes);
  }

  std::vector<HostCall const*> const& calls_;
  HostCall const& mine_;
  int rank_;
  std::byte* out_;
};

/// The host function of a call, and what it needs.
struct Launch {
  std::shared_ptr<Rendezvous> point{};
  int rank = 0;
  HostCall call{};

  static void run(void* data) {
    auto const& self = *static_cast<Launch const*>(data);
    if (!self.point->arrive(self.rank, &self.call)) return;
    if (self.call.output) Combination(self.point->calls(), self.rank).run();
    static_cast<void>(self.point->leave(self.rank));  // the others may read this rank's input until then
  }
};

template <class Function>
Function* driver_function(char const* name) {
  static auto* const library = ::dlopen(CROSSRANK_TEST_CUDA, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

void launch(Stream const& stream, Launch& work) {
  static auto* const retain = driver_function<int(void**, int)>("cuDevicePrimaryCtxRetain");
  static auto* const push = driver_function<int(void*)>("cuCtxPushCurrent_v2");
  static auto* const launch_function = driver_function<int(void*, void (*)(void*), void*)>("cuLaunchHostFunc");
  static auto* const pop = driver_function<int(void**)>("cuCtxPopCurrent_v2");
  void* context = nullptr;
  if (retain(&context, stream.device().index) != 0 || push(context) != 0 ||
      launch_function(stream.native(), &Launch::run, &work) != 0 || pop(&context) != 0)
    throw BackendError({.operation = "enqueue", .message = "the driver refuses a host function"});
}

std::mutex failure_mutex;
constinit NoDestructor<std::optional<std::string>> injected_failure;
constinit std::atomic<bool> launches_block{false};

class ThreadTransport final : public spi::DeviceTransport {
 public:
  ThreadTransport(std::shared_ptr<Rendezvous> point, spi::DevicePlace const& place)
      : point_(std::move(point)), place_(place) {}
  ~ThreadTransport() override { close({}); }

  [[nodiscard]] spi::CollectiveSupport support_for(DeviceCollective const&) const override {
    return spi::CollectiveSupport::full;
  }

  void enqueue(DeviceCollective const& collective, Stream const& stream, spi::DevicePollHook const&) override {
    for (int waited = 0; launches_block && !stream.query(); ++waited) {
      if (waited == 10'000)
        throw BackendError({.operation = collective.name, .message = "the stream does not continue"});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (point_->is_aborted(place_.rank))
      throw BackendError({.operation = collective.name, .message = "the group was aborted"});
    auto const work = std::make_shared<Launch>(Launch{.point = point_, .rank = place_.rank});
    work->call = {.op_kind = collective.op_kind,
                  .counts = {collective.counts.begin(), collective.counts.end()},
                  .receive_counts = {collective.receive_counts.begin(), collective.receive_counts.end()},
                  .root = collective.root,
                  .reduction = collective.reduction};
    // A broadcast is in place.
    bool const is_broadcast = collective.op_kind == OpKind::broadcast;
    auto const given =
        is_broadcast && collective.root == place_.rank ? std::span<std::byte const>(collective.out) : collective.in;
    auto& provider = spi::device_provider(place_.device.kind);
    if (!given.empty()) {
      work->call.input = std::make_shared<HostBuffer>(given.size());
      provider.copy(stream, {.to = work->call.input->data(),
                             .from = given.data(),
                             .from_device = place_.device,
                             .run_bytes = given.size()});
    }
    if (!collective.out.empty()) work->call.output = std::make_shared<HostBuffer>(collective.out.size());
    launch(stream, *work);
    if (!collective.out.empty()) {
      provider.copy(stream, {.to = collective.out.data(),
                             .to_device = place_.device,
                             .from = work->call.output->data(),
                             .run_bytes = collective.out.size()});
    }
    provider.keep_alive(stream, work);
  }

  [[nodiscard]] std::shared_ptr<spi::Storage> allocate_buffer(std::size_t bytes) override {
    return spi::device_provider(place_.device.kind).allocate(current_stream(place_.device), {.bytes = bytes});
  }
  void register_buffer(std::shared_ptr<spi::Storage> buffer, spi::DevicePollHook const& poll_hook) override {
    buffers_.push_back(std::move(buffer));
    point_->join(place_.rank, std::chrono::seconds(20), poll_hook);
  }

  [[nodiscard]] void* native() noexcept override { return point_.get(); }
  [[nodiscard]] std::optional<spi::DeviceTransportFailure> failure() override {
    std::lock_guard const lock(failure_mutex);
    if (!injected_failure.value) return {};
    return spi::DeviceTransportFailure{.message = *injected_failure.value};
  }
  void abort() noexcept override { point_->abort(place_.rank); }
  void close(Event const& last_work) noexcept override {
    try {
      last_work.synchronize(std::chrono::seconds(5));
    } catch (Error const&) {
      abort();
    }
    buffers_.clear();
  }

 private:
  std::shared_ptr<Rendezvous> point_;
  spi::DevicePlace place_;
  std::vector<std::shared_ptr<spi::Storage>> buffers_{};
};

class ThreadTransportFactory final : public spi::DeviceTransportFactory {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return thread_transport_name; }
  [[nodiscard]] std::string_view title() const noexcept override { return "Threads"; }
  [[nodiscard]] bool serves(Device::Kind kind) const noexcept override { return kind == Device::Kind::cuda; }

  [[nodiscard]] spi::DeviceTransportOffer offer(Device device) override {
    spi::DeviceTransportOffer offer{};
    RankCapabilities const mine{.process = ::getpid(), .device = device.index};
    std::memcpy(offer.data(), &mine, sizeof mine);
    return offer;
  }
  [[nodiscard]] std::optional<std::string> objection(std::span<spi::DeviceTransportOffer const> offers) const override {
    std::map<int, std::size_t> rank_of_device;
    for (std::size_t r = 0; r < offers.size(); ++r) {
      auto const one = capabilities(offers[r]);
      if (one.process != capabilities(offers.front()).process) return "rank " + std::to_string(r) + " is not a thread";
      auto const [other, is_new] = rank_of_device.emplace(one.device, r);
      if (!is_new) return "rank " + std::to_string(other->second) + " and rank " + std::to_string(r) + " share a GPU";
    }
    return {};
  }
  [[nodiscard]] spi::DeviceTransportId draw_id() override {
    std::lock_guard const lock(mutex_);
    ++last_id_;
    spi::DeviceTransportId id{};
    std::memcpy(id.data(), &last_id_, sizeof last_id_);
    return id;
  }
  [[nodiscard]] std::unique_ptr<spi::DeviceTransport> join(spi::DeviceTransportId const& id,
                                                           spi::DevicePlace const& place,
                                                           std::chrono::milliseconds timeout,
                                                           spi::DevicePollHook const& poll_hook) override {
    std::shared_ptr<Rendezvous> point;
    {
      std::lock_guard const lock(mutex_);
      std::uint64_t number = 0;
      std::memcpy(&number, id.data(), sizeof number);
      auto& known = points_[number];
      point = known.lock();
      if (!point) known = point = std::make_shared<Rendezvous>(place.ranks);
    }
    point->join(place.rank, timeout, poll_hook);
    return std::make_unique<ThreadTransport>(std::move(point), place);
  }

 private:
  struct RankCapabilities {
    pid_t process = 0;
    int device = 0;
  };
  [[nodiscard]] static RankCapabilities capabilities(spi::DeviceTransportOffer const& offer) {
    RankCapabilities one;
    std::memcpy(&one, offer.data(), sizeof one);
    return one;
  }

  std::mutex mutex_{};
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, std::weak_ptr<Rendezvous>> points_{};
};

}  // namespace

void add_thread_transport() {
  ::setenv("EMULATED_GPU_KEPT", "pool,host,event", 1);  // the store of `HostBuffer`, and the pools of the library
  spi::add_device_transport(std::make_shared<ThreadTransportFactory>());
}

void block_launches() { launches_block = true; }

void fail_thread_transports(std::string const& message) {
  std::lock_guard const lock(failure_mutex);
  injected_failure.value = message;
}

}  // namespace crossrank::test
