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

/// Gives every rank the root's dictionary: metadata as one object, then each travelling tensor.
[[nodiscard]] TensorDict broadcast_dict_from(Collective const& group, TensorDict dict, int root);

/// Where a dictionary goes and what tells it from others on the way there.
struct DictRoute {
  int dst = 0;
  int part = 0;              ///< this rank's place among those that send parts
  std::uint32_t number = 0;  ///< of the dictionary
};

/// A dictionary on its way out: all messages are posted at once, in order.
class DictSend {
 public:
  DictSend(Collective const& group, TensorDict const& dict, PartsOf const& parts_of, DictRoute const& route);
  [[nodiscard]] bool test();
  void wait();

 private:
  std::deque<Request> messages_{};
};

/// A dictionary on its way in. Messages are received as far as is known what they are; memory grows with what arrives.
class DictReceive {
 public:
  /// `line`: of all that this rank asks `src` for in the group.
  DictReceive(Collective const& group, int src, std::shared_ptr<DictReceiveQueue> line,
              std::optional<Collective> all_gather_group);
  ~DictReceive();
  DictReceive(DictReceive const&) = delete;
  DictReceive& operator=(DictReceive const&) = delete;

  [[nodiscard]] bool test() { return advance(false); }
  [[nodiscard]] TensorDict const& wait();
  /// For the line: asks for the messages as it becomes known what they are; false where that takes waiting. What this
  /// fails with is kept for whoever wants the dictionary, and ends it.
  [[nodiscard]] bool ask(bool may_wait) noexcept;

 private:
  enum class Stage { queued, head, body, tensors, joining, done };

  [[nodiscard]] bool advance(bool may_wait);
  /// Whether all that was asked for has come.
  [[nodiscard]] bool have_come(bool may_wait);
  void next_stage();
  void receive_body();
  void receive_tensors();
  void join();

  Collective group_;
  int src_;
  std::shared_ptr<DictReceiveQueue> receive_queue_;
  std::optional<Collective> all_gather_group_;
  Stage stage_ = Stage::queued;
  std::exception_ptr failure_{};
  Tensor head_tensor_;
  BlockHeader head_{};
  std::vector<std::byte> body_{};
  Tensor piece_{};
  DecodedDict decoded_{};
  std::vector<Tensor> parts_{};  ///< of tensors that come in parts, one for each travelling tensor
  std::deque<Request> messages_{};
};

}  // namespace crossrank
