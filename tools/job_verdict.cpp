#include "tools/job_verdict.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include <sys/wait.h>

#include "lib/node/launcher_link.hpp"
#include "lib/node/rank_list.hpp"

namespace crossrank::tools {
namespace {

constexpr std::size_t most_lines = 32;

bool is_failure(RankEnd const& end) { return !WIFEXITED(end.status) || WEXITSTATUS(end.status) != 0; }

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

std::string line_of(RankEnd const& end) {
  auto text = "rank " + std::to_string(end.rank) + " (pid " + std::to_string(end.pid) +
              "): " + node::describe_status(end.status);
  if (end.asked) text += ", sent by this command,";
  text += " after " + seconds(end.after);
  if (end.before_connect) text += ", ended before connect";
  if (end.blames) text += ", because of rank " + std::to_string(*end.blames);
  return text;
}

}  // namespace

void JobVerdict::add(RankEnd const& end) { ends_.push_back(end); }

void JobVerdict::annotate(std::function<void(RankEnd&)> const& note) {
  for (auto& end : ends_) note(end);
}

bool JobVerdict::failed() const noexcept { return std::any_of(ends_.begin(), ends_.end(), is_failure); }

RankEnd const* JobVerdict::first_failure() const noexcept {
  RankEnd const* first = nullptr;
  for (auto const& end : ends_) {
    if (is_failure(end) && (first == nullptr || precedence(end) < precedence(*first))) first = &end;
  }
  return first;
}

RankEnd const* JobVerdict::end_of(int rank) const noexcept {
  auto const found = std::find_if(ends_.begin(), ends_.end(), [rank](RankEnd const& end) { return end.rank == rank; });
  return found == ends_.end() ? nullptr : &*found;
}

RankEnd const* JobVerdict::cause() const noexcept {
  auto const* const first = first_failure();
  if (first == nullptr) return nullptr;
  auto const absent =
      std::find_if(ends_.begin(), ends_.end(), [](RankEnd const& end) { return end.before_connect && !end.asked; });
  if (absent != ends_.end()) return &*absent;
  // Each rank names the one that it followed; a circle would be a lie of one of them.
  auto const* at = first;
  for (std::size_t steps = 0; steps < ends_.size() && precedence(*at) == 1 && at->blames; ++steps) {
    auto const* const next = end_of(*at->blames);
    if (next == nullptr) return at;
    at = next;
  }
  return at;
}

RankEnd const* JobVerdict::deciding() const noexcept {
  auto const* const first = cause();
  return first != nullptr && is_failure(*first) && !first->asked ? first : first_failure();
}

bool JobVerdict::by_exit_code() const noexcept {
  auto const* const first = deciding();
  return first != nullptr && WIFEXITED(first->status);
}

bool JobVerdict::by_foreign_signal() const noexcept {
  auto const* const first = deciding();
  return first != nullptr && WIFSIGNALED(first->status) && !first->asked;
}

int JobVerdict::exit_code() const noexcept {
  auto const* const first = deciding();
  if (first == nullptr) return 0;
  return WIFEXITED(first->status) ? WEXITSTATUS(first->status) : 128 + WTERMSIG(first->status);
}

std::string JobVerdict::summary() const {
  auto const* const first = cause();
  if (first == nullptr) return {};
  if (ends_.size() == 1) return line_of(*first);
  std::string text = "the job failed; its ranks in the order in which they ended:";
  std::vector<int> rest;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    bool const is_cause = &ends_[i] == first;
    if (i >= most_lines && !is_cause) {
      rest.push_back(ends_[i].rank);
      continue;
    }
    text += "\n  " + line_of(ends_[i]) + (is_cause ? "  <- first cause" : "");
  }
  std::sort(rest.begin(), rest.end());
  if (!rest.empty()) text += "\n  then also: " + node::compress(rest);
  return text;
}

}  // namespace crossrank::tools
