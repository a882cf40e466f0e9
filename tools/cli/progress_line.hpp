#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <crossrank/checkpoint.hpp>

namespace crossrank::tools {

/// How the progress of a long job is shown on standard error.
enum class ProgressStyle : std::uint8_t {
  automatic,  ///< a bar on a terminal, lines otherwise
  bar,        ///< one line that is overwritten
  lines,      ///< a new line every few seconds
  none,
};

/// Shows the progress of a job with its rate and the remaining time.
class ProgressLine {
 public:
  /// `what` is printed before the figures. `style` must not be `automatic`. Calls `reader_left` when nothing reads
  /// standard error any more; SIGPIPE must be blocked for that.
  ProgressLine(std::string what, ProgressStyle style, std::function<void()> reader_left = {});
  ~ProgressLine();
  ProgressLine(ProgressLine const&) = delete;
  ProgressLine& operator=(ProgressLine const&) = delete;

  void show(checkpoint::Progress const& progress);
  /// Erases the bar, so that other text can be printed.
  void clear() noexcept;

 private:
  void print(std::string const& text) const;
  [[nodiscard]] std::string text(checkpoint::Progress const& progress) const;

  std::string what_;
  ProgressStyle style_;
  std::function<void()> reader_left_;
  std::chrono::duration<double> last_{};  ///< when the last line was printed
  bool shown_ = false;
};

/// Returns the text of the bar: "[=====>    ]", with `width` characters inside the brackets.
[[nodiscard]] std::string bar_text(double share, int width);

}  // namespace crossrank::tools
