#include "tests/faults/fault_report.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <iostream>
#include <sstream>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank::test {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<Clock::rep> last_progress{0};

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

void note_progress() noexcept { last_progress = Clock::now().time_since_epoch().count(); }

bool say_verdict(RankSelf const& self, std::string_view label, std::function<void()> const& body) {
  auto const start = Clock::now();
  note_progress();
  Verdict verdict{.code = "ok"};
  try {
    body();
  } catch (Error const& e) {
    verdict = {.code = to_string(e.code()),
               .blames = {e.failed_ranks().begin(), e.failed_ranks().end()},
               .text = one_line(e.what())};
  } catch (std::exception const& e) {
    verdict = {.code = "foreign", .text = one_line(e.what())};
  }
  auto const in_milliseconds = [end = Clock::now()](Clock::time_point since) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(end - since).count();
  };
  std::ostringstream line;
  line << "verdict " << label << ' ' << verdict.code << ' ' << in_milliseconds(start) << ' '
       << in_milliseconds(Clock::time_point(Clock::duration(last_progress.load()))) << ' ' << verdict.blames.size();
  for (int const rank : verdict.blames) line << ' ' << rank;
  line << ' ' << verdict.text;
  self.say(line.str());
  return verdict.code == "ok";
}

int end_with_verdict(RankSelf const& self, std::function<void()> const& body) {
  say_verdict(self, "end", body);
  return 0;
}

Verdict verdict_of(RankOutcome const& outcome, std::string_view label) {
  std::istringstream lines(outcome.out);
  Verdict verdict;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    std::string name;
    words >> first >> name;
    if (first != "verdict" || name != label) continue;
    std::size_t blames = 0;
    words >> verdict.code >> verdict.milliseconds >> verdict.last_milliseconds >> blames;
    verdict.blames.resize(blames);
    for (auto& rank : verdict.blames) words >> rank;
    words.get();
    std::getline(words, verdict.text);
  }
  return verdict;
}

Verdict expect_one_verdict(JobOutcome const& job, std::vector<int> const& victims, std::string_view label,
                           std::chrono::milliseconds timeout) {
  EXPECT_FALSE(job.timed_out) << job.text();
  EXPECT_TRUE(job.leaks.empty()) << job.text();
  Verdict common;
  bool first = true;
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    if (std::find(victims.begin(), victims.end(), static_cast<int>(rank)) != victims.end()) continue;
    EXPECT_TRUE(job.ranks[rank].ok()) << "rank " << rank << "\n" << job.text();
    auto const verdict = verdict_of(job.ranks[rank], label);
    if (std::exchange(first, false)) common = verdict;
    EXPECT_LE(std::chrono::milliseconds(verdict.last_milliseconds), timeout + allowance) << "rank " << rank << "\n"
                                                                                         << job.text();
    EXPECT_TRUE(verdict.same(common)) << "rank " << rank << " got another verdict\n" << job.text();
  }
  EXPECT_FALSE(common.code.empty()) << "no verdict \"" << label << "\"\n" << job.text();
  return common;
}

void expect_death_is_told(JobOutcome const& job, int victim, std::string_view label) {
  auto const verdict = expect_one_verdict(job, {victim}, label);
  EXPECT_EQ(verdict.code, "peer_lost") << job.text();
  EXPECT_TRUE(verdict.blames_only(victim)) << job.text();
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    if (static_cast<int>(rank) == victim) continue;
    auto const milliseconds = verdict_of(job.ranks[rank], label).last_milliseconds;
    std::cout << "rank " << rank << " learned of the death after " << milliseconds << " ms\n";
    EXPECT_LE(milliseconds, death_limit.count()) << "rank " << rank << "\n" << job.text();
  }
}

ConnectOptions fault_options(std::chrono::milliseconds timeout) {
  return {.timeout = timeout, .connect_timeout = step_timeout, .arena_cap = std::uint64_t{64} << 20};
}

}  // namespace crossrank::test
