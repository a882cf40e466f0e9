#pragma once
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

/// The one encoding of a failure that a rank reports to other ranks: in shared memory, in packets, frames and objects.
/// Three places hold only a kind and ranks, no text, and do not use it: the words of queues and of a node's start, and
/// `RemoteFailure` of a queue between nodes, which fits into the one cache line of a message's header.
namespace crossrank {

/// A failure on another rank: its kind, and those fields of `ErrorInfo` that mean the same on every rank.
struct ErrorRecord {
  ErrorCode code = ErrorCode::backend;
  ErrorInfo info{};

  /// Returns one line with all fields, as `what()` of the error on that rank.
  [[nodiscard]] std::string text() const;
};

/// The encoded fields of an error, without ownership.
struct ErrorFields {
  ErrorCode code = ErrorCode::backend;
  int system_errno = 0;
  std::span<int const> failed_ranks{};  ///< ascending
  std::string_view operation{};
  std::string_view remote_type{};
  std::string_view expected{};
  std::string_view got{};
  std::string_view resource{};
  std::string_view system{};
  std::string_view section{};
  std::string_view hint{};
  std::string_view message{};
  std::span<std::string const> details{};
};

/// Returns views of the encoded fields of `info`.
[[nodiscard]] ErrorFields fields_of(ErrorCode code, ErrorInfo const& info) noexcept;

/// Encodes an error into `space` and returns the number of bytes used.
///
/// Never fails and does not allocate. If the error does not fit, each text is truncated to its share of the space; the
/// message may use the rest of the space. `space` must hold at least 64 bytes.
std::size_t encode_error(ErrorFields const& error, std::span<std::byte> space) noexcept;

/// Encodes an error into as many bytes as it needs. Truncates each text after 16 KiB.
[[nodiscard]] std::vector<std::byte> encode_error(ErrorFields const& error);

/// Encodes an exception for other ranks, likewise.
[[nodiscard]] std::vector<std::byte> encode_exception(std::exception_ptr const& error);

/// Decodes an error that another process encoded. Stops at the first damaged field.
[[nodiscard]] ErrorRecord decode_error(std::span<std::byte const> bytes);

/// A failure, and the rank that reports it.
struct RankError {
  int rank = 0;
  ErrorRecord error{};
};

/// Returns the error that the other ranks get when a call failed on some ranks with `errors`. `info` has operation,
/// group and rank of the caller.
[[nodiscard]] RemoteError remote_error(ErrorInfo info, std::vector<RankError> const& errors);

/// Converts an exception to a record. `info.remote_type` is its type as in C++ source.
///
/// An `Error` keeps its code and fields. Any other exception gets `ErrorCode::remote` and its text as message.
[[nodiscard]] ErrorRecord describe_exception(std::exception_ptr const& error);

}  // namespace crossrank
