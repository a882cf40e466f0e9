#include "lib/node/rendezvous/start_errors.hpp"

#include <tuple>
#include <utility>

#include <unistd.h>

#include "lib/core/text/rank_list.hpp"
#include "lib/platform/format_duration.hpp"

namespace crossrank::node {
namespace {

constexpr char const* stopped_or_overloaded =
    "look at what is there: a process that is stopped, or a machine that is overloaded";
constexpr char const* another_job = "another job may use this id: give each job its own CROSSRANK_JOB_ID";

std::string process(int rank, std::int64_t pid) {
  return "rank " + std::to_string(rank) + (pid > 0 ? " (pid " + std::to_string(pid) + ")" : "");
}

std::string named(std::vector<int> const& ranks, std::int64_t pid = 0) {
  return ranks.size() == 1 ? process(ranks.front(), pid) : name_ranks(ranks);
}

ErrorInfo info_of(NodeOptions const& options, std::string message, std::vector<int> blamed) {
  return {.operation = "connect",
          .message = std::move(message),
          .resource = options.key.text(),
          .rank = options.rank,
          .world_size = options.ranks,
          .failed_ranks = std::move(blamed),
          .group_usable = false};
}

}  // namespace

UsageError duplicate_rank_error(NodeOptions const& options, int rank, std::int64_t known_pid, std::int64_t pid) {
  auto info = info_of(options, "rank " + std::to_string(rank) + " connected twice", {rank});
  info.expected = "one process for each rank";
  info.got = "pid " + std::to_string(known_pid) + " and pid " + std::to_string(pid);
  info.hint = std::string("give each process its own RANK; ") + another_job;
  return UsageError(std::move(info));
}

MismatchError incompatible_rank_error(NodeOptions const& options, Frame const& hello, std::string const& host_id) {
  auto const pair = [&](std::string const& own, std::string const& other) {
    return std::pair{own + " (rank " + std::to_string(options.rank) + ")",
                     other + " (rank " + std::to_string(hello.rank) + ")"};
  };
  auto info = info_of(options, "", {});
  if (hello.layout != layout_version) {
    info.message = "the ranks are built from different versions of crossrank";
    std::tie(info.expected, info.got) =
        pair("layout " + std::to_string(layout_version), "layout " + std::to_string(hello.layout));
    info.hint = "run one version on all ranks";
  } else if (hello.ranks != options.ranks) {
    info.message = "the ranks expect different numbers of ranks on this node";
    std::tie(info.expected, info.got) = pair(std::to_string(options.ranks), std::to_string(hello.ranks));
    info.hint = std::string("start all ranks from one launcher, with one WORLD_SIZE; ") + another_job;
  } else {
    auto const shown = [](std::string const& id) { return id.empty() ? std::string("none") : "\"" + id + "\""; };
    info.message = "the ranks declare different hosts by CROSSRANK_HOST_ID, but shared memory serves one node";
    std::tie(info.expected, info.got) = pair(shown(options.host_id), shown(host_id));
    info.hint = "start with mpirun, which serves several nodes, or declare one host on all ranks";
  }
  info.failed_ranks = {options.rank};
  if (hello.rank >= 0 && hello.rank < max_ranks && hello.rank != options.rank) info.failed_ranks.push_back(hello.rank);
  return MismatchError(std::move(info));
}

MismatchError protocol_error(NodeOptions const& options, int rank, std::string expected, std::string got) {
  auto info = info_of(options, "rank " + std::to_string(rank) + " does not follow the rendezvous", {rank});
  info.expected = std::move(expected);
  info.got = std::move(got);
  return MismatchError(std::move(info));
}

PeerLostError lost_while_connecting_error(NodeOptions const& options, std::vector<int> const& ranks, std::int64_t pid,
                                          std::string const& how) {
  auto info = info_of(
      options, named(ranks, pid) + " ended before all ranks had connected" + (how.empty() ? "" : ": " + how), ranks);
  info.hint = ranks.size() == 1 ? "look at the output of that rank" : "look at the output of those ranks";
  return PeerLostError(std::move(info));
}

PeerLostError lost_before_connecting_error(NodeOptions const& options, std::vector<LauncherMessage> const& ended) {
  std::vector<int> ranks;
  std::string text;
  for (auto const& one : ended) {
    ranks.push_back(one.rank);
    text += (text.empty() ? "" : "; ") + process(one.rank, one.pid) + ": " + describe_status(one.status) + " after " +
            std::to_string(one.after_ms) + " ms";
  }
  auto info = info_of(options, named(ranks) + " ended before connect: " + text, ranks);
  info.hint = "every rank must call connect(); look at the output of the ranks that ended";
  return PeerLostError(std::move(info));
}

TimeoutError missing_ranks_error(NodeOptions const& options, std::vector<int> const& missing, std::size_t came,
                                 std::optional<std::pair<int, std::int64_t>> const& duplicate) {
  auto info = info_of(
      options, named(missing) + " did not connect within " + platform::format_milliseconds(options.timeout), missing);
  info.expected = std::to_string(options.ranks) + " ranks";
  info.got = std::to_string(came);
  info.hint =
      "check that all ranks start, with one job id, MASTER_ADDR and MASTER_PORT; raise CROSSRANK_CONNECT_TIMEOUT if "
      "they start far apart";
  if (duplicate) {
    info.got += ", and a second process for " + process(duplicate->first, duplicate->second) + ", which was refused";
    info.hint = "give each process its own RANK";
  }
  return TimeoutError(std::move(info));
}

TimeoutError unresponsive_ranks_error(NodeOptions const& options, std::vector<int> const& ranks, std::int64_t pid) {
  auto info = info_of(
      options, named(ranks, pid) + " came, but did not answer within " + platform::format_milliseconds(options.timeout),
      ranks);
  info.hint = stopped_or_overloaded;
  return TimeoutError(std::move(info));
}

TimeoutError slow_server_error(NodeOptions const& options) {
  auto info =
      info_of(options,
              process(options.rank, ::getpid()) + " was stopped or too slow: it did not answer the other ranks " +
                  "within " + platform::format_milliseconds(options.timeout),
              {options.rank});
  info.hint = stopped_or_overloaded;
  return TimeoutError(std::move(info));
}

StartFailure start_failure_of(NodeOptions const& options, Error const& error) {
  auto const failed = error.failed_ranks();
  return {.code = error.code(), .rank = failed.empty() ? options.rank : failed.front(), .ranks = options.ranks};
}

Error given_up_error(NodeOptions const& options, StartFailure const& failure) {
  if (failure.code == ErrorCode::timeout && failure.rank == options.rank) return slow_server_error(options);
  return {failure.code, info_of(options,
                                "rank " + std::to_string(failure.rank) +
                                    " kept the others from starting: " + std::string(to_string(failure.code)),
                                {failure.rank})};
}

}  // namespace crossrank::node
