#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/medium.hpp"
#include "workspace/nfs_medium.hpp"

namespace crossrank::workspace {
namespace {

constexpr char const* config_key = "config";
constexpr char const* names_key = "names";

/// A state image has no absent tensors: the config of a gather's file says which names there are, in order.
Json wrap(Contribution const& contribution, StateDict& weights) {
  Json wrapped = Json::object();
  if (contribution.config != nullptr) wrapped[config_key] = *contribution.config;
  bool absent = false;
  for (auto const& [name, tensor] : contribution.tensors) {
    if (tensor->defined()) weights.insert_or_assign(std::string(name), *tensor);
    absent = absent || !tensor->defined();
  }
  if (absent) {
    auto& names = wrapped[names_key] = Json::array();
    for (auto const& [name, tensor] : contribution.tensors) names.push_back(std::string(name));
  }
  return wrapped;
}

void unwrap(RankState state, Collector& collector) {
  collector.expect(state.weights.size());
  if (state.config.contains(config_key)) collector.config(std::move(state.config.at(config_key)));
  if (!state.config.contains(names_key)) {
    for (auto const& [name, tensor] : state.weights) collector.tensor(name, tensor);
    return;
  }
  for (auto const& name : state.config.at(names_key)) {
    auto const text = name.get<std::string>();
    auto const* const tensor = state.weights.find(text);
    collector.tensor(text, tensor == nullptr ? Tensor() : *tensor);
  }
}

class FileMedium final : public Medium {
 public:
  FileMedium(std::shared_ptr<node::Group> group, NFSWorkspace workspace, bool own, spi::Patience const& patience)
      : group_(std::move(group)), workspace_(std::move(workspace)), own_(own), patience_(patience) {}

  void publish(Contribution const& contribution, int, node::Post& post) override {
    StateDict weights;
    auto const config = wrap(contribution, weights);
    announced_ = workspace_.medium()->write_announced(config, weights);
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
    auto state = workspace_.medium()->read_announced(announced, {.limit = std::max<std::chrono::nanoseconds>(least_patience, patience_.timeout / 4),
                                                                 .between = [this] {
                                                                   group_->progress();
                                                                   group_->throw_if_failed("receive");
                                                                 }});
    if (!state.config.is_object()) {
      throw FormatError({.operation = "receive", .message = "a state file that no gather wrote", .culprits = {member}, .section = "config"});
    }
    unwrap(std::move(state), collector);
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
    } catch (Error const&) {  // the error that ended the range is already on its way; `crossrank clean` removes what stays
    }
  }

 private:
  static constexpr std::chrono::nanoseconds least_patience = std::chrono::seconds(75);  // NFS caches a directory for up to 60 s

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
