#include "collectives/device_transport/watched_transport.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/spi/device_provider.hpp>

#include "collectives/algorithms/recorded_call.hpp"
#include "collectives/device_transport/graph_replay.hpp"
#include "collectives/device_transport/rank_order_reduction.hpp"
#include "collectives/device_transport/rank_records.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/peer_errors.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/device/device_failures.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::device {
namespace {

/// How long a refused call waits for the watchdog, which may know a dead rank as the cause, or asks for it for a
/// second.
constexpr auto verdict_limit = std::chrono::seconds(3);

/// Returns a call as transports see it.
spi::DeviceCollective collective_of(algorithms::Call const& call) noexcept {
  return {.op_kind = call.signature.op_kind,
          .name = call.name(),
          .in = call.in.bytes,
          .out = call.out.bytes,
          .counts = call.counts,
          .receive_counts = call.receive_counts,
          .has_equal_parts = call.is_even,
          .root = call.root,
          .reduction = call.reduction};
}

constexpr char const* buffer_operation = "make a communication buffer";
// Keeps this exchange apart from the comparison of a call.
constexpr std::uint64_t buffer_mark = 0x6e63'636c'6266;

/// The buffer that a rank is about to register, as sent to the other ranks.
struct BufferRecord {
  std::uint64_t bytes = 0;
  RecordError failure{};  ///< why the rank has no memory for it
};

/// Throws the same error on all ranks unless each has memory for a buffer of the same size.
void require_agreement(std::vector<BufferRecord> const& records, spi::Transport const& transport) {
  auto const rank_of = [&](auto const& found) { return static_cast<int>(found - records.begin()); };
  auto info = error_in(transport, {.operation = buffer_operation});
  auto const bytes = records.front().bytes;
  auto const other = std::find_if(records.begin(), records.end(), [&](auto const& one) { return one.bytes != bytes; });
  if (other != records.end()) {
    info.message = "the ranks ask for buffers of different sizes";
    info.expected = std::to_string(bytes) + " bytes as on rank 0";
    info.got = std::to_string(other->bytes) + " bytes on rank " + std::to_string(rank_of(other));
    info.hint = "pass the same shapes and dtypes on all ranks";
    info.failed_ranks = {rank_of(other)};
    throw MismatchError(std::move(info));
  }
  auto const failed =
      std::find_if(records.begin(), records.end(), [](auto const& one) { return one.failure.bytes != 0; });
  if (failed == records.end()) return;
  info.message =
      "rank " + std::to_string(rank_of(failed)) + " has no memory for a buffer of " + std::to_string(bytes) + " bytes";
  auto const error = error_of(failed->failure);
  info.system = error.info.message;
  info.hint = error.info.hint;
  info.system_errno = error.info.system_errno;
  info.failed_ranks = {rank_of(failed)};
  throw UnavailableError(std::move(info));
}

}  // namespace

WatchedTransport::WatchedTransport(Group group, std::unique_ptr<spi::DeviceTransport> transport, CallChecks checks,
                                   std::unique_ptr<DeviceWatchdog> watchdog, node::DeviceRecorder recorder)
    : group_(std::move(group)),
      transport_(std::move(transport)),
      checks_(std::move(checks)),
      watchdog_(std::move(watchdog)),
      recorder_(std::move(recorder)) {
  if (checks_.table) watchdog_->watch(*checks_.table);
  if (checks_.gate) watchdog_->watch(*checks_.gate);
}

WatchedTransport::~WatchedTransport() {
  if (::getpid() != process_) return;  // a thread of the parent may hold the lock of the watchdog
  if (std::uncaught_exceptions() == 0) await_last_work();
  // The watchdog publishes its failure before it aborts the transport, and a close waits for work that does not end.
  if (watchdog_->failure()) transport_->abort();
  transport_->close(last_work_);
}

void WatchedTransport::close() noexcept {
  closed_.store(true, std::memory_order_relaxed);
  await_last_work();
  leave_group();
}

/// The transport waits only a few seconds before it throws its work away. So this waits for longer calls, as long as
/// the watchdog finds no reason to end them.
void WatchedTransport::await_last_work() const noexcept {
  try {
    platform::Deadline deadline(timeout());
    for (platform::Backoff backoff; !last_work_.query() && !has_failed() && !deadline.expired(); backoff.pause())
      deadline.tick();
  } catch (std::exception const&) {  // the device has failed
  }
}

