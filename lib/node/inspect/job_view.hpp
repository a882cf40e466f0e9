#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/node/memory/control_layout.hpp"
#include "lib/node/liveness/process_state.hpp"

/// What the control segment of a node says of its job, to a reader that is no rank of it: while the job works, while it
/// hangs, and after its end. All ranks named here are ranks of the job.
namespace crossrank::node {

enum class OperationState : std::uint8_t {
  done,
  waiting,  ///< for other ranks
  failed,
  unknown,  ///< its group is over
};

/// An entry of a flight ring, with what has become of it.
struct OperationView {
  spi::OpKind op_kind = spi::OpKind::none;
  std::string group{};        ///< or queue; empty when it is over
  std::uint32_t block = 0;    ///< number of the group or queue on its node
  std::uint64_t round = 0;    ///< of the group, or number of the message
  std::uint64_t bytes = 0;    ///< of this rank's part
  std::optional<int> peer{};  ///< of a message
  OperationState state = OperationState::unknown;
  double age = 0;  ///< seconds since it began
};

/// How a rank is.
enum class RankStatus : std::uint8_t { absent, alive, stopped, blocked, dead, left };

struct RankView {
  int rank = 0;
  int pid = 0;
  RankStatus life = RankStatus::absent;
  double since = 0;  ///< seconds: of one that has ended since then, of others since they last made progress
  bool in_user_code = false;
  std::string exit_reason{};                ///< why it ended
  std::vector<OperationView> operations{};  ///< oldest first
  std::vector<int> waits_for{};             ///< ascending
};

/// Why a group has failed.
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
  std::uint64_t round = 0;                  ///< that is under way or has failed; 0 while nobody has arrived at the next
  spi::OpKind op_kind = spi::OpKind::none;  ///< of the first that arrived there
  std::vector<int> arrived{};
  std::vector<int> missing{};
  std::optional<FailureView> failure{};
};

struct QueueView {
  struct End {
    int rank = 0;
    std::uint64_t messages = 0;  ///< published by the writer, taken by a reader
    bool asleep = false;         ///< until the other side gets on
  };
  std::string name{};
  std::uint32_t block = 0;
  std::optional<End> writer{};
  std::vector<End> readers{};
};

struct JobView {
  std::string job{};
  std::string host{};
  std::string nonce{};   ///< of this start of it, hexadecimal
  int ranks_here = 0;    ///< on this node
  bool running = false;  ///< one of them is alive; if not, all ages count back from the last heartbeat
  std::vector<RankView> ranks{};
  std::vector<GroupView> groups{};
  std::vector<QueueView> queues{};
};

/// Reads a control segment, mapped whole and for reading only. Nothing in it is believed beyond the segment.
/// `FormatError` when it is none, or of another version.
[[nodiscard]] JobView view_job(std::span<std::byte const> control);

}  // namespace crossrank::node
