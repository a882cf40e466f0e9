#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/medium.hpp"
#include "workspace/nfs_medium.hpp"

namespace crossrank::workspace {
namespace {

void hand_over(RankState state, Collector& collector) {
  collector.expect(state.weights.size());
  collector.config(std::move(state.config));
  for (auto const& [name, tensor] : state.weights) collector.tensor(name, tensor);
}

class FileMedium final : public Medium {
 public:
  FileMedium(std::shared_ptr<node::Group> group, NFSWorkspace workspace, bool own, spi::Patience const& patience)
      : group_(std::move(group)), workspace_(std::move(workspace)), own_(own), patience_(patience) {}

  void publish(Contribution const& contribution, int, node::Post& post) override {
    StateDict weights;
    weights.reserve(contribution.tensors.size());
    for (auto const& [name, tensor] : contribution.tensors) weights.insert_or_assign(std::string(name), *tensor);
    announced_ =
        workspace_.medium()->write_announced(contribution.config == nullptr ? Json() : *contribution.config, weights);
    static_assert(sizeof(Announcement) <= node::Arrival::inline_bytes);
    post.inlined = std::as_bytes(std::span(&*announced_, 1));
  }

  void receive(int member, node::Arrival const& arrival, Collector& collector) override {
    auto const bytes = group_->payload(member, arrival);
    Announcement announced;
    if (bytes.size() != sizeof announced) {
      throw FormatError({.operation = "receive",
                         .message = "an announcement of the wrong size",
                         .expected = std::to_string(sizeof announced),
                         .got = std::to_string(bytes.size()),
                         .culprits = {member},
                         .section = "arrival"});
    }
    std::memcpy(&announced, bytes.data(), sizeof announced);
    ReadPatience const patience{.limit = std::max<std::chrono::nanoseconds>(least_patience, patience_.timeout / 4),
                                .between = [this] {
                                  group_->progress();
                                  group_->throw_if_failed("receive");
                                }};
    hand_over(workspace_.medium()->read_announced(announced, patience), collector);
  }

  void decline(int, node::Arrival const&) noexcept override {}

  void finish() override {
    if (own_) {
      workspace_.clean();
    } else if (announced_) {
      workspace_.medium()->retire(*announced_);
    }
  }

  void give_up() noexcept override {
    try {
      if (own_) {
        workspace_.clean();
      } else if (announced_) {
        workspace_.medium()->abandon(*announced_);
      }
    } catch (
        Error const&) {  // the error that ended the range is already on its way; `crossrank clean` removes what stays
    }
  }

 private:
  static constexpr std::chrono::nanoseconds least_patience =
      std::chrono::seconds(75);  // NFS caches a directory for up to 60 s

  std::shared_ptr<node::Group> group_;
  NFSWorkspace workspace_;
  bool own_;
  spi::Patience patience_;
  std::optional<Announcement> announced_{};
};

}  // namespace

std::unique_ptr<Medium> nfs_medium(std::shared_ptr<node::Group> group, int global_rank, GatherOptions const& options,
                                   spi::Patience const& patience) {
  bool const own = !options.workspace_path.empty();
  auto workspace = own ? NFSWorkspace(options.workspace_path, {.rank = global_rank}) : *options.workspace->nfs();
  return std::make_unique<FileMedium>(std::move(group), std::move(workspace), own, patience);
}

}  // namespace crossrank::workspace
