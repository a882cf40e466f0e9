#include "collectives/nccl/nccl_transport.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

#include <crossrank/cuda.hpp>

#include "collectives/nccl/communicator.hpp"
#include "collectives/nccl/nccl_calls.hpp"
#include "collectives/nccl/nccl_library.hpp"
#include "collectives/nccl/registered_memory.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/platform/random.hpp"

namespace crossrank::nccl {
namespace {

using api::Result;

/// First version of NCCL whose ranks in one process do not write straight into the tensors of each other.
constexpr int first_version_for_threads = 22300;

class NcclTransport final : public spi::DeviceTransport {
 public:
  NcclTransport(api::UniqueId const& id, spi::DevicePlace const& place, std::chrono::milliseconds timeout,
                spi::DevicePollHook const& poll_hook)
      : communicator_(id, place, timeout, poll_hook) {}

  [[nodiscard]] spi::CollectiveSupport support_for(spi::DeviceCollective const& collective) const override {
    if (!can_run(collective)) return spi::CollectiveSupport::none;
    return may_lose_nan(collective) ? spi::CollectiveSupport::graphs_only : spi::CollectiveSupport::full;
  }

  void enqueue(spi::DeviceCollective const& collective, Stream const& stream,
               spi::DevicePollHook const& poll_hook) override {
    enqueue_call(communicator_, collective, stream, poll_hook);
  }

  [[nodiscard]] std::shared_ptr<spi::Storage> allocate_buffer(std::size_t bytes) override {
    return allocate_with_nccl(communicator_.place().device, bytes);
  }
  void register_buffer(std::shared_ptr<spi::Storage> buffer, spi::DevicePollHook const& poll_hook) override {
    communicator_.register_memory(std::move(buffer), poll_hook);
  }

  [[nodiscard]] void* native() noexcept override { return communicator_.native(); }
  [[nodiscard]] std::optional<spi::DeviceTransportFailure> failure() override {
    auto const state = communicator_.async_error();
    if (state == Result::success || state == Result::in_progress) return {};
    return spi::DeviceTransportFailure{
        .message = std::string("NCCL reports: ") + communicator_.functions().ncclGetErrorString(state),
        .may_be_of_peer = state == Result::remote_error || state == Result::system_error};
  }
  void abort() noexcept override { communicator_.abort(); }
  void close(Event const& last_work) noexcept override { communicator_.close(last_work); }

 private:
  Communicator communicator_;
};

/// Returns a number that no other process has.
std::uint64_t process_number() {
  // A child after `fork` has no CUDA, so it needs no number of its own.
  static std::uint64_t const number = platform::random_number("make a communicator");
  return number;
}

/// The capabilities of a rank, as sent to the other ranks.
struct RankCapabilities {
  std::int32_t version = 0;
  std::uint64_t process = 0;    ///< a random number of its process
  std::array<char, 160> gpu{};  ///< identity of its GPU
};
static_assert(sizeof(RankCapabilities) <= sizeof(spi::DeviceTransportOffer));
static_assert(sizeof(api::UniqueId) <= sizeof(spi::DeviceTransportId));

/// A peer wrote the identity, so it may have no NUL.
std::string gpu_of(RankCapabilities const& capabilities) {
  return {capabilities.gpu.data(), ::strnlen(capabilities.gpu.data(), capabilities.gpu.size())};
}

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

/// Returns why a rank cannot be in one communicator with the ranks before it. Notes it for the ranks after it.
class RankPairs {
 public:
  std::optional<std::string> objection(RankCapabilities const& one, std::size_t rank) {
    auto const gpu = gpu_of(one);
    auto const [same_gpu, is_first_on_gpu] = by_gpu_.try_emplace(gpu, rank);
    auto const [same_process, is_first_in_process] = by_process_.try_emplace(one.process, rank);
    if (!is_first_on_gpu) return rank_text(same_gpu->second) + " and " + rank_text(rank) + " use the same GPU, " + gpu;
    // Only its own GPU can access the memory of a pool of the library.
    if (!is_first_in_process && one.version < first_version_for_threads) {
      return rank_text(same_process->second) + " and " + rank_text(rank) + " are threads of one process, where NCCL " +
             version_text(one.version) + " needs memory that all GPUs can access (" +
             version_text(first_version_for_threads) + " does not)";
    }
    return {};
  }

 private:
  std::unordered_map<std::string, std::size_t> by_gpu_{};  ///< the first rank of each
  std::unordered_map<std::uint64_t, std::size_t> by_process_{};
};

class NcclTransportFactory final : public spi::DeviceTransportFactory {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] std::string_view title() const noexcept override { return "NCCL"; }
  [[nodiscard]] bool serves(Device::Kind kind) const noexcept override { return kind == Device::Kind::cuda; }

  [[nodiscard]] spi::DeviceTransportOffer offer(Device device) override {
    RankCapabilities mine{.process = process_number()};
    cuda::device_info(device).uuid.copy(mine.gpu.data(), mine.gpu.size() - 1);
    mine.version = nccl_library().version;
    spi::DeviceTransportOffer offer{};
    std::memcpy(offer.data(), &mine, sizeof mine);
    return offer;
  }

  [[nodiscard]] std::optional<std::string> objection(std::span<spi::DeviceTransportOffer const> offers) const override {
    std::vector<RankCapabilities> ranks(offers.size());
    RankPairs pairs;
    for (std::size_t r = 0; r < offers.size(); ++r) {
      auto& rank = ranks[r];
      std::memcpy(&rank, offers[r].data(), sizeof rank);
      if (rank.version != ranks.front().version) {
        return rank_text(r) + " has NCCL " + version_text(rank.version) + ", and rank 0 has " +
               version_text(ranks.front().version);
      }
      if (rank.gpu.front() == '\0') return "the driver of " + rank_text(r) + " does not identify GPUs";
      if (auto why = pairs.objection(rank, r)) return why;
    }
    return {};
  }

  [[nodiscard]] spi::DeviceTransportId draw_id() override {
    auto const drawn = Communicator::draw_id();
    spi::DeviceTransportId id{};
    std::memcpy(id.data(), &drawn, sizeof drawn);
    return id;
  }

  [[nodiscard]] std::unique_ptr<spi::DeviceTransport> join(spi::DeviceTransportId const& id,
                                                           spi::DevicePlace const& place,
                                                           std::chrono::milliseconds timeout,
                                                           spi::DevicePollHook const& poll_hook) override {
    api::UniqueId drawn{};
    std::memcpy(&drawn, id.data(), sizeof drawn);
    return std::make_unique<NcclTransport>(drawn, place, timeout, poll_hook);
  }
};

}  // namespace

spi::DeviceTransportFactory& transport_factory() noexcept {
  static NoDestructor<NcclTransportFactory> factory;  // groups may outlive statics
  return factory.value;
}

}  // namespace crossrank::nccl
