#include <crossrank/message_queue.hpp>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "collectives/message_queue/queue_dict.hpp"
#include "collectives/message_queue/queue_handle.hpp"
#include "collectives/message_queue/queue_state.hpp"
#include "collectives/message_queue/queue_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {
namespace {

/// Waits for space and writes a message.
template <class State>
void put_message(State& endpoint, node::MessageParts parts, QueueWait const& wait) {
  char const* const operation = "enqueue";
  typename State::EndpointLock const endpoint_lock(endpoint, operation);
  endpoint.require_writer(operation);
  endpoint.await_space(operation, parts, wait);
  endpoint.put(parts);
}

/// Takes the message at the end of the scope, even after an exception: an unreadable message is not delivered again.
template <class State>
class ConsumeGuard {
 public:
  explicit ConsumeGuard(State& state) noexcept : state_(state) {}
  ~ConsumeGuard() { state_.take(); }
  ConsumeGuard(ConsumeGuard const&) = delete;
  ConsumeGuard& operator=(ConsumeGuard const&) = delete;

 private:
  State& state_;
};

/// Waits for the next message, passes it to `read` and takes it. Returns nothing when the time has passed.
template <class State, class Read>
auto take_message(State& endpoint, char const* operation, QueueWait const& wait, Read read)
    -> std::optional<decltype(read(endpoint))> {
  typename State::EndpointLock const endpoint_lock(endpoint, operation);
  endpoint.require_reader(operation);
  if (!endpoint.await_message(operation, wait)) return std::nullopt;
  ConsumeGuard const guard(endpoint);
  return read(endpoint);
}

/// Calls `decode` with the next message. Its `FormatError` gets the operation, the queue, the rank and a hint.
template <class State, class Decode>
auto take_decoded(State& endpoint, char const* operation, QueueWait const& wait, Decode decode) {
  return take_message(endpoint, operation, wait, [&](State const& at) {
    try {
      return decode(at);
    } catch (FormatError const& e) {
      if (!e.info().resource.empty()) throw;  // not of the message, but of the memory that holds it
      auto info = at.error(e.info());
      info.operation = operation;
      if (info.hint.empty()) info.hint = "read it with the call and the type that match the write";
      throw FormatError(std::move(info));
    }
  });
}

}  // namespace

MessageQueue::State& MessageQueue::state(char const* operation) const {
  if (state_) return *state_;
  throw UsageError(
      {.operation = operation, .message = "this handle refers to no queue; create one with create() or attach()"});
}

bool MessageQueue::is_writer() const { return state("is_writer").writing; }

std::string const& MessageQueue::name() const { return state("name").name; }

std::uint64_t MessageQueue::messages() const {
  auto& endpoint = state("messages");
  State::EndpointLock const endpoint_lock(endpoint, "messages");
  if (endpoint.writing) return endpoint.written;
  return endpoint.in ? endpoint.in->messages() : endpoint.remote_reader->messages();
}

std::vector<std::byte> MessageQueue::handle() const {
  auto& endpoint = state("handle");
  if (endpoint.writing && endpoint.out) return queue::write_handle(endpoint.out->name());
  throw UsageError(endpoint.error(
      "handle", endpoint.writing ? "the queue has no readers on this node" : "only the writer can return a handle"));
}

void MessageQueue::enqueue_bytes(std::span<std::byte const> message, QueueWait const& wait) const {
  node::MessagePart const whole(message);
  put_message(state("enqueue"), std::span(&whole, 1), wait);
}

void MessageQueue::enqueue_parts(std::span<std::span<std::byte const> const> parts, QueueWait const& wait) const {
  std::vector<node::MessagePart> const all(parts.begin(), parts.end());
  put_message(state("enqueue"), all, wait);
}

void MessageQueue::enqueue_tensor(Tensor const& tensor, QueueWait const& wait) const {
  auto& endpoint = state("enqueue_tensor");
  State::EndpointLock const endpoint_lock(endpoint, "enqueue_tensor");
  endpoint.require_writer("enqueue_tensor");
  if (!tensor.defined()) throw_undefined(endpoint.error("enqueue_tensor", {}));
  auto const head = queue::head_of(tensor);
  std::array<node::MessagePart, 2> const parts{std::as_bytes(std::span(&head, 1)), queue::part_of(tensor)};
  endpoint.await_space("enqueue_tensor", parts, wait);
  endpoint.put(parts);
}

void MessageQueue::enqueue_dict(TensorDict const& dict, QueueWait const& wait) const {
  auto& endpoint = state("enqueue_dict");
  State::EndpointLock const endpoint_lock(endpoint, "enqueue_dict");
  endpoint.require_writer("enqueue_dict");
  queue::DictMessage const message(dict);
  endpoint.await_space("enqueue_dict", message.parts(), wait);
  endpoint.put(message.parts());
}

bool MessageQueue::read_bytes(std::function<void(std::span<std::byte const>)> const& body,
                              QueueWait const& wait) const {
  auto const read = [&](State const& endpoint) {
    body(endpoint.peek());
    return true;
  };
  return take_message(state("dequeue"), "dequeue", wait, read).has_value();
}

bool MessageQueue::read_object(std::function<void(std::span<std::byte const>)> const& decode,
                               QueueWait const& wait) const {
  auto const read = [&](State const& endpoint) {
    decode(endpoint.peek());
    return true;
  };
  return take_decoded(state("dequeue"), "dequeue", wait, read).has_value();
}

std::optional<std::vector<std::byte>> MessageQueue::dequeue_bytes(QueueWait const& wait) const {
  std::optional<std::vector<std::byte>> message;
  read_bytes([&](std::span<std::byte const> bytes) { message.emplace(bytes.begin(), bytes.end()); }, wait);
  return message;
}

std::optional<Tensor> MessageQueue::dequeue_tensor(QueueWait const& wait) const {
  return take_decoded(state("dequeue_tensor"), "dequeue_tensor", wait,
                      [](State const& endpoint) { return queue::read_tensor(endpoint.peek(), endpoint.keep()); });
}

std::optional<TensorDict> MessageQueue::dequeue_dict(QueueWait const& wait) const {
  return take_decoded(state("dequeue_dict"), "dequeue_dict", wait,
                      [](State const& endpoint) { return queue::read_dict(endpoint.peek(), endpoint.keep()); });
}

bool MessageQueue::wait_for(std::chrono::nanoseconds timeout, std::stop_token stop) const {
  auto& endpoint = state("wait_for");
  State::EndpointLock const endpoint_lock(endpoint, "wait_for");
  return endpoint.wait_for(timeout, std::move(stop));
}

void MessageQueue::cancel() const noexcept {
  if (!state_) return;
  state_->cancelled.store(true, std::memory_order_release);
  if (state_->out) state_->out->cancel();
  if (state_->in) state_->in->cancel();
}

void MessageQueue::close() const {
  auto& endpoint = state("close");
  State::EndpointLock const endpoint_lock(endpoint, "close");
  endpoint.close();
}

}  // namespace crossrank
