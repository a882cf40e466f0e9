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
  Collective device;  ///< the same group as `cpu` unless dense data has one of its own
  std::optional<Collective> data_parallel{};
  MessageQueue queue{};  ///< from rank 0, where one was asked for
  std::string unique_name{};
  std::vector<GlobalRank> ranks{};
  std::atomic<bool> destroyed{false};
  std::mutex buffers_mutex{};
  std::map<std::string, Tensor, std::less<>> buffers{};
  std::atomic<std::uint32_t> dicts_sent{0};
  std::mutex receive_queues_mutex{};
  std::map<int, std::shared_ptr<DictReceiveQueue>>
      receive_queues{};  ///< of the dictionaries that come, by rank in the CPU group

  [[nodiscard]] std::shared_ptr<DictReceiveQueue> receive_queue_from(int src);
};

/// An error that names group and rank.
[[nodiscard]] ErrorInfo usage_in(Collective const& group, char const* operation, std::string message,
                                 std::string expected = {}, std::string got = {});

/// `rank`, which must be one of the group, else `UsageError`.
int checked_rank(Collective const& group, int rank, char const* operation, char const* what);

}  // namespace crossrank
