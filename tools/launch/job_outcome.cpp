#include "tools/launch/job_outcome.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include <sys/wait.h>

#include "lib/node/rendezvous/launcher_link.hpp"
#include "lib/core/text/rank_list.hpp"

namespace crossrank::tools {
namespace {

constexpr std::size_t max_lines = 32;

bool is_failure(RankExit const& end) { return !WIFEXITED(end.status) || WEXITSTATUS(end.status) != 0; }

// Returns the order in which ends are considered as the root cause; lower comes first.
int precedence(RankExit const& end) {
  if (end.by_launcher) return 2;
  return WIFSIGNALED(end.status) && WTERMSIG(end.status) != SIGABRT ? 0 : 1;
}

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", static_cast<double>(time.count()) / 1000.0);
  return text;
}

std::string line_of(RankExit const& end) {
  auto text = "rank " + std::to_string(end.rank) + " (pid " + std::to_string(end.pid) +
              "): " + node::describe_status(end.status);
  if (end.by_launcher) text += ", sent by this command,";
  text += " after " + seconds(end.after);
  if (end.before_connect) text += ", ended before connect";
  if (end.caused_by) text += ", because of rank " + std::to_string(*end.caused_by);
  return text;
}

}  // namespace

void JobOutcome::add(RankExit const& end) { exits_.push_back(end); }

void JobOutcome::end_requested(int signal) noexcept {
  if (!failed() && requested_by_ == 0) requested_by_ = signal;
}

void JobOutcome::annotate(std::function<void(RankExit&)> const& note) {
  for (auto& end : exits_) note(end);
}

bool JobOutcome::failed() const noexcept { return std::any_of(exits_.begin(), exits_.end(), is_failure); }

bool JobOutcome::failed(int rank) const noexcept {
  auto const* const end = exit_of(rank);
  return end != nullptr && is_failure(*end);
}

RankExit const* JobOutcome::first_failure() const noexcept {
  RankExit const* first = nullptr;
  for (auto const& end : exits_) {
    if (is_failure(end) && (first == nullptr || precedence(end) < precedence(*first))) first = &end;
  }
  return first;
}

RankExit const* JobOutcome::exit_of(int rank) const noexcept {
  auto const found =
      std::find_if(exits_.begin(), exits_.end(), [rank](RankExit const& end) { return end.rank == rank; });
  return found == exits_.end() ? nullptr : &*found;
}

RankExit const* JobOutcome::cause() const noexcept {
  auto const* const first = first_failure();
  if (first == nullptr) return nullptr;
  auto const absent = std::find_if(exits_.begin(), exits_.end(),
                                   [](RankExit const& end) { return end.before_connect && !end.by_launcher; });
  if (absent != exits_.end()) return &*absent;
  // Each rank names the rank that it followed. A cycle means that a record is wrong, so the walk stops there.
  auto const* at = first;
  for (std::size_t steps = 0; steps < exits_.size() && precedence(*at) == 1 && at->caused_by; ++steps) {
    auto const* const next = exit_of(*at->caused_by);
    if (next == nullptr) return at;
    at = next;
  }
  return at;
}

RankExit const* JobOutcome::deciding() const noexcept {
  auto const* const first = cause();
  return first != nullptr && is_failure(*first) && !first->by_launcher ? first : first_failure();
}

bool JobOutcome::by_exit_code() const noexcept {
  auto const* const first = deciding();
  return first != nullptr && WIFEXITED(first->status);
}

bool JobOutcome::by_external_signal() const noexcept {
  auto const* const first = deciding();
  return first != nullptr && WIFSIGNALED(first->status) && !first->by_launcher;
}

int JobOutcome::exit_code() const noexcept {
  auto const* const first = deciding();
  if (first == nullptr) return 0;
  return WIFEXITED(first->status) ? WEXITSTATUS(first->status) : 128 + WTERMSIG(first->status);
}

std::optional<int> JobOutcome::code_of_signal() const noexcept {
  auto const found = std::find_if(exits_.begin(), exits_.end(), [](RankExit const& end) {
    return WIFEXITED(end.status) && WEXITSTATUS(end.status) > 128 && WEXITSTATUS(end.status) != 128 + SIGINT;
  });
  return found == exits_.end() ? std::nullopt : std::optional(WEXITSTATUS(found->status));
}

std::string JobOutcome::summary() const {
  auto const* const first = cause();
  if (first == nullptr) return {};
  bool const requested = requested_by_ != 0;
  auto const how =
      requested ? "the job was ended by " + node::describe_status(requested_by_) : std::string("the job failed");
  if (exits_.size() == 1) return requested ? how + "; " + line_of(*first) : line_of(*first);
  auto text = how + "; its ranks in the order in which they ended:";
  std::vector<int> rest;
  for (std::size_t i = 0; i < exits_.size(); ++i) {
    bool const is_cause = &exits_[i] == first && !requested;
    if (i >= max_lines && !is_cause) {
      rest.push_back(exits_[i].rank);
      continue;
    }
    text += "\n  " + line_of(exits_[i]) + (is_cause ? "  <- root cause" : "");
  }
  std::sort(rest.begin(), rest.end());
  if (!rest.empty()) text += "\n  then also: " + format_ranks(rest);
  return text;
}

}  // namespace crossrank::tools
