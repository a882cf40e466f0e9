#include "workspace/shared_medium.hpp"

#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/environment.hpp"
#include "lib/core/immortal.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/system.hpp"
#include "workspace/arena_storage.hpp"
#include "workspace/rank_state_collector.hpp"

namespace crossrank::workspace {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr int yields_before_sleep = 1000;
/// In place of a generation: the rank has said that it publishes nothing any more.
constexpr std::uint64_t taken_back = ~std::uint64_t{0};

struct Media {
  struct Entry {
    std::weak_ptr<node::NodeDomain> domain;
    std::weak_ptr<SharedMedium> medium;
    std::shared_ptr<SharedMedium::Standing> standing = std::make_shared<SharedMedium::Standing>();
  };
  std::mutex mutex;
  std::map<node::NodeDomain const*, Entry> by_domain;
};

Media& media() {
  static Immortal<Media> all;  // workspaces may outlive statics
  return all.value;
}

ErrorInfo about(node::NodeDomain const& domain, int owner, std::string message) {
  auto const rank = static_cast<int>(domain.record(owner).global_rank);
  return {.operation = "SharedMemoryWorkspace.read",
          .message = std::move(message),
          .resource = "state of rank " + std::to_string(rank),
          .culprits = {rank}};
}

[[noreturn]] void fail_lost(node::NodeDomain const& domain, int owner) {
  auto info = about(domain, owner, "the rank ended in the middle of a write: " + domain.describe(owner));
  info.group_usable = false;
  throw PeerLostError(std::move(info));
}

[[noreturn]] void fail_slow(node::NodeDomain const& domain, int owner, std::chrono::nanoseconds waited) {
  auto const seconds = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(waited).count());
  auto info =
      about(domain, owner,
            "the rank has stood still in the middle of a write for " + seconds + " s: " + domain.describe(owner));
  info.remedy = "look at that process; CROSSRANK_TIMEOUT sets how long to wait for it";
  throw TimeoutError(std::move(info));
}

/// Waits for a rank that is writing its record.
class WriteWait {
 public:
  WriteWait(node::NodeDomain const& domain, int owner) : domain_(domain), owner_(owner) {}

  /// Returns when it is worth looking again. Throws when it will not be.
  void pass() {
    if (departed_) fail_lost(domain_, owner_);
    if (++turns_ <= yields_before_sleep) {
      // The rank may have ended its write just before it ended: then one more look finds the state.
      departed_ = domain_.has_departed(owner_);
      return platform::system().yield();
    }
    if (!deadline_) deadline_.emplace(environment().timeout.value_or(spi::Patience{}.timeout));
    if (deadline_->expired()) fail_slow(domain_, owner_, deadline_->timeout());
    departed_ = domain_.has_departed_slow(owner_);
    platform::system().sleep(std::chrono::milliseconds(1));
    deadline_->tick();
  }

 private:
  node::NodeDomain const& domain_;
  int owner_;
  int turns_ = 0;
  bool departed_ = false;
  std::optional<platform::Deadline> deadline_{};
};

}  // namespace

std::shared_ptr<SharedMedium> SharedMedium::of(std::shared_ptr<node::NodeDomain> const& domain) {
  std::lock_guard const lock(media().mutex);
  std::erase_if(media().by_domain, [](auto const& entry) { return entry.second.domain.expired(); });
  auto& known = media().by_domain[domain.get()];
  known.domain = domain;
  auto medium = known.medium.lock();
  if (!medium) known.medium = medium = std::make_shared<SharedMedium>(domain, known.standing);
  return medium;
}

SharedMedium::SharedMedium(std::shared_ptr<node::NodeDomain> domain, std::shared_ptr<Standing> standing)
    : domain_(std::move(domain)),
      standing_(std::move(standing)),
      everybody_(static_cast<std::size_t>(domain_->ranks())) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

Tensor SharedMedium::empty(Shape const& shape, Dtype dtype) const {
  domain_->require_own_process("SharedMemoryWorkspace.empty");
  auto const bytes = dense_bytes(shape, dtype);
  auto const slot = domain_->arena().allocate(bytes);
  return spi::tensor_over(std::make_shared<ArenaStorage>(domain_, slot, bytes), 0, shape, dtype);
}

