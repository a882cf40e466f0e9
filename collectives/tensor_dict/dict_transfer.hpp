#pragma once
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor_dict.hpp>

#include "collectives/objects/block_header.hpp"
#include "collectives/tensor_dict/dict_receive_queue.hpp"
#include "collectives/tensor_dict/dict_codec.hpp"

namespace crossrank {

/// Broadcasts the root's dictionary: the metadata as one object, then each tensor that follows.
[[nodiscard]] TensorDict broadcast_dict_from(Collective const& group, TensorDict dict, int root);

/// The destination of a dictionary, and the number that distinguishes it from others to the same rank.
struct DictRoute {
  int dst = 0;
  int part = 0;              ///< this rank's index among the ranks that send parts
  std::uint32_t number = 0;  ///< of the dictionary
};

/// Sends a dictionary. Posts all messages at once, in order.
class DictSend {
 public:
  DictSend(Collective const& group, TensorDict const& dict, PartsOf const& parts_of, DictRoute const& route);
  [[nodiscard]] bool test();
  void wait();

 private:
  std::deque<Request> messages_{};
};

/// Receives a dictionary. Posts receives as soon as their sizes are known. Allocates memory for data that arrives.
class DictReceive {
 public:
  /// `receive_queue`: the queue of all dictionaries that this rank receives from `src` in the group.
  DictReceive(Collective const& group, int src, std::shared_ptr<DictReceiveQueue> receive_queue,
              std::optional<Collective> all_gather_group);
  ~DictReceive();
  DictReceive(DictReceive const&) = delete;
  DictReceive& operator=(DictReceive const&) = delete;

  [[nodiscard]] bool test() { return advance(false); }
  [[nodiscard]] TensorDict const& wait();
  /// Called by the queue: posts receives as their sizes become known. Returns false when that requires waiting. An
  /// error is kept for the caller that wants the dictionary, and ends this receive.
  [[nodiscard]] bool post_receives(bool may_wait) noexcept;

 private:
  enum class Stage { queued, head, body, tensors, joining, done };

  [[nodiscard]] bool advance(bool may_wait);
  /// Returns whether all posted receives have completed.
  [[nodiscard]] bool receives_completed(bool may_wait);
  void next_stage();
  void receive_body();
  void receive_tensors();
  /// Allocates memory for data that arrives. Where a device has none, the data goes to the CPU, so that the sender does
  /// not wait forever, and the dictionary is given up.
  [[nodiscard]] Tensor memory_on(Device device, Shape const& shape, Dtype dtype);
  /// Throws when a device had no memory. The ranks that join parts with this one get an error too.
  void require_memory();
  void join();

  Collective group_;
  int src_;
  std::shared_ptr<DictReceiveQueue> receive_queue_;
  std::optional<Collective> all_gather_group_;
  Stage stage_ = Stage::queued;
  std::exception_ptr failure_{};
  std::optional<UnavailableError> lacks_memory_{};
  Tensor head_tensor_;
  BlockHeader head_{};
  std::vector<std::byte> body_{};
  Tensor piece_{};
  DecodedDict decoded_{};
  std::vector<Tensor> parts_{};  ///< of tensors that arrive in parts; one entry for each tensor that follows
  std::deque<Request> messages_{};
};

}  // namespace crossrank
