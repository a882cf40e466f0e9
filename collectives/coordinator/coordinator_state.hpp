#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/group.hpp>

#include "collectives/tensor_dict/dict_receive_queue.hpp"

namespace crossrank {

struct GroupCoordinator::State {
  Collective cpu;
  Collective device;       ///< the same group as `cpu` unless dense data has its own group
  Device tensor_device{};  ///< where the group allocates tensors
  std::optional<Collective> data_parallel{};
  MessageQueue queue{};  ///< written by rank 0; only if the options requested one
  std::string unique_name{};
  std::vector<GlobalRank> ranks{};
  std::atomic<bool> destroyed{false};
  std::mutex buffers_mutex{};
  std::map<std::string, Tensor, std::less<>> buffers{};
  std::atomic<std::uint32_t> dicts_sent{0};
  std::mutex receive_queues_mutex{};
  std::map<int, std::shared_ptr<DictReceiveQueue>>
      receive_queues{};  ///< of the expected dictionaries, by rank in the CPU group

  [[nodiscard]] std::shared_ptr<DictReceiveQueue> receive_queue_from(int src);
};

/// Returns an error that names the group and this rank.
[[nodiscard]] ErrorInfo usage_in(Collective const& group, char const* operation, std::string message,
                                 std::string expected = {}, std::string got = {});

/// Returns `rank`. Throws `UsageError` when it is not a rank of the group.
int checked_rank(Collective const& group, int rank, char const* operation, char const* what);

}  // namespace crossrank
