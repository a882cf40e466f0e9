#pragma once
#include <cstdint>

namespace crossrank {

/// Says how thoroughly the ranks check a call. All ranks of a job use the same level.
enum class CheckLevel : std::uint8_t {
  off,  ///< checks only those of a rank's own arguments that memory safety depends on
  /// Checks a rank's own arguments. A backend that can compare calls at no cost does so too.
  ///
  /// Collectives that NCCL or another device transport carries are always compared, because it compares nothing itself.
  /// No host waits for another rank, except during captures. In a group on one host, the last one of the ranks that
  /// differ enqueues nothing and throws the `MismatchError`; the others get it at their next call of the group or wait
  /// for the device. In a group on several hosts, the streams wait until the ranks have compared the call, and all
  /// ranks get the error there.
  local,
  /// Also compares operation, root, shapes, dtype and op on all ranks before each call. The host waits for all of them.
  /// A difference is a `MismatchError` on all of them. The receiver of a message compares shape and dtype.
  collective,
};

}  // namespace crossrank
