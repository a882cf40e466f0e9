#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/platform/guarded_call.hpp"
#include "workspace/announced_read.hpp"
#include "workspace/medium.hpp"
#include "workspace/nfs_medium.hpp"
#include "workspace/received.hpp"

namespace crossrank::workspace {
namespace {

using platform::GuardedCall;

void hand_over(RankState state, Collector& collector) {
  collector.expect(state.weights.size());
  collector.config(std::move(state.config));
  for (auto const& [name, tensor] : state.weights) collector.tensor(name, tensor);
}

class FileMedium final : public Medium {
 public:
  /// How the files of a range end.
  struct Ending {
    bool own = false;  ///< the workspace was made for this range
    GatherFiles files = GatherFiles::remove;
  };

 private:
  /// The range is over, on all ranks or by a failure: what this rank has written goes, unless it is to be kept.
  static void end(NFSWorkspace workspace, Ending ending, std::optional<Announcement> const& announced, bool failed) {
    if (ending.files == GatherFiles::remove && ending.own) return workspace.clean();
    if (!announced) return;
    if (ending.files == GatherFiles::remove) return workspace.medium()->withdraw(*announced);
    failed ? workspace.medium()->abandon(*announced) : workspace.medium()->retire(*announced);
  }

  /// `body` in a thread of its own, away from which this rank goes when the file system does not answer.
  template <class Body>
  auto guarded(Body body) {
    auto result = platform::guarded_call(std::move(body), {.limit = patience_.timeout, .what = "NFSWorkspace"});
    stuck_ = !result;
    if (stuck_) fail_unanswered("NFSWorkspace", workspace_.path(), patience_.timeout);
    return *std::move(result);
  }

 public:
  FileMedium(std::shared_ptr<spi::Transport> transport, NFSWorkspace workspace, Ending ending,
             spi::Patience const& patience)
      : transport_(std::move(transport)), workspace_(std::move(workspace)), ending_(ending), patience_(patience) {}

  void publish(Contribution const& contribution, int, node::Post& post) override {
    StateDict weights;
    weights.reserve(contribution.tensors.size());
    for (auto const& [name, tensor] : contribution.tensors) weights.insert_or_assign(std::string(name), *tensor);
    announced_ =
        guarded([workspace = workspace_, ending = ending_, transport = transport_, weights = std::move(weights),
                 config = contribution.config == nullptr ? Json() : *contribution.config](GuardedCall& call) {
          auto const announced = workspace.medium()->write_announced(config, weights, [&] {
            call.step();
            transport->keep_alive();
          });
          if (call.was_left()) end(workspace, ending, announced, true);
          return announced;
        });
    static_assert(sizeof(Announcement) <= node::Arrival::inline_bytes);
    post.inlined = std::as_bytes(std::span(&*announced_, 1));
  }

  void receive(int member, Descriptor const& part, Collector& collector) override {
    auto const bytes = part.inlined_part();
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
    ReadPatience const patience{
        .limit = std::min<std::chrono::nanoseconds>(patience_.timeout,
                                                    std::max<std::chrono::nanoseconds>(usual, patience_.timeout / 4)),
        .between =
            [this] {
              transport_->keep_alive();
              if (auto const group = transport_->node_group()) group->throw_if_failed("receive");
            },
        .standstill = patience_.timeout,
        .on_progress = [transport = transport_] { transport->keep_alive(); }};
    hand_over(received(workspace_.medium()->read_announced(announced, patience), announced.file.rank), collector);
  }

  void decline(int, Descriptor const&) noexcept override {}

  void finish() override {
    if (!is_to_end()) return;
    static_cast<void>(guarded([workspace = workspace_, ending = ending_, announced = announced_](GuardedCall&) {
      end(workspace, ending, announced, false);
      return true;
    }));
  }

  void give_up() noexcept override {
    if (!is_to_end()) return;
    try {
      static_cast<void>(guarded([workspace = workspace_, ending = ending_, announced = announced_](GuardedCall&) {
        end(workspace, ending, announced, true);
        return true;
      }));
    } catch (
        Error const&) {  // the error that ended the range is already on its way; `crossrank clean` removes what stays
    }
  }

 private:
  static constexpr std::chrono::seconds usual{75};  // NFS caches a directory for up to 60 s

  [[nodiscard]] bool is_to_end() const noexcept { return !stuck_ && (ending_.own || announced_); }

  std::shared_ptr<spi::Transport> transport_;
  NFSWorkspace workspace_;
  Ending ending_;
  spi::Patience patience_;
  std::optional<Announcement> announced_{};
  bool stuck_ = false;  ///< a call was left behind: another one would stand still too
};

}  // namespace

std::unique_ptr<Medium> nfs_medium(std::shared_ptr<spi::Transport> transport, int global_rank,
                                   GatherOptions const& options, spi::Patience const& patience) {
  bool const own = !options.workspace_path.empty();
  auto open = [path = options.workspace_path, rank = global_rank](GuardedCall&) {
    return NFSWorkspace(path, {.rank = rank});
  };
  auto workspace = own ? platform::guarded_call(open, {.limit = patience.timeout, .what = "NFSWorkspace"})
                       : std::optional(*options.workspace->nfs());
  if (!workspace) fail_unanswered("NFSWorkspace", options.workspace_path, patience.timeout);
  return std::make_unique<FileMedium>(std::move(transport), *std::move(workspace),
                                      FileMedium::Ending{.own = own, .files = options.files}, patience);
}

}  // namespace crossrank::workspace
