#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/spi/error_in.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/node/group/group.hpp"
#include "lib/platform/guarded_call.hpp"
#include "lib/tensor/transfer/stream_handover.hpp"
#include "workspace/nfs/retrying_read.hpp"
#include "workspace/gather/exchange_backend.hpp"
#include "workspace/nfs/file_state_store.hpp"
#include "workspace/nfs/read_only_view.hpp"

namespace crossrank::workspace {
namespace {

using platform::GuardedCall;

void deliver(RankState state, Collector& collector) {
  collector.expect(state.weights.size());
  collector.config(std::move(state.config));
  for (auto const& [name, tensor] : state.weights) collector.tensor(name, tensor);
}

/// Returns how long a call may make no step. The other ranks wait for this one for the whole timeout, and are to learn
/// of a file system that does not answer before that.
std::chrono::nanoseconds guard_limit(spi::TimeoutPolicy const& policy) { return policy.timeout / 4 * 3; }

class FileExchange final : public ExchangeBackend {
 public:
  FileExchange(std::shared_ptr<spi::Transport> transport, NFSWorkspace workspace, GatherFiles files,
               spi::TimeoutPolicy const& timeout_policy)
      : transport_(std::move(transport)),
        workspace_(std::move(workspace)),
        files_(files),
        timeout_policy_(timeout_policy) {}

 private:
  /// Ends the range on this rank. Removes the range's file, and no other state of this rank, unless it is to be kept.
  static void end(NFSWorkspace const& workspace, GatherFiles files, PublishedFile const& published, bool failed) {
    if (files == GatherFiles::remove) return workspace.store()->withdraw(published);
    failed ? workspace.store()->abandon(published) : workspace.store()->retire(published);
  }

  /// Runs `body` in a thread of its own, and abandons it when the file system does not answer in time, or when
  /// `between` throws.
  template <class Body>
  auto guarded(Body body, std::function<void()> between = {}) {
    auto const limit = guard_limit(timeout_policy_);
    auto result = platform::guarded_call(std::move(body), {.limit = limit,
                                                           .between = std::move(between),
                                                           .abandoned =
                                                               [this] {
                                                                 stuck_ = true;
                                                                 workspace_.store()->note_hung();
                                                               },
                                                           .what = "NFSWorkspace"});
    if (!result) fail_no_response("NFSWorkspace", workspace_.path(), limit);
    return *std::move(result);
  }

 public:
  void publish(Contribution const& contribution, int, node::Post& post) override {
    StateDict weights;
    weights.reserve(contribution.tensors.size());
    for (auto const& [name, tensor] : contribution.tensors) weights.insert_or_assign(std::string(name), *tensor);
    StreamHandover const handover(weights, "publish");
    using AtEnd = FileStateStore::AtEnd;
    auto const at_end = files_ == GatherFiles::remove ? AtEnd::withdrawn : AtEnd::retired;
    published_ = guarded(
        [workspace = workspace_, files = files_, at_end, transport = transport_, weights = std::move(weights), handover,
         config = contribution.config == nullptr ? Json() : *contribution.config](GuardedCall& call) {
          StreamHandover::Scope const streams(handover);
          auto const published = workspace.store()->write_for_range(config, weights, at_end, [&] {
            // The caller has its error, and may have freed what the tensors borrow.
            if (call.was_abandoned()) throw CancelledError({.operation = "publish", .message = "abandoned"});
            call.step();
            transport->keep_alive();
          });
          if (call.was_abandoned()) end(workspace, files, published, true);
          return published;
        },
        [this] { throw_if_failed(); });
    static_assert(sizeof(PublishedFile) <= node::Arrival::inline_bytes);
    post.inlined = std::as_bytes(std::span(&*published_, 1));
  }

  void receive(int member, ContributionDescriptor const& part, Collector& collector) override {
    auto const bytes = part.inlined_part();
    PublishedFile published;
    if (bytes.size() != sizeof published) {
      throw FormatError({.operation = "receive",
                         .message = "the record of a published file has the wrong size",
                         .expected = std::to_string(sizeof published),
                         .got = std::to_string(bytes.size()),
                         .failed_ranks = {member},
                         .section = "arrival"});
    }
    std::memcpy(&published, bytes.data(), sizeof published);
    ReadRetryPolicy const retry_policy{
        .limit = std::min<std::chrono::nanoseconds>(
            timeout_policy_.timeout, std::max<std::chrono::nanoseconds>(usual, timeout_policy_.timeout / 4)),
        .between =
            [this] {
              transport_->keep_alive();
              throw_if_failed();
            },
        .attempt_timeout = guard_limit(timeout_policy_),
        .on_progress = [transport = transport_] { transport->keep_alive(); }};
    deliver(read_only_view(workspace_.store()->read_published(published, retry_policy), published.file.rank),
            collector);
  }

  void decline(int, ContributionDescriptor const&) noexcept override {}

  void finish() override {
    if (!needs_cleanup()) return;
    static_cast<void>(guarded([workspace = workspace_, files = files_, published = *published_](GuardedCall&) {
      end(workspace, files, published, false);
      return true;
    }));
  }

  void discard() noexcept override {
    if (!needs_cleanup()) return;
    try {
      static_cast<void>(guarded([workspace = workspace_, files = files_, published = *published_](GuardedCall&) {
        end(workspace, files, published, true);
        return true;
      }));
    } catch (Error const&) {  // the error that ended the range is already being thrown; `crossrank clean` removes the
                              // remaining files
    }
  }

 private:
  static constexpr std::chrono::seconds usual{75};  // NFS caches a directory for up to 60 s

  /// Throws if the group has failed: the owner of the file may have removed it.
  void throw_if_failed() const {
    if (auto const group = node::group_of(transport_->node_memory())) group->throw_if_failed("receive");
    auto failed = transport_->failed_ranks();
    if (failed.empty()) return;
    throw PeerLostError(error_in(*transport_, {.operation = "receive",
                                               .message = name_ranks(failed) + " ended before the file was read",
                                               .failed_ranks = std::move(failed),
                                               .group_usable = false}));
  }

  [[nodiscard]] bool needs_cleanup() const noexcept { return !stuck_ && published_.has_value(); }

  std::shared_ptr<spi::Transport> transport_;
  NFSWorkspace workspace_;
  GatherFiles files_;
  spi::TimeoutPolicy timeout_policy_;
  std::optional<PublishedFile> published_{};
  bool stuck_ = false;  ///< a call was abandoned, and another one would block too
};

}  // namespace

std::unique_ptr<ExchangeBackend> make_file_exchange(std::shared_ptr<spi::Transport> transport, int global_rank,
                                                    GatherOptions const& options,
                                                    spi::TimeoutPolicy const& timeout_policy) {
  bool const own = !options.workspace_path.empty();
  // A file that the gather removes is no state of the rank, so those of earlier jobs stay.
  auto const existing = options.files == GatherFiles::remove ? Existing::remove_killed : Existing::remove;
  auto open = [path = options.workspace_path, rank = global_rank, existing](GuardedCall&) {
    return NFSWorkspace(path, {.rank = rank, .existing = existing});
  };
  auto const limit = guard_limit(timeout_policy);
  auto workspace = own ? platform::guarded_call(open, {.limit = limit, .what = "NFSWorkspace"})
                       : std::optional(*options.workspace->nfs());
  if (!workspace) fail_no_response("NFSWorkspace", options.workspace_path, limit);
  return std::make_unique<FileExchange>(std::move(transport), *std::move(workspace), options.files, timeout_policy);
}

}  // namespace crossrank::workspace
