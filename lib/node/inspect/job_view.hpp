#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/node/inspect/device_view.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/platform/process_state.hpp"

/// A job as its control segment shows it to a reader that is not one of its ranks: while it works, while it hangs, and
/// after its end. All ranks are ranks of the job.
namespace crossrank::node {

enum class OperationState : std::uint8_t {
  done,
  waiting,  ///< for other ranks
  failed,
  unknown,  ///< its group has ended
};

/// An entry of a flight ring, and its state.
struct OperationView {
  spi::OpKind op_kind = spi::OpKind::none;
  std::string group{};        ///< of the group or queue; empty when it has ended
  std::uint32_t block = 0;    ///< number of the group or queue on its node
  std::uint64_t round = 0;    ///< of the group, or number of the message
  std::uint64_t bytes = 0;    ///< of this rank's part
  std::optional<int> peer{};  ///< of a message
  OperationState state = OperationState::unknown;
  double age = 0;  ///< seconds since it began
};

/// The state of a rank.
enum class RankStatus : std::uint8_t { absent, alive, stopped, blocked, dead, left };

struct RankView {
  int rank = 0;
  int pid = 0;
  RankStatus status = RankStatus::absent;
  double since = 0;  ///< seconds since the rank ended, or since it last made progress
  bool in_user_code = false;
  std::string exit_reason{};                             ///< why it ended
  std::vector<OperationView> operations{};               ///< oldest first
  std::vector<DeviceOperationView> device_operations{};  ///< oldest first
  std::vector<int> waits_for{};                          ///< ascending
};

/// The reason why a group has failed.
struct FailureView {
  Verdict verdict = Verdict::lost;
  std::string text{};
  std::vector<int> blamed{};
  int decided_by = 0;
};

struct GroupView {
  std::string name{};
  std::uint32_t block = 0;
  std::vector<int> ranks{};
  std::uint64_t round = 0;                  ///< in progress or failed; 0 while no member has arrived at the next
  spi::OpKind op_kind = spi::OpKind::none;  ///< of the first that arrived there
  std::vector<int> arrived{};
  std::vector<int> missing{};
  std::optional<FailureView> failure{};
  std::optional<DeviceCallView> device_call{};  ///< under way on the devices of ranks of this node
};

struct QueueView {
  struct Endpoint {
    int rank = 0;
    std::uint64_t messages = 0;  ///< published by the writer, taken by a reader
    bool asleep = false;         ///< until the other side makes progress
  };
  std::string name{};
  std::uint32_t block = 0;
  std::optional<Endpoint> writer{};
  std::vector<Endpoint> readers{};
};

struct JobView {
  std::string job{};
  std::string host{};
  std::string nonce{};   ///< of this start of the job, hexadecimal
  int ranks_here = 0;    ///< on this node
  bool running = false;  ///< whether one of them is alive; if not, ages are relative to the last heartbeat
  std::vector<RankView> ranks{};
  std::vector<GroupView> groups{};
  std::vector<QueueView> queues{};
};

/// Reads a control segment that is mapped whole and read-only. Trusts nothing in it. `FormatError` when it is not a
/// control segment, or of another version.
[[nodiscard]] JobView view_job(std::span<std::byte const> control);

}  // namespace crossrank::node
