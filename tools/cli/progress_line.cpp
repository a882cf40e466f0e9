#include "tools/cli/progress_line.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "lib/core/as_size.hpp"
#include "tools/cli/size_text.hpp"

namespace crossrank::tools {
namespace {

constexpr int bar_width = 24;
// Seconds between two lines. A shorter job prints none.
constexpr std::chrono::duration<double> between_lines{5.0};
constexpr std::chrono::duration<double> rate_known{0.5};

double share_of(checkpoint::Progress const& progress) {
  if (progress.bytes_total == 0) return 0;
  return std::min(1.0, static_cast<double>(progress.bytes_done) / static_cast<double>(progress.bytes_total));
}

}  // namespace

std::string bar_text(double share, int width) {
  auto const full = static_cast<int>(std::clamp(share, 0.0, 1.0) * width);
  std::string text(as_size(full), '=');
  if (full < width) text += '>';
  text.resize(as_size(width), ' ');
  return "[" + text + "]";
}

ProgressLine::ProgressLine(std::string what, ProgressStyle style, std::function<void()> reader_left)
    : what_(std::move(what)), style_(style), reader_left_(std::move(reader_left)) {}

ProgressLine::~ProgressLine() { clear(); }

std::string ProgressLine::text(checkpoint::Progress const& progress) const {
  char percent[16];
  std::snprintf(percent, sizeof percent, "%3.0f%%", 100.0 * share_of(progress));
  std::string text = progress.stage.empty() ? std::string() : std::string(progress.stage) + " ";
  text += percent;
  if (style_ == ProgressStyle::bar) text += " " + bar_text(share_of(progress), bar_width);
  text += " " + size_text(progress.bytes_done) + " of " + size_text(progress.bytes_total);
  if (progress.elapsed > rate_known && progress.bytes_done > 0) {
    auto const rate = static_cast<double>(progress.bytes_done) / progress.elapsed.count();
    text += ", " + size_text(static_cast<std::uint64_t>(rate)) + "/s, " +
            duration_text(static_cast<double>(progress.bytes_total - progress.bytes_done) / rate) + " left";
  }
  return text;
}

void ProgressLine::show(checkpoint::Progress const& progress) {
  if (style_ == ProgressStyle::none) return;
  if (style_ == ProgressStyle::bar) {
    shown_ = true;
    print("\r\033[K" + what_ + " " + text(progress));
    return;
  }
  // Every stage measures its own elapsed time.
  if (progress.elapsed < last_) last_ = {};
  if (progress.elapsed - last_ < between_lines) return;
  last_ = progress.elapsed;
  print(what_ + ": " + text(progress) + "\n");
}

void ProgressLine::print(std::string const& text) const {
  bool const failed = std::fputs(text.c_str(), stderr) == EOF || std::fflush(stderr) != 0;
  if (failed && errno == EPIPE && reader_left_) reader_left_();
}

void ProgressLine::clear() noexcept {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace crossrank::tools
