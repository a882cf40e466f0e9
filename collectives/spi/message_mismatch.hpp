#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/reserved_tags.hpp"

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
    auto const bytes = std::to_string(kind.bytes) + " bytes";
    if (auto const* const content = reserved_tags::content_of(kind.tag)) return content + (" of " + bytes);
    return bytes + " with tag " + std::to_string(kind.tag);
  }
  static ErrorInfo complete(ErrorInfo info, int src, MessageKind expected, MessageKind got) {
    info.message = "the message from rank " + std::to_string(src) + " has another size or tag than expected";
    info.expected = describe_call(expected);
    info.got = describe_call(got);
    info.hint = "make both ranks agree on size, tag and order";
    info.failed_ranks = {src};
    std::string const call = reserved_tags::receiver_of(got.tag);
    if (call == reserved_tags::receiver_of(expected.tag)) return info;
    info.message = "the message from rank " + std::to_string(src) + " is of another kind than expected";
    info.hint = "receive it with " + call + ", or make both ranks agree on the order of their messages";
    return info;
  }

  MessageKind got_;
};

}  // namespace crossrank
