#include "workspace/shared_memory/arena_state_store.hpp"

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/core/environment.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/system.hpp"
#include "workspace/shared_memory/arena_storage.hpp"
#include "workspace/shared_memory/rank_state_collector.hpp"

namespace crossrank::workspace {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr int yields_before_sleep = 1000;
/// Stored instead of a generation when the rank has withdrawn its state.
constexpr std::uint64_t taken_back = ~std::uint64_t{0};

struct ArenaStoreRegistry {
  struct Entry {
    std::weak_ptr<node::NodeComm> comm;
    std::weak_ptr<ArenaStateStore> store;
    std::shared_ptr<ArenaStateStore::PublishedState> published_state =
        std::make_shared<ArenaStateStore::PublishedState>();
  };
  std::mutex mutex;
  std::map<node::NodeComm const*, Entry> by_comm;
};

ArenaStoreRegistry& arena_stores() {
  static NoDestructor<ArenaStoreRegistry> all;  // workspaces may outlive static objects
  return all.value;
}

ErrorInfo about(node::NodeComm const& comm, int owner, std::string message) {
  auto const rank = static_cast<int>(comm.record(owner).global_rank);
  return {.operation = "SharedMemoryWorkspace.read",
          .message = std::move(message),
          .resource = "state of rank " + std::to_string(rank),
          .failed_ranks = {rank}};
}

[[noreturn]] void fail_lost(node::NodeComm const& comm, int owner) {
  auto info = about(comm, owner, "the rank ended while it was writing its state: " + comm.describe(owner));
  info.group_usable = false;
  throw PeerLostError(std::move(info));
}

[[noreturn]] void fail_slow(node::NodeComm const& comm, int owner, std::chrono::nanoseconds waited) {
  auto const seconds = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(waited).count());
  auto info =
      about(comm, owner, "the rank has not finished writing its state for " + seconds + " s: " + comm.describe(owner));
  info.hint = "check that process; CROSSRANK_TIMEOUT sets how long a reader waits for it";
  throw TimeoutError(std::move(info));
}

/// Waits for a rank that is writing its record.
class WriteWait {
 public:
  WriteWait(node::NodeComm const& comm, int owner) : comm_(comm), owner_(owner) {}

  /// Pauses before the next check of the record. Throws when the writer is gone or too slow.
  void pass() {
    if (departed_) fail_lost(comm_, owner_);
    if (++turns_ <= yields_before_sleep) {
      // The writer may have finished just before it ended, so check once more before failing.
      departed_ = comm_.has_departed(owner_);
      return platform::system().yield();
    }
    if (!deadline_) deadline_.emplace(environment().timeout.value_or(spi::TimeoutPolicy{}.timeout));
    if (deadline_->expired()) fail_slow(comm_, owner_, deadline_->timeout());
    departed_ = comm_.has_departed_slow(owner_);
    platform::system().sleep(std::chrono::milliseconds(1));
    deadline_->tick();
  }

 private:
  node::NodeComm const& comm_;
  int owner_;
  int turns_ = 0;
  bool departed_ = false;
  std::optional<platform::Deadline> deadline_{};
};

/// Returns the tensors on the CPU. The others were copied, so that their memory can be freed.
StateDict on_cpu(StateDict const& weights) {
  StateDict kept;
  kept.reserve(weights.size());
  for (auto const& [name, tensor] : weights) {
    if (tensor.device().kind == Device::Kind::cpu) kept.insert_or_assign(name, tensor);
  }
  return kept;
}

}  // namespace

std::shared_ptr<ArenaStateStore> ArenaStateStore::of(std::shared_ptr<node::NodeComm> const& comm) {
  std::lock_guard const lock(arena_stores().mutex);
  std::erase_if(arena_stores().by_comm, [](auto const& entry) { return entry.second.comm.expired(); });
  auto& known = arena_stores().by_comm[comm.get()];
  known.comm = comm;
  auto store = known.store.lock();
  if (!store) known.store = store = std::make_shared<ArenaStateStore>(comm, known.published_state);
  return store;
}

ArenaStateStore::ArenaStateStore(std::shared_ptr<node::NodeComm> comm, std::shared_ptr<PublishedState> published_state)
    : comm_(std::move(comm)), published_state_(std::move(published_state)), everybody_(all_ranks(comm_->ranks())) {}

Tensor ArenaStateStore::empty(Shape const& shape, Dtype dtype) const {
  comm_->require_own_process("SharedMemoryWorkspace.empty");
  auto const bytes = dense_bytes(shape, dtype);
  auto const slot = comm_->arena().allocate(bytes);
  return spi::tensor_from_storage(std::make_shared<ArenaStorage>(comm_, slot, bytes), 0, shape, dtype);
}

