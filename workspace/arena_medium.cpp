#include <array>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/medium.hpp"

namespace crossrank::workspace {
namespace {

class ArenaMedium final : public Medium {
 public:
  explicit ArenaMedium(std::shared_ptr<node::Group> group) : group_(std::move(group)) {}

  void publish(Contribution const& contribution, int receiver, node::Post& post) override {
    readers_ = {group_->node_rank(receiver)};
    publication_ = workspace::publish(group_->domain(), contribution, readers_);
    publication_.describe(post);
    // The offers keep the slab from being used again until they are taken and dropped, declined, or revoked.
    release(group_->domain(), publication_);
  }

  void receive(int member, Descriptor const& part, Collector& collector) override {
    if (workspace::receive(group_->shared_domain(), locate(member, part), Take::offer, collector)) return;
    group_->throw_if_failed("receive");
    throw PeerLostError({.operation = "receive",
                         .message = "rank " + std::to_string(member) + " has taken back what it published",
                         .group = group_->name(),
                         .rank = group_->rank(),
                         .world_size = group_->size(),
                         .culprits = {member},
                         .group_usable = false});
  }

  void decline(int member, Descriptor const& part) noexcept override {
    try {
      workspace::decline(group_->domain(), locate(member, part));
    } catch (Error const&) {  // a payload outside its arena was never offered
    }
  }

  void finish() override {}

  void give_up() noexcept override { revoke(group_->domain(), publication_, readers_); }

 private:
  [[nodiscard]] Located locate(int member, Descriptor const& part) const {
    auto const payload = part.is_inline ? part.inlined_part() : group_->payload(member, part.offset, part.bytes);
    if (part.slot >= group_->domain().slot_capacity()) {
      throw FormatError({.operation = "receive",
                         .message = "a slot that does not exist",
                         .resource = "arena of rank " + std::to_string(group_->node_rank(member)),
                         .culprits = {member},
                         .section = "arrival"});
    }
    return {.owner = group_->node_rank(member),
            .is_inline = part.is_inline,
            .slot = part.slot,
            .generation = part.generation,
            .payload = payload};
  }

  std::shared_ptr<node::Group> group_;
  std::array<int, 1> readers_{0};
  Publication publication_{};
};

}  // namespace

std::unique_ptr<Medium> shared_medium(std::shared_ptr<node::Group> group) {
  return std::make_unique<ArenaMedium>(std::move(group));
}

}  // namespace crossrank::workspace