WatchedTransport::Route WatchedTransport::route_of(algorithms::Call const& call, Stream const& stream) const {
  auto const op_kind = call.signature.op_kind;
  if (spi::is_message(op_kind)) return Route::host_memory;
  bool const any_order = call.order == ReduceOrder::any;
  auto const where = transport_->support_for(collective_of(call));
  if (any_order && where == spi::CollectiveSupport::full) return Route::transport;
  bool const in_rank_order =
      group_.have_kernels && spi::is_reduction(op_kind) && RankOrderReduction(call, place()).is_carried_by(*transport_);
  if (in_rank_order) return Route::rank_order;
  bool const in_graph = any_order && where == spi::CollectiveSupport::graphs_only && stream.is_capturing();
  return in_graph ? Route::transport : Route::host_memory;
}

std::shared_ptr<spi::Storage> WatchedTransport::make_scratch(algorithms::Call const& call, Stream const& stream) const {
  if (route_of(call, stream) != Route::rank_order) return nullptr;
  return spi::device_provider(stream.device().kind)
      .allocate(stream, {.bytes = RankOrderReduction(call, place()).scratch_bytes()});
}

void WatchedTransport::enqueue_work(algorithms::Call const& call, Stream const& stream, spi::Storage* scratch) {
  auto const poll_hook = [this] { throw_failure(); };
  if (scratch == nullptr) return transport_->enqueue(collective_of(call), stream, poll_hook);
  RankOrderReduction(call, place()).enqueue(*transport_, stream, scratch->data(), poll_hook);
}

void WatchedTransport::throw_failure() const {
  auto const failure = watchdog_->failure();
  if (!failure) return;
  forget_device_failure(place().device, failure);
  std::rethrow_exception(failure);
}

void WatchedTransport::require_open(char const* operation) const {
  if (!closed_.load(std::memory_order_relaxed)) return;
  throw UsageError({.operation = operation,
                    .message = "a group whose collectives are in the graph has been closed",
                    .hint = "keep the group as long as its graphs are replayed",
                    .rank = place().rank,
                    .world_size = place().ranks});
}

template <class Work>
auto WatchedTransport::run_or_end(Work const& work) {
  try {
    return work();
  } catch (BackendError const& e) {
    end_after(e);
  } catch (TimeoutError const& e) {
    end_after_timeout(e);
  }
}

std::shared_ptr<spi::Storage> WatchedTransport::make_buffer(std::size_t bytes, spi::Transport& transport,
                                                            spi::TimeoutPolicy const& timeout_policy) {
  BufferRecord mine{.bytes = bytes};
  std::shared_ptr<spi::Storage> memory;
  try {
    memory = transport_->allocate_buffer(bytes);
  } catch (Error const&) {
    mine.failure = record_error(std::current_exception());
  }
  // The transport compares nothing: it would wait forever for a rank that registers no memory.
  require_agreement(gather_records(transport, buffer_mark, mine, timeout_policy), transport);
  throw_failure();
  if (!memory) return nullptr;
  run_or_end([&] { transport_->register_buffer(memory, [this] { throw_failure(); }); });
  return memory;
}

void WatchedTransport::abort(std::string_view why) noexcept {
  try {
    watchdog_->request_failure(std::string(why));
  } catch (std::bad_alloc const&) {  // the other ranks wait for their deadline
  }
}

WatchedTransport::Begun WatchedTransport::begin_work(node::DeviceFlightOperation operation, Stream const& stream) {
  throw_failure();
  operation.sequence = watchdog_->begin_call();
  operation.communicator = reinterpret_cast<std::uintptr_t>(transport_->native());
  return {.started = stream.record(), .note = recorder_.note(operation)};
}

Event WatchedTransport::end_work(Begun begun, Stream const& stream, std::string name, std::optional<int> root) {
  auto ended = stream.record();
  last_work_ = ended;
  begun.note.advance(node::DeviceStage::enqueued);
  watchdog_->note_enqueued({.started = std::move(begun.started),
                            .ended = ended,
                            .name = std::move(name),
                            .root = root,
                            .note = std::move(begun.note)});
  return ended;
}

