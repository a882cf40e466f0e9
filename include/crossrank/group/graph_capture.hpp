#pragma once
#include <optional>

#include <crossrank/export.hpp>
#include <crossrank/stream.hpp>

namespace crossrank {

/// Context of a graph capture, which several groups can share.
struct GraphContext {
  Stream stream{};  ///< stream to capture; default: a new stream of the group's device
};

/// A scope in which graphs are captured: its stream is the current one of its device in this thread.
///
/// When the scope begins, its stream waits for the previous current stream. When it ends, that stream waits for the
/// scope's. Without a GPU the scope only holds its context.
class CROSSRANK_EXPORT GraphCapture {
 public:
  /// Begins the scope.
  explicit GraphCapture(GraphContext context);
  /// Ends the scope.
  ~GraphCapture();
  GraphCapture(GraphCapture const&) = delete;
  GraphCapture& operator=(GraphCapture const&) = delete;
  /// Returns the context.
  [[nodiscard]] GraphContext const& context() const noexcept { return context_; }

 private:
  GraphContext context_;
  Stream previous_{};
  std::optional<StreamGuard> guard_{};
};

}  // namespace crossrank
