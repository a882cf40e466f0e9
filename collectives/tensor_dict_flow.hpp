#pragma once
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor_dict.hpp>

#include "collectives/object_wire.hpp"
#include "collectives/tensor_dict_wire.hpp"

namespace crossrank {

/// Gives every rank the root's dictionary: metadata as one object, then each travelling tensor.
[[nodiscard]] TensorDict broadcast_dict_from(Collective const& group, TensorDict dict, int root);

/// A dictionary on its way out: all messages are posted at once, in order.
class DictSend {
 public:
  /// `part`: this rank's place among those that send parts.
  DictSend(Collective const& group, TensorDict const& dict, int dst, PartsOf const& parts_of, int part);
  [[nodiscard]] bool test();
  void wait();

 private:
  std::deque<Request> messages_{};
};

/// A dictionary on its way in. Messages are received as far as is known what they are; memory grows with what arrives.
class DictReceive {
 public:
  DictReceive(Collective const& group, int src, std::optional<Collective> all_gather_group);
  ~DictReceive() = default;
  DictReceive(DictReceive const&) = delete;
  DictReceive& operator=(DictReceive const&) = delete;

  [[nodiscard]] bool test() { return advance(false); }
  [[nodiscard]] TensorDict const& wait();

 private:
  enum class Stage { head, body, tensors, joining, done };

  [[nodiscard]] bool advance(bool may_wait);
  void next_stage();
  void receive_body();
  void receive_tensors();
  void join();

  Collective group_;
  int src_;
  std::optional<Collective> all_gather_group_;
  Stage stage_ = Stage::head;
  Tensor head_tensor_;
  BlockHead head_{};
  std::vector<std::byte> body_{};
  Tensor piece_{};
  DecodedDict decoded_{};
  std::vector<Tensor> parts_{};  ///< of tensors that come in parts, one for each travelling tensor
  std::deque<Request> messages_{};
};

}  // namespace crossrank