void WatchedTransport::compare(algorithms::Call const& call) {
  throw_failure();
  auto& table = *checks_.table;
  table.throw_if_failed(call.name());
  if (!table.ranks_behind().empty()) await_ranks_behind(call.name());
  auto const differs = table.add(call);
  if (!differs) return;
  watchdog_->request_error(ErrorCode::mismatch, differs->ranks, differs->text);
  await_verdict();
  throw_failure();
  throw_peer_error(ErrorCode::mismatch, dead_group(call.name(), differs->text, differs->ranks));
}

void WatchedTransport::await_ranks_behind(char const* operation) {
  platform::Deadline deadline(timeout());
  platform::Backoff backoff;
  auto const& table = *checks_.table;
  for (auto behind = table.ranks_behind(); !behind.empty(); behind = table.ranks_behind()) {
    backoff.pause();
    throw_failure();
    deadline.tick();
    if (!deadline.expired()) continue;
    auto const text = "this rank is many calls ahead of " + name_ranks(behind) + ", which did not follow";
    end_after_timeout(TimeoutError(dead_group(operation, text, behind)));
  }
}

void WatchedTransport::end_comparison(std::uint32_t number, std::exception_ptr const& error) noexcept {
  if (!error) return checks_.gate->release(number);
  try {
    std::rethrow_exception(error);
  } catch (Error const& e) {
    if (is_peer_error(e.code()) && !e.info().failed_ranks.empty())
      return watchdog_->request_error(e.code(), e.info().failed_ranks, e.info().message);
    abort(e.what());
  } catch (std::exception const& e) {
    abort(e.what());
  }
}

ErrorInfo WatchedTransport::dead_group(char const* operation, std::string message, std::vector<int> ranks) const {
  return {.operation = operation,
          .message = std::move(message),
          .rank = place().rank,
          .world_size = place().ranks,
          .failed_ranks = std::move(ranks),
          .group_usable = false};
}

Event WatchedTransport::enqueue(algorithms::Call const& call, Stream const& stream, spi::Storage* scratch) {
  if (auto* const into = cuda::Capture::of(stream)) {
    throw_failure();
    capture(*into, call, stream, scratch);
    return stream.record();
  }
  auto const path = group_.backend == "nccl" ? node::DevicePath::nccl : node::DevicePath::transport;
  auto const operation = algorithms::recorded_call(call, path, stream, 0);
  auto begun = begin_work(operation, stream);
  auto const note = begun.note;
  try {
    return run_or_end([&] {
      enqueue_work(call, stream, scratch);
      return end_work(std::move(begun), stream, call.name(), operation.root);
    });
  } catch (...) {
    note.advance(node::DeviceStage::aborted);
    throw;
  }
}

void WatchedTransport::capture(cuda::Capture& into, algorithms::Call const& call, Stream const& stream,
                               spi::Storage* scratch) {
  auto part = graph_replay_.lock();
  if (!part || capture_number_ != into.number()) {
    part = std::make_shared<GraphReplay>(shared_from_this());
    into.add(part);
    graph_replay_ = part;
    capture_number_ = into.number();
  }
  run_or_end([&] { enqueue_work(call, stream, scratch); });
  part->add(algorithms::recorded_call(call, node::DevicePath::graph, stream, 0), call.name());
}

void WatchedTransport::await_verdict() const {
  auto& system = platform::system();
  for (auto const until = system.now() + verdict_limit; !has_failed() && system.now() < until;)
    system.sleep(std::chrono::milliseconds(1));
}

/// The error names no rank yet: the watchdog asks which ones are late.
void WatchedTransport::end_after_timeout(TimeoutError const& error) {
  throw_failure();
  watchdog_->request_timeout(error.info().operation + ": " + error.info().message);
  await_verdict();
  throw_failure();
  throw TimeoutError(error);
}

/// The other ranks cannot end the call without this one.
void WatchedTransport::end_after(Error const& error) {
  watchdog_->request_failure(error.what());
  await_verdict();
  try {
    throw_failure();
  } catch (MismatchError const&) {  // the abort because of it is the cause
    throw;
  } catch (Error const& failure) {
    auto const& blamed = failure.info().failed_ranks;
    if (std::find(blamed.begin(), blamed.end(), place().rank) == blamed.end()) throw;
  }
  throw_error(error.code(), error.info());
}

}  // namespace crossrank::device
