#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/tensor_dict.hpp>

namespace crossrank {

class GroupCoordinator;

/// Options of `GroupCoordinator::send_tensor_dict`.
struct SendDictOptions {
  std::optional<int> dst{};                          ///< empty: the next rank
  std::optional<Collective> all_gather_group{};      ///< ranks with the same tensors; each sends one part of them
  std::map<std::string, bool> all_gather_tensors{};  ///< by key (nested: dotted): whether the tensor is sent in parts
};

/// Options of `GroupCoordinator::recv_tensor_dict`.
struct RecvDictOptions {
  std::optional<int> src{};                      ///< empty: the previous rank
  std::optional<Collective> all_gather_group{};  ///< joins the parts; has as many ranks as the sender's group
};

/// A send of a dictionary in progress. Holds tensors and metadata until they have been sent.
///
/// Keep it until `wait` returns or `test` returns true. Dropping it earlier cancels the messages that have not been
/// sent. The two ranks then no longer agree on the next message.
class CROSSRANK_EXPORT TensorDictSend {
 public:
  /// Makes a send that has finished.
  TensorDictSend() noexcept;
  /// Takes over a send.
  TensorDictSend(TensorDictSend&&) noexcept;
  /// Drops this send and takes over another.
  TensorDictSend& operator=(TensorDictSend&&) noexcept;
  TensorDictSend(TensorDictSend const&) = delete;
  TensorDictSend& operator=(TensorDictSend const&) = delete;
  /// Drops the send.
  ~TensorDictSend();
  /// Returns whether everything has been sent. Never blocks.
  [[nodiscard]] bool test();
  /// Blocks until everything has been sent. Throws the error of the send, each time.
  void wait();

 private:
  friend class GroupCoordinator;
  struct State;
  std::unique_ptr<State> state_;
};

/// A receive of a dictionary in progress.
///
/// It advances during `test` and `wait` on itself or on a later receive. Two ranks that send each other large
/// dictionaries must wait for the receive first, then for the send. After an unfinished receive is dropped, the two
/// ranks no longer agree on the next message.
class CROSSRANK_EXPORT TensorDictReceive {
 public:
  /// Makes a receive that has finished with an empty dictionary.
  TensorDictReceive() noexcept;
  /// Takes over a receive.
  TensorDictReceive(TensorDictReceive&&) noexcept;
  /// Drops this receive and takes over another.
  TensorDictReceive& operator=(TensorDictReceive&&) noexcept;
  TensorDictReceive(TensorDictReceive const&) = delete;
  TensorDictReceive& operator=(TensorDictReceive const&) = delete;
  /// Drops the receive.
  ~TensorDictReceive();
  /// Returns whether all messages have arrived. Never blocks.
  [[nodiscard]] bool test();
  /// Returns the dictionary. The first call blocks and joins parts with the all-gather group. Later calls return at
  /// once, or throw the same error as the first.
  TensorDict const& wait();

 private:
  friend class GroupCoordinator;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace crossrank
