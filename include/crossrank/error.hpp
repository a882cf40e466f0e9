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

/// The kinds of failure that callers tell apart; one subclass of `Error` each.
enum class ErrorCode : std::uint8_t {
  usage,        ///< a precondition was broken; nothing was sent, the group goes on
  mismatch,     ///< the ranks disagree about the call; all of them get this error
  timeout,      ///< a living rank made no progress for the whole deadline; the group is dead
  peer_lost,    ///< a rank died, left, or aborted the group; the group is dead
  remote,       ///< a living peer's callable threw; the group goes on
  cancelled,    ///< the caller asked for it
  io,           ///< the operating system refused
  format,       ///< bytes that are not what they must be
  backend,      ///< a vendor library failed
  unavailable,  ///< nothing here can do what was asked
};

/// The lower-case name of `code`, as it appears in reports ("peer_lost").
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(ErrorCode code) noexcept;

/// Everything an error knows. Empty fields are left out of the texts; ranks count in the group of `group`.
struct ErrorInfo {
  std::string operation{};             ///< what was being done ("barrier", "NFSWorkspace.write")
  std::string message{};               ///< one clause: what went wrong
  std::string expected{};              ///< what should have been there
  std::string got{};                   ///< what was there
  std::string resource{};              ///< path, segment, tensor name or option
  std::string system{};                ///< text of the operating system or the vendor library
  std::string remedy{};                ///< what the reader can do about it
  std::string group{};                 ///< name of the group
  std::string where{};                 ///< call site, "file:line"
  int rank = -1;                       ///< where it was thrown; -1 when no group is involved
  int world_size = 0;                  ///< size of that group
  std::vector<int> culprits{};         ///< whom it blames; empty when nobody
  bool group_usable = true;            ///< whether the group may be used again
  std::vector<std::string> details{};  ///< further lines of `report()`, one per rank or finding
  std::string remote_type{};           ///< type of a peer's exception (`RemoteError`)
  int system_errno = 0;                ///< errno of the failed call (`IoError`)
  std::string section{};               ///< part of the format ("header", "data") (`FormatError`)
  std::uint64_t offset = 0;            ///< byte in the source where it went wrong (`FormatError`)
};

/// Base of all that crossrank throws.
///
/// `what()` is one line: operation, finding, expected against got, rank r of n in the group, resource, system text,
/// remedy. `report()` is the long form, with one line for each rank concerned. Copies share their state and do not
/// throw.
class CROSSRANK_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, ErrorInfo info);

  [[nodiscard]] ErrorCode code() const noexcept;
  [[nodiscard]] std::string const& operation() const noexcept;
  /// Rank that threw, in the group; -1 when no group is involved.
  [[nodiscard]] int rank() const noexcept;
  /// Call site, "file:line", or empty.
  [[nodiscard]] std::string const& where() const noexcept;
  /// Ranks that it blames, in the group; empty when nobody.
  [[nodiscard]] std::span<int const> culprits() const noexcept;
  /// Whether the group may go on.
  [[nodiscard]] bool group_usable() const noexcept;
  [[nodiscard]] ErrorInfo const& info() const noexcept;
  /// Several lines for people: the finding, each rank concerned, what to do next.
  [[nodiscard]] std::string report() const;
  /// The same for programs.
  [[nodiscard]] Json to_json() const;

 private:
  ErrorCode code_;
  std::shared_ptr<ErrorInfo const> info_;
};

class CROSSRANK_EXPORT UsageError : public Error {
 public:
  explicit UsageError(ErrorInfo info);
};
class CROSSRANK_EXPORT MismatchError : public Error {
 public:
  explicit MismatchError(ErrorInfo info);
};
class CROSSRANK_EXPORT TimeoutError : public Error {
 public:
  explicit TimeoutError(ErrorInfo info);
};
class CROSSRANK_EXPORT PeerLostError : public Error {
 public:
  explicit PeerLostError(ErrorInfo info);
};
class CROSSRANK_EXPORT RemoteError : public Error {
 public:
  explicit RemoteError(ErrorInfo info);
  /// Type of the exception that the peer's callable threw.
  [[nodiscard]] std::string const& remote_type() const noexcept;
};
class CROSSRANK_EXPORT CancelledError : public Error {
 public:
  explicit CancelledError(ErrorInfo info);
};
class CROSSRANK_EXPORT IoError : public Error {
 public:
  explicit IoError(ErrorInfo info);
  /// errno of the call that failed; 0 when the system gave none.
  [[nodiscard]] int system_errno() const noexcept;
};
class CROSSRANK_EXPORT FormatError : public Error {
 public:
  explicit FormatError(ErrorInfo info);
  /// Part of the source that is wrong ("length", "header", "data").
  [[nodiscard]] std::string const& section() const noexcept;
  /// Byte in the source where it went wrong.
  [[nodiscard]] std::uint64_t offset() const noexcept;
};
class CROSSRANK_EXPORT BackendError : public Error {
 public:
  explicit BackendError(ErrorInfo info);
};
class CROSSRANK_EXPORT UnavailableError : public Error {
 public:
  explicit UnavailableError(ErrorInfo info);
};

/// Throws the subclass that belongs to `code`.
[[noreturn]] CROSSRANK_EXPORT void throw_error(ErrorCode code, ErrorInfo info);

}  // namespace crossrank
