#include "tools/job_verdict.hpp"

#include <csignal>
#include <cstdio>
#include <cstring>

#include <sys/wait.h>

namespace crossrank::tools {
namespace {

bool is_failure(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

// Lower goes first.
int precedence(RankEnd const& end) {
  if (end.asked) return 2;
  return WIFSIGNALED(end.status) && WTERMSIG(end.status) != SIGABRT ? 0 : 1;
}

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", static_cast<double>(time.count()) / 1000.0);
  return text;
}

std::string manner(RankEnd const& end) {
  if (WIFEXITED(end.status)) return "exit code " + std::to_string(WEXITSTATUS(end.status));
  int const number = WTERMSIG(end.status);
  auto const* const name = ::sigabbrev_np(number);
  std::string text = "signal " + std::to_string(number);
  if (name != nullptr) text += std::string(" (SIG") + name + ")";
  if (WCOREDUMP(end.status)) text += ", core dumped";
  return text;
}

}  // namespace

void JobVerdict::add(RankEnd const& end) {
  if (!is_failure(end.status)) return;
  ++failures_;
  if (end.asked) ++asked_;
  if (!cause_ || precedence(end) < precedence(*cause_)) cause_ = end;
}

bool JobVerdict::by_exit_code() const noexcept { return cause_ && WIFEXITED(cause_->status); }

bool JobVerdict::by_foreign_signal() const noexcept { return cause_ && WIFSIGNALED(cause_->status) && !cause_->asked; }

int JobVerdict::exit_code() const noexcept {
  if (!cause_) return 0;
  return WIFEXITED(cause_->status) ? WEXITSTATUS(cause_->status) : 128 + WTERMSIG(cause_->status);
}

std::string JobVerdict::sentence() const {
  if (!cause_) return {};
  auto text = "rank " + std::to_string(cause_->rank) + " (pid " + std::to_string(cause_->pid) + ") ended with " +
              manner(*cause_) + (cause_->asked ? ", which was sent to it," : "") + " after " + seconds(cause_->after);
  int const others = failures_ - 1;
  int const asked = asked_ - (cause_->asked ? 1 : 0);
  if (others > 0) text += "; other ranks that failed: " + std::to_string(others);
  if (asked > 0) text += ", of which this command ended " + std::to_string(asked);
  return text;
}

}  // namespace crossrank::tools
