#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>

namespace crossrank {

/// The kinds of failure that callers can distinguish. Each has a subclass of `Error`.
enum class ErrorCode : std::uint8_t {
  usage,        ///< the caller broke a precondition; nothing was sent, the group stays usable
  mismatch,     ///< the ranks disagree about the call
  timeout,      ///< a living rank, or the work of a GPU, made no progress for the whole deadline
  peer_lost,    ///< a rank died, left, or aborted the group
  remote,       ///< another, living rank could not do its part of the call; the group stays usable
  cancelled,    ///< the caller cancelled the operation
  io,           ///< a system call failed
  format,       ///< bytes of a file or message are invalid
  backend,      ///< a vendor library failed
  unavailable,  ///< no backend, memory or support for the request
};

/// Returns the lower-case name of `code`, as in reports: "peer_lost". Local.
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(ErrorCode code) noexcept;

/// The fields of an error. Texts omit empty fields. Rank numbers are ranks in `group`.
struct ErrorInfo {
  std::string operation{};             ///< name of the operation ("barrier", "NFSWorkspace.write")
  std::string message{};               ///< one clause: what went wrong
  std::string expected{};              ///< expected value
  std::string got{};                   ///< actual value
  std::string resource{};              ///< path, segment, tensor name or option
  std::string system{};                ///< text of the operating system or the vendor library
  std::string hint{};                  ///< what the reader can do
  std::string group{};                 ///< name of the group
  std::string where{};                 ///< call site, "file:line", where the thrower sets it
  int rank = -1;                       ///< rank that threw; -1 when no group is involved
  int world_size = 0;                  ///< size of that group
  std::vector<int> failed_ranks{};     ///< ranks to blame, which an `Error` has in ascending order; may be empty
  bool group_usable = true;            ///< whether the group may be used again
  std::vector<std::string> details{};  ///< further lines of `report()`, one per rank or finding
  std::string remote_type{};           ///< type of a peer's exception (`RemoteError`)
  int system_errno = 0;                ///< errno of the failed call (`IoError`)
  std::string section{};               ///< part of the format ("header", "data") (`FormatError`)
  std::uint64_t offset = 0;            ///< byte of the source that is wrong (`FormatError`)
};

/// The base class of all exceptions of crossrank.
///
/// `what()` is one line: operation, finding, expected and actual value, rank r of n in the group, resource, system
/// text, hint. `report()` adds one line for each rank concerned. Copies share their state; copying does not throw.
class CROSSRANK_EXPORT Error : public std::runtime_error {
 public:
  /// Makes an error of kind `code`. Prefer the subclasses.
  Error(ErrorCode code, ErrorInfo info);

  /// Returns the kind of the failure.
  [[nodiscard]] ErrorCode code() const noexcept;
  /// Returns the name of the operation: "barrier", "NFSWorkspace.write".
  [[nodiscard]] std::string const& operation() const noexcept;
  /// Returns the rank in the group that threw; -1 when no group is involved.
  [[nodiscard]] int rank() const noexcept;
  /// Returns the call site, "file:line". Empty unless the code that threw the error set it.
  [[nodiscard]] std::string const& where() const noexcept;
  /// Returns the ranks of the group that the error blames; may be empty.
  [[nodiscard]] std::span<int const> failed_ranks() const noexcept;
  /// Returns whether the group may be used again.
  [[nodiscard]] bool group_usable() const noexcept;
  /// Returns all fields.
  [[nodiscard]] ErrorInfo const& info() const noexcept;
  /// Returns the whole report, several lines: the finding, each rank concerned, what to do next.
  [[nodiscard]] std::string report() const;
  /// Returns the fields for programs.
  [[nodiscard]] Json to_json() const;

 private:
  ErrorCode code_;
  std::shared_ptr<ErrorInfo const> info_;
};

/// The caller broke a precondition. Nothing was sent, and the group stays usable.
class CROSSRANK_EXPORT UsageError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::usage`.
  explicit UsageError(ErrorInfo info);
};
/// The ranks disagree about a call. All ranks of a collective get this error, and the group is dead. If a message does
/// not fit the receive, only the receiver gets it, and the group stays usable.
class CROSSRANK_EXPORT MismatchError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::mismatch`.
  explicit MismatchError(ErrorInfo info);
};
/// A living rank, or the work of a GPU, made no progress for the whole deadline. The group is dead, except after a
/// timeout of a message queue: `group_usable` says so.
class CROSSRANK_EXPORT TimeoutError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::timeout`.
  explicit TimeoutError(ErrorInfo info);
};
/// A rank died, left or aborted the group. The group is dead, except after the loss of a peer of a message queue that
/// has only closed its endpoint: `group_usable` says so.
class CROSSRANK_EXPORT PeerLostError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::peer_lost`.
  explicit PeerLostError(ErrorInfo info);
};
/// Another, living rank could not do its part of the call: its callable threw, or it had no memory for a message. The
/// group stays usable.
class CROSSRANK_EXPORT RemoteError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::remote`.
  explicit RemoteError(ErrorInfo info);
  /// Returns the type of the exception that the other rank's callable threw.
  [[nodiscard]] std::string const& remote_type() const noexcept;
};
/// The caller cancelled the operation.
class CROSSRANK_EXPORT CancelledError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::cancelled`.
  explicit CancelledError(ErrorInfo info);
};
/// A system call failed.
class CROSSRANK_EXPORT IoError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::io`.
  explicit IoError(ErrorInfo info);
  /// Returns errno of the call that failed; 0 when the system gave none.
  [[nodiscard]] int system_errno() const noexcept;
};
/// Bytes of a file or message are invalid.
class CROSSRANK_EXPORT FormatError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::format`.
  explicit FormatError(ErrorInfo info);
  /// Returns the part of the source that is wrong: "length", "header", "data".
  [[nodiscard]] std::string const& section() const noexcept;
  /// Returns the byte of the source that is wrong.
  [[nodiscard]] std::uint64_t offset() const noexcept;
};
/// A vendor library, such as MPI, failed.
class CROSSRANK_EXPORT BackendError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::backend`.
  explicit BackendError(ErrorInfo info);
};
/// There is no backend, memory or support for the request.
class CROSSRANK_EXPORT UnavailableError : public Error {
 public:
  /// Makes the error with kind `ErrorCode::unavailable`.
  explicit UnavailableError(ErrorInfo info);
};

/// Throws the subclass that belongs to `code`.
[[noreturn]] CROSSRANK_EXPORT void throw_error(ErrorCode code, ErrorInfo info);

}  // namespace crossrank
