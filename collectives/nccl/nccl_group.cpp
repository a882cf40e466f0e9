#include "collectives/nccl/nccl_group.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/recorded_call.hpp"
#include "collectives/nccl/graph_replay.hpp"
#include "collectives/nccl/nccl_calls.hpp"
#include "collectives/nccl/rank_records.hpp"
#include "collectives/nccl/registered_memory.hpp"
#include "lib/device/device_failures.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::nccl {
namespace {

/// How long a refused call waits for the watchdog, which may know a dead rank as the cause, or asks for it for a
/// second.
constexpr auto verdict_limit = std::chrono::seconds(3);

constexpr char const* buffer_operation = "make a communication buffer";
// Keeps this exchange apart from the comparison of a call.
constexpr std::uint64_t buffer_mark = 0x6e63'636c'6266;

/// The buffer that a rank is about to register, as it tells the others.
struct BufferRecord {
  std::uint64_t bytes = 0;
  std::uint64_t has_failed = 0;  ///< 1: the rank has no memory for it
  RecordText failure{};
};

/// Throws the same error on all ranks unless each has memory for a buffer of the same size.
void require_agreement(std::vector<BufferRecord> const& records, spi::Transport const& transport) {
  auto const rank_of = [&](auto const& found) { return static_cast<int>(found - records.begin()); };
  ErrorInfo info{.operation = buffer_operation,
                 .group = transport.name(),
                 .rank = transport.rank(),
                 .world_size = transport.world_size()};
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
  auto const failed = std::find_if(records.begin(), records.end(), [](auto const& one) { return one.has_failed != 0; });
  if (failed == records.end()) return;
  info.message =
      "rank " + std::to_string(rank_of(failed)) + " has no memory for a buffer of " + std::to_string(bytes) + " bytes";
  info.system = string_of(failed->failure);
  info.failed_ranks = {rank_of(failed)};
  throw UnavailableError(std::move(info));
}

}  // namespace

NcclGroup::NcclGroup(std::string name, std::unique_ptr<Communicator> communicator,
                     std::unique_ptr<NcclWatchdog> watchdog, node::DeviceRecorder recorder)
    : name_(std::move(name)),
      communicator_(std::move(communicator)),
      watchdog_(std::move(watchdog)),
      recorder_(std::move(recorder)) {}

NcclGroup::~NcclGroup() { communicator_->close(last_work_); }

void NcclGroup::throw_failure() const {
  auto const failure = watchdog_->failure();
  if (!failure) return;
  forget_device_failure(place().device, failure);
  std::rethrow_exception(failure);
}

void NcclGroup::require_open(char const* operation) const {
  if (!closed_.load(std::memory_order_relaxed)) return;
  throw UsageError({.operation = operation,
                    .message = "a group whose collectives are in the graph has been closed",
                    .hint = "keep the group as long as its graphs are replayed",
                    .rank = place().rank,
                    .world_size = place().ranks});
}

std::shared_ptr<spi::Storage> NcclGroup::make_buffer(std::size_t bytes, spi::Transport& transport,
                                                     spi::TimeoutPolicy const& timeout_policy) {
  BufferRecord mine{.bytes = bytes};
  std::shared_ptr<spi::Storage> memory;
  try {
    memory = allocate_with_nccl(place().device, bytes);
  } catch (Error const& e) {
    mine.has_failed = 1;
    mine.failure = record_text(e.what());
  }
  // NCCL compares nothing: it would wait for ever for a rank that registers no memory.
  require_agreement(gather_records(transport, buffer_mark, mine, timeout_policy), transport);
  throw_failure();
  if (!memory) return nullptr;
  try {
    communicator_->register_memory(memory, [this] { throw_failure(); });
  } catch (BackendError const& e) {
    end_after(e);
  } catch (TimeoutError const& e) {
    end_after_timeout(e);
  }
  return memory;
}

void NcclGroup::abort(std::string_view why) noexcept {
  try {
    watchdog_->request_failure(std::string(why));
  } catch (std::bad_alloc const&) {  // the other ranks wait for their deadline
  }
}

NcclGroup::Begun NcclGroup::begin_work(node::DeviceFlightOperation operation, Stream const& stream) {
  throw_failure();
  operation.sequence = watchdog_->begin_call();
  operation.communicator = reinterpret_cast<std::uintptr_t>(communicator_->native());
  return {.started = stream.record(), .note = recorder_.note(operation)};
}

Event NcclGroup::end_work(Begun begun, Stream const& stream, std::string name) {
  auto ended = stream.record();
  last_work_ = ended;
  begun.note.advance(node::DeviceStage::enqueued);
  watchdog_->note_enqueued(
      {.started = std::move(begun.started), .ended = ended, .name = std::move(name), .note = std::move(begun.note)});
  return ended;
}

Event NcclGroup::enqueue(algorithms::Call const& call, Stream const& stream) {
  if (auto* const into = cuda::Capture::of(stream)) {
    throw_failure();
    capture(*into, call, stream);
    return stream.record();
  }
  auto begun = begin_work(algorithms::recorded_call(call, node::DevicePath::nccl, stream, 0), stream);
  auto const note = begun.note;
  try {
    enqueue_call(*communicator_, call, stream, [this] { throw_failure(); });
    return end_work(std::move(begun), stream, call.name());
  } catch (BackendError const& e) {
    note.advance(node::DeviceStage::aborted);
    end_after(e);
  } catch (TimeoutError const& e) {
    note.advance(node::DeviceStage::aborted);
    end_after_timeout(e);
  } catch (...) {
    note.advance(node::DeviceStage::aborted);
    throw;
  }
}

void NcclGroup::capture(cuda::Capture& into, algorithms::Call const& call, Stream const& stream) {
  auto part = graph_replay_.lock();
  if (!part || capture_number_ != into.number()) {
    part = std::make_shared<GraphReplay>(shared_from_this());
    into.add(part);
    graph_replay_ = part;
    capture_number_ = into.number();
  }
  enqueue_call(*communicator_, call, stream, [this] { throw_failure(); });
  part->add(algorithms::recorded_call(call, node::DevicePath::graph, stream, 0), call.name());
}

void NcclGroup::await_verdict() const {
  auto& system = platform::system();
  for (auto const until = system.now() + verdict_limit; !has_failed() && system.now() < until;)
    system.sleep(std::chrono::milliseconds(1));
}

/// The error names no rank yet: the watchdog asks which ones are late.
void NcclGroup::end_after_timeout(TimeoutError const& error) {
  throw_failure();
  watchdog_->request_timeout(error.info().operation + ": " + error.info().message);
  await_verdict();
  throw_failure();
  throw TimeoutError(error);
}

/// The other ranks cannot end the call without this one.
void NcclGroup::end_after(Error const& error) {
  watchdog_->request_failure(error.what());
  await_verdict();
  try {
    throw_failure();
  } catch (Error const& failure) {
    auto const& blamed = failure.info().failed_ranks;
    if (std::find(blamed.begin(), blamed.end(), place().rank) == blamed.end()) throw;
  }
  throw_error(error.code(), error.info());
}

}  // namespace crossrank::nccl
