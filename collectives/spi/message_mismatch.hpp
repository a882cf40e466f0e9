#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank {

/// The properties that identify a message, besides its sender.
struct MessageKind {
  std::size_t bytes = 0;
  std::uint32_t tag = 0;
  bool operator==(MessageKind const&) const = default;
};

/// A message does not match its receive. Users see a `MismatchError`; the library can also read size and tag as
/// numbers.
class MessageMismatch : public MismatchError {
 public:
  /// `info` says who received in which group, and by which operation; `src` is the sender in it.
  MessageMismatch(ErrorInfo info, int src, MessageKind expected, MessageKind got)
      : MismatchError(complete(std::move(info), src, expected, got)), got_(got) {}

  [[nodiscard]] MessageKind got() const noexcept { return got_; }

 private:
  static std::string describe_call(MessageKind kind) {
    return std::to_string(kind.bytes) + " bytes with tag " + std::to_string(kind.tag);
  }
  static ErrorInfo complete(ErrorInfo info, int src, MessageKind expected, MessageKind got) {
    info.message = "the message from rank " + std::to_string(src) + " has another size or tag than expected";
    info.expected = describe_call(expected);
    info.got = describe_call(got);
    info.hint = "make both ranks agree on size, tag and order";
    info.failed_ranks = {src};
    return info;
  }

  MessageKind got_;
};

}  // namespace crossrank
