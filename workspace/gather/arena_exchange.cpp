#include <array>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/gather/exchange_backend.hpp"
#include "workspace/shared_memory/published_contribution.hpp"
#include "workspace/shared_memory/remote_contribution.hpp"

namespace crossrank::workspace {
namespace {

class ArenaExchange final : public ExchangeBackend {
 public:
  ArenaExchange(std::shared_ptr<node::Group> group, std::chrono::milliseconds timeout, bool in_place)
      : group_(std::move(group)), timeout_(timeout), in_place_(in_place) {}

  void publish(Contribution const& contribution, int receiver, node::Post& post) override {
    readers_ = {group_->node_rank(receiver)};
    published_ =
        workspace::publish(group_->comm(), contribution, readers_, {.timeout = timeout_, .in_place = in_place_});
    published_.describe(post);
    // The offers protect the slab until they are taken and dropped, declined, or revoked.
    release(group_->comm(), published_);
  }

  void receive(int member, ContributionDescriptor const& part, Collector& collector) override {
    if (workspace::receive(group_->shared_comm(), locate(member, part), LeaseMode::offer, collector)) return;
    group_->throw_if_failed("receive");
    throw PeerLostError({.operation = "receive",
                         .message = "rank " + std::to_string(member) + " has revoked its contribution",
                         .group = group_->name(),
                         .rank = group_->rank(),
                         .world_size = group_->size(),
                         .failed_ranks = {member},
                         .group_usable = false});
  }

  void decline(int member, ContributionDescriptor const& part) noexcept override {
    try {
      workspace::decline(group_->comm(), locate(member, part));
    } catch (Error const&) {  // a payload outside its arena has no offers
    }
  }

  void finish() override {}

  void discard() noexcept override { revoke(group_->comm(), published_, readers_); }

 private:
  [[nodiscard]] RemoteContribution locate(int member, ContributionDescriptor const& part) const {
    auto const payload = part.is_inline ? part.inlined_part() : group_->payload(member, part.offset, part.bytes);
    if (part.slot >= group_->comm().slot_capacity()) {
      throw FormatError({.operation = "receive",
                         .message = "the slot does not exist",
                         .resource = "arena of rank " + std::to_string(group_->node_rank(member)),
                         .failed_ranks = {member},
                         .section = "arrival"});
    }
    return {.owner = group_->node_rank(member),
            .is_inline = part.is_inline,
            .slot = part.slot,
            .generation = part.generation,
            .payload = payload};
  }

  std::shared_ptr<node::Group> group_;
  std::chrono::milliseconds timeout_;
  bool in_place_;
  std::array<int, 1> readers_{0};
  PublishedContribution published_{};
};

}  // namespace

std::unique_ptr<ExchangeBackend> make_arena_exchange(std::shared_ptr<node::Group> group,
                                                     std::chrono::milliseconds timeout, bool in_place) {
  return std::make_unique<ArenaExchange>(std::move(group), timeout, in_place);
}

}  // namespace crossrank::workspace