void ArenaStateStore::write(Json const& config, StateDict const& weights, StateWriteOptions const& options) {
  comm_->require_own_process("SharedMemoryWorkspace.write");
  std::vector<NamedTensor> tensors;
  tensors.reserve(weights.size());
  for (auto const& [name, tensor] : weights) tensors.push_back({name, &tensor});
  auto published = publish(*comm_, {.config = &config, .tensors = tensors}, everybody_,
                           {.small = InlinePolicy::refused, .in_place = options.in_place});
  publish_record(&published);
  auto const before = std::exchange(published_state_->published, std::move(published));
  auto const held_before = std::exchange(held_, on_cpu(weights));  // kept until the leases on it are revoked
  if (before) {
    revoke(*comm_, *before, everybody_);
    release(*comm_, *before);
  }
}

void ArenaStateStore::publish_record(PublishedContribution const* published) noexcept {
  auto& record = comm_->own_record();
  auto const version = record.state_version.load(relaxed);
  record.state_version.store(version + 1, relaxed);
  CROSSRANK_CRASH_POINT("workspace.shared.publishing");
  // Stores each field with release order: a reader that sees a new field also sees the odd version, and retries.
  constexpr auto release = std::memory_order_release;
  record.state_offset.store(published == nullptr ? 0 : published->slab->offset, release);
  record.state_bytes.store(published == nullptr ? 0 : published->bytes, release);
  record.state_generation.store(published == nullptr ? taken_back : published->slab->generation, release);
  record.state_slot.store(published == nullptr ? 0 : published->slab->id, release);
  record.state_version.store(version + 2, release);
}

int ArenaStateStore::find_on_node(int global_rank) const {
  for (int rank = 0; rank < comm_->ranks(); ++rank) {
    if (comm_->record(rank).global_rank == static_cast<std::uint32_t>(global_rank)) return rank;
  }
  throw UsageError(
      {.operation = "SharedMemoryWorkspace.read",
       .message = "the rank is not on this node",
       .expected = "one of the job's ranks on this node; their number is " + std::to_string(comm_->ranks()),
       .got = "rank " + std::to_string(global_rank),
       .hint = "use an NFSWorkspace to read from other nodes"});
}

ArenaStateStore::RecordedState ArenaStateStore::locate(int owner) const {
  auto const& record = comm_->record(owner);
  WriteWait wait(*comm_, owner);
  for (;; wait.pass()) {
    auto const version = record.state_version.load(acquire);
    if (version == 0) return {};
    if (version % 2 != 0) continue;
    auto const offset = record.state_offset.load(acquire);
    auto const bytes = record.state_bytes.load(acquire);
    RemoteContribution const at{
        .owner = owner, .slot = record.state_slot.load(acquire), .generation = record.state_generation.load(acquire)};
    if (record.state_version.load(relaxed) == version) return validated(version, at, offset, bytes);
  }
}

ArenaStateStore::RecordedState ArenaStateStore::validated(std::uint64_t version, RemoteContribution at,
                                                          std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes == 0 && at.generation == taken_back) return {.version = version};
  auto const all = comm_->arena_bytes();
  if (bytes == 0 || offset > all || bytes > all - offset || at.slot >= comm_->slot_capacity()) {
    auto info = about(*comm_, at.owner, "the record points outside the rank's arena");
    info.section = "record";
    throw FormatError(std::move(info));
  }
  at.payload = {comm_->arena_of(at.owner) + offset, bytes};
  return {.version = version, .state = at};
}

std::optional<RankState> ArenaStateStore::read(int global_rank) const {
  comm_->require_own_process("SharedMemoryWorkspace.read");
  auto const owner = find_on_node(global_rank);
  std::uint64_t refused = 0;
  for (;;) {
    auto const found = locate(owner);
    if (!found.state) return std::nullopt;
    RankStateCollector collector;
    // `receive` returns false when the writer has published a newer state; look for that one.
    if (receive(comm_, *found.state, LeaseMode::share, collector)) return std::move(collector).take();
    if (found.version == std::exchange(refused, found.version)) fail_held(owner);
  }
}

void ArenaStateStore::fail_held(int owner) const {
  auto info = about(*comm_, owner, "this rank holds too many views of the state, or the state was withdrawn");
  info.expected = "at most " + std::to_string(node::LeaseWord::count_limit) + " views of one tensor at a time";
  info.hint = "release states that were read earlier";
  info.failed_ranks.clear();
  throw UsageError(std::move(info));
}

void ArenaStateStore::clean() noexcept {
  if (!published_state_->published || !comm_->is_own_process()) return;
  publish_record(nullptr);
  revoke(*comm_, *published_state_->published, everybody_);
  release(*comm_, *published_state_->published);
  published_state_->published.reset();
  held_.clear();
}

}  // namespace crossrank::workspace
