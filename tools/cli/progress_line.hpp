#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include <crossrank/checkpoint.hpp>

namespace crossrank::tools {

/// How the state of a long job is shown on standard error.
enum class ProgressStyle : std::uint8_t {
  automatic,  ///< a bar on a terminal, else lines
  bar,        ///< one line that is written again and again
  lines,      ///< a line every few seconds
  none,
};

/// Shows how far a job is, with its rate and the time that is left.
class ProgressLine {
 public:
  /// `what` stands before the figures. `automatic` must have been settled before.
  ProgressLine(std::string what, ProgressStyle style);
  ~ProgressLine();
  ProgressLine(ProgressLine const&) = delete;
  ProgressLine& operator=(ProgressLine const&) = delete;

  void show(checkpoint::Progress const& progress);
  /// Takes the bar away, for other text.
  void clear() noexcept;

 private:
  [[nodiscard]] std::string text(checkpoint::Progress const& progress) const;

  std::string what_;
  ProgressStyle style_;
  std::chrono::duration<double> last_{};  ///< when the last line was written
  bool shown_ = false;
};

/// What the bar shows: "[=====>    ]", `width` characters inside.
[[nodiscard]] std::string bar_text(double share, int width);

}  // namespace crossrank::tools