void SharedMedium::write(Json const& config, StateDict const& weights) {
  domain_->require_own_process("SharedMemoryWorkspace.write");
  std::vector<NamedTensor> tensors;
  tensors.reserve(weights.size());
  for (auto const& [name, tensor] : weights) tensors.push_back({name, &tensor});
  auto publication = publish(*domain_, {.config = &config, .tensors = tensors}, everybody_, Inline::refused);
  announce(&publication);
  auto const before = std::exchange(standing_->published, std::move(publication));
  auto const held_before = std::exchange(held_, weights);
  if (before) {
    revoke(*domain_, *before, everybody_);
    release(*domain_, *before);
  }
}

void SharedMedium::announce(Publication const* publication) noexcept {
  auto& record = domain_->own_record();
  auto const version = record.state_version.load(relaxed);
  record.state_version.store(version + 1, relaxed);
  CROSSRANK_CRASH_POINT("workspace.shared.announcing");
  // Each field is released, so that a reader that sees one of them sees the odd version too and looks again.
  constexpr auto release = std::memory_order_release;
  record.state_offset.store(publication == nullptr ? 0 : publication->slab->offset, release);
  record.state_bytes.store(publication == nullptr ? 0 : publication->bytes, release);
  record.state_generation.store(publication == nullptr ? taken_back : publication->slab->generation, release);
  record.state_slot.store(publication == nullptr ? 0 : publication->slab->id, release);
  record.state_version.store(version + 2, release);
}

int SharedMedium::find_on_node(int global_rank) const {
  for (int rank = 0; rank < domain_->ranks(); ++rank) {
    if (domain_->record(rank).global_rank == static_cast<std::uint32_t>(global_rank)) return rank;
  }
  throw UsageError(
      {.operation = "SharedMemoryWorkspace.read",
       .message = "no such rank on this node",
       .expected = "a rank of the job that shares this memory, of which there are " + std::to_string(domain_->ranks()),
       .got = "rank " + std::to_string(global_rank),
       .remedy = "use an NFSWorkspace between nodes"});
}

SharedMedium::Found SharedMedium::locate(int owner) const {
  auto const& record = domain_->record(owner);
  WriteWait wait(*domain_, owner);
  for (;; wait.pass()) {
    auto const version = record.state_version.load(acquire);
    if (version == 0) return {};
    if (version % 2 != 0) continue;
    auto const offset = record.state_offset.load(acquire);
    auto const bytes = record.state_bytes.load(acquire);
    Located const at{
        .owner = owner, .slot = record.state_slot.load(acquire), .generation = record.state_generation.load(acquire)};
    if (record.state_version.load(relaxed) == version) return settled(version, at, offset, bytes);
  }
}

SharedMedium::Found SharedMedium::settled(std::uint64_t version, Located at, std::uint64_t offset,
                                          std::uint64_t bytes) const {
  if (bytes == 0 && at.generation == taken_back) return {.version = version};
  auto const all = domain_->arena_bytes();
  if (bytes == 0 || offset > all || bytes > all - offset || at.slot >= domain_->slot_capacity()) {
    auto info = about(*domain_, at.owner, "the record points outside the arena of its rank");
    info.section = "record";
    throw FormatError(std::move(info));
  }
  at.payload = {domain_->arena_of(at.owner) + offset, bytes};
  return {.version = version, .state = at};
}

std::optional<RankState> SharedMedium::read(int global_rank) const {
  domain_->require_own_process("SharedMemoryWorkspace.read");
  auto const owner = find_on_node(global_rank);
  std::uint64_t refused = 0;
  for (;;) {
    auto const found = locate(owner);
    if (!found.state) return std::nullopt;
    RankStateCollector collector;
    // False when the writer has published anew since: then there is something newer to find.
    if (receive(domain_, *found.state, Take::share, collector)) return std::move(collector).take();
    if (found.version == std::exchange(refused, found.version)) fail_held(owner);
  }
}

void SharedMedium::fail_held(int owner) const {
  auto info = about(*domain_, owner, "this rank holds the state too often, or its offer is gone");
  info.expected = "at most " + std::to_string(node::LeaseWord::count_limit) + " views of one tensor at a time";
  info.remedy = "drop what was read before";
  info.culprits.clear();
  throw UsageError(std::move(info));
}

void SharedMedium::clean() noexcept {
  if (!standing_->published || !domain_->is_own_process()) return;
  announce(nullptr);
  revoke(*domain_, *standing_->published, everybody_);
  release(*domain_, *standing_->published);
  standing_->published.reset();
  held_.clear();
}

}  // namespace crossrank::workspace
