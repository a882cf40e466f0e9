#include <crossrank/checkpoint/memory_export.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/core/forked_child.hpp"
#include "lib/core/round_up.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/start_thread.hpp"
#include "lib/tensor/transfer/staged_read.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* background_operation = "iconsolidate";
constexpr std::size_t alignment = 64;

/// The thread of the export calls the group while the caller uses other groups.
void require_threads(Collective const& world) {
  if (world.transport()->may_use_threads()) return;
  throw UnavailableError({.operation = background_operation,
                          .message = "this backend serves one thread only, and the export needs a second one",
                          .resource = std::string(world.transport()->backend()),
                          .hint = "initialize MPI with MPI_THREAD_MULTIPLE, or call `consolidate`"});
}

/// Copies all tensors into one block of memory.
StateDict copy_into_arena(StateDict const& weights, std::uint64_t limit) {
  std::size_t bytes = 0;
  for (auto const& [name, tensor] : weights) bytes += round_up(tensor.nbytes(), alignment);
  if (bytes > limit) {
    throw UnavailableError({.operation = background_operation,
                            .message = "the copy of this rank's weights would exceed the limit",
                            .expected = "at most " + std::to_string(limit) + " bytes",
                            .got = std::to_string(bytes),
                            .hint = "raise `max_copy_bytes`, or use `consolidate`, which needs no copy"});
  }
  StateDict copies;
  auto arena = Tensor::empty({static_cast<std::int64_t>(bytes)}, Dtype::u8);
  auto const memory = arena.mutable_bytes();
  std::size_t at = 0;
  for (auto const& [name, tensor] : weights) {
    if (!tensor.defined()) {
      copies.insert_or_assign(name, tensor);  // refused with the others
      continue;
    }
    read_to_host(memory.data() + at, tensor);
    copies.insert_or_assign(
        name, spi::tensor_from_storage(arena.storage(), arena.byte_offset() + at, tensor.shape(), tensor.dtype()));
    at += round_up(tensor.nbytes(), alignment);
    CROSSRANK_CRASH_POINT("export.background.tensor_copied");
  }
  return copies;
}

}  // namespace

/// The thread of an export and its result.
struct ExportRequest::State {
  std::stop_source stop{};
  std::optional<std::stop_callback<std::function<void()>>> caller_stops{};
  Summary summary{};
  std::exception_ptr error{};
  std::atomic<bool> done{false};  ///< set with release after the result; partner: the loads in `done`
  std::promise<bool> go{};        ///< whether the thread exports; set when it is known that all ranks have a thread
  bool holds_thread = true;
  pid_t const process = ::getpid();
  std::thread thread{};

  ~State() {
    if (is_forked()) {
      platform::forget_thread_of_parent(thread);
      return;
    }
    stop.request_stop();
    release(false);
    join();
  }
  State() = default;
  State(State const&) = delete;
  State& operator=(State const&) = delete;

  [[nodiscard]] bool is_forked() const noexcept { return process != ::getpid(); }
  void release(bool exports) {
    if (std::exchange(holds_thread, false)) go.set_value(exports);
  }
  void join() {
    if (thread.joinable()) thread.join();
  }
};

ExportRequest::ExportRequest() noexcept = default;
ExportRequest::ExportRequest(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ExportRequest::~ExportRequest() = default;
ExportRequest::ExportRequest(ExportRequest&& other) noexcept = default;
ExportRequest& ExportRequest::operator=(ExportRequest&& other) noexcept = default;

bool ExportRequest::done() const { return !state_ || state_->done.load(std::memory_order_acquire); }

Summary ExportRequest::wait() {
  if (!state_) return {};
  if (state_->is_forked())
    refuse_forked_child(background_operation, state_->process, "wait in the process that started the export");
  // A join alone would call no wait hook.
  platform::Backoff backoff({.longest_sleep = std::chrono::milliseconds(20)});
  while (!done()) backoff.pause(platform::ProgressHook::make_progress(backoff.next()));
  state_->join();
  if (state_->error) std::rethrow_exception(state_->error);
  return state_->summary;
}

ExportRequest iconsolidate(Collective const& world, StateDict const& weights, Placements const& placements,
                           std::filesystem::path const& out, BackgroundOptions const& options) {
  require_equal_options(world, background_operation, {});
  StateDict copies;
  std::uint64_t limit = options.max_copy_bytes;
  auto write = options.write;
  auto absolute_out = out;
  // Each rank of a host reads the free memory before any of them copies.
  agree(world, background_operation, [&] {
    require_threads(world);
    // The caller may change the working directory meanwhile.
    for (auto* const path : {&absolute_out, &write.model.directory, &write.model.rules}) {
      if (!path->empty()) *path = std::filesystem::absolute(*path);
    }
    auto const ranks = static_cast<std::uint64_t>(world.local_world_size());
    if (limit == 0) limit = platform::free_memory() / 2 / ranks;
  });
  agree(world, background_operation, [&] { copies = copy_into_arena(weights, limit); });
  CROSSRANK_CRASH_POINT("export.background.copied");
  auto all = all_ranks(world.world_size());
  auto group = world.split({all}, "export");
  CROSSRANK_CRASH_POINT("export.background.group_made");
  auto state = std::make_unique<ExportRequest::State>();
  write.stop = state->stop.get_token();
  state->caller_stops.emplace(options.write.stop, [stop = state->stop]() mutable { stop.request_stop(); });
  auto body = [self = state.get(), go = state->go.get_future(), group = std::move(group), copies = std::move(copies),
               placements, out = std::move(absolute_out), write = std::move(write)]() mutable {
    if (!go.get()) return;
    try {
      self->summary = consolidate(group, copies, placements, out, write);
    } catch (...) {
      self->error = std::current_exception();
    }
    CROSSRANK_CRASH_POINT("export.background.ended");
    copies.clear();
    group = {};
    self->done.store(true, std::memory_order_release);
  };
  agree(world, background_operation,
        [&] { state->thread = platform::start_thread(background_operation, std::move(body)); });
  state->release(true);
  return ExportRequest(std::move(state));
}

}  // namespace crossrank::checkpoint
