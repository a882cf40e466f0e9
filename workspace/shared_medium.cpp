#include "workspace/shared_medium.hpp"

#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/core/immortal.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/system.hpp"
#include "workspace/arena_storage.hpp"
#include "workspace/rank_state_collector.hpp"

namespace crossrank::workspace {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr int most_attempts = 100'000;

struct Media {
  std::mutex mutex;
  std::map<node::NodeDomain const*, std::weak_ptr<SharedMedium>> by_domain;
};

Media& media() {
  static Immortal<Media> all;  // workspaces may outlive statics
  return all.value;
}

}  // namespace

std::shared_ptr<SharedMedium> SharedMedium::of(std::shared_ptr<node::NodeDomain> const& domain) {
  std::lock_guard const lock(media().mutex);
  std::erase_if(media().by_domain, [](auto const& entry) { return entry.second.expired(); });
  auto& known = media().by_domain[domain.get()];
  auto medium = known.lock();
  if (!medium) known = medium = std::make_shared<SharedMedium>(domain);
  return medium;
}

SharedMedium::SharedMedium(std::shared_ptr<node::NodeDomain> domain)
    : domain_(std::move(domain)), everybody_(static_cast<std::size_t>(domain_->ranks())) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

SharedMedium::~SharedMedium() { clean(); }

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
  // Tensors of the arena stay as they are while the state stands: the workspace holds them as a caller would.
  announce(&publication);
  auto before = std::exchange(published_, std::move(publication));
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
  record.state_generation.store(publication == nullptr ? 0 : publication->slab->generation, release);
  record.state_slot.store(publication == nullptr ? 0 : publication->slab->id, release);
  record.state_version.store(version + 2, release);
}

std::optional<int> SharedMedium::find_on_node(int global_rank) const noexcept {
  for (int rank = 0; rank < domain_->ranks(); ++rank) {
    if (domain_->record(rank).global_rank == static_cast<std::uint32_t>(global_rank)) return rank;
  }
  return std::nullopt;
}

std::optional<Located> SharedMedium::locate(int owner) const {
  constexpr auto acquire = std::memory_order_acquire;
  auto const& record = domain_->record(owner);
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    auto const version = record.state_version.load(acquire);
    if (version == 0) return std::nullopt;
    if (version % 2 == 0) {
      auto const offset = record.state_offset.load(acquire);
      auto const bytes = record.state_bytes.load(acquire);
      Located at{
          .owner = owner, .slot = record.state_slot.load(acquire), .generation = record.state_generation.load(acquire)};
      if (record.state_version.load(relaxed) == version) {
        auto const all = domain_->arena_bytes();
        if (bytes == 0 || offset > all || bytes > all - offset || at.slot >= domain_->slot_capacity())
          return std::nullopt;
        at.payload = {domain_->arena_of(owner) + offset, bytes};
        return at;
      }
    } else if (domain_->has_departed(owner)) {
      break;
    }
    platform::system().yield();
  }
  throw PeerLostError({.operation = "SharedMemoryWorkspace.read",
                       .message = "rank " + std::to_string(owner) +
                                  " of this node stopped in the middle of a write: " + domain_->describe(owner),
                       .culprits = {owner},
                       .group_usable = false});
}

std::optional<RankState> SharedMedium::read(int global_rank) const {
  domain_->require_own_process("SharedMemoryWorkspace.read");
  auto const owner = find_on_node(global_rank);
  if (!owner) {
    throw UsageError({.operation = "SharedMemoryWorkspace.read",
                      .message = "no such rank on this node",
                      .got = std::to_string(global_rank),
                      .remedy = "use an NFSWorkspace between nodes"});
  }
  for (std::optional<Located> refused;;) {
    auto const at = locate(*owner);
    if (!at) return std::nullopt;
    RankStateCollector collector;
    // False when the writer has published anew since: then there is something newer to find.
    if (receive(domain_, *at, Take::share, collector)) return std::move(collector).take();
    if (refused && refused->slot == at->slot && refused->generation == at->generation) {
      throw FormatError({.operation = "SharedMemoryWorkspace.read",
                         .message = "the record names a state that its rank does not offer",
                         .resource = "control segment, record of rank " + std::to_string(*owner),
                         .culprits = {*owner},
                         .section = "state"});
    }
    refused = at;
  }
}

void SharedMedium::clean() noexcept {
  if (!published_ || !domain_->is_own_process()) return;
  announce(nullptr);
  revoke(*domain_, *published_, everybody_);
  release(*domain_, *published_);
  published_.reset();
  held_.clear();
}

}  // namespace crossrank::workspace
