#include "tools/inspect/inspect_job.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "lib/node/inspect/find_jobs.hpp"
#include "lib/node/inspect/job_view.hpp"
#include "lib/core/text/rank_list.hpp"
#include "tools/inspect/inspect_rendezvous.hpp"

namespace crossrank::tools {
namespace {

using node::DeviceOperationView;
using node::GroupView;
using node::JobView;
using node::OperationState;
using node::OperationView;
using node::QueueView;
using node::RankStatus;
using node::RankView;

/// A job, and where it was found.
struct Shown {
  JobView view;
  std::string where;
};

char const* to_string(RankStatus status) {
  switch (status) {
    case RankStatus::absent: return "absent";
    case RankStatus::alive: return "alive";
    case RankStatus::stopped: return "stopped";
    case RankStatus::blocked: return "blocked";
    case RankStatus::dead: return "dead";
    case RankStatus::left: return "left";
  }
  return "unknown";
}

char const* to_string(OperationState state) {
  switch (state) {
    case OperationState::done: return "done";
    case OperationState::waiting: return "waiting";
    case OperationState::failed: return "failed";
    case OperationState::unknown: return "ended";
  }
  return "unknown";
}

char const* to_string(node::Verdict verdict) {
  switch (verdict) {
    case node::Verdict::lost: return "a rank was lost";
    case node::Verdict::timeout: return "timeout";
    case node::Verdict::mismatch: return "the ranks disagreed";
    case node::Verdict::aborted: return "aborted";
    case node::Verdict::pass:
    case node::Verdict::pass_failed: break;
  }
  return "unknown";
}

std::string seconds(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", value);
  return text.data();
}

std::string group_name(std::string const& name, std::uint32_t block) {
  return name.empty() ? "#" + std::to_string(block) : "\"" + terminal_text(name) + "\"";
}

char const* ago(JobView const& job) { return job.running ? " ago" : " before the end"; }

bool is_message(OperationView const& operation) {
  auto const op_kind = operation.op_kind;
  return operation.peer || op_kind == spi::OpKind::recv_any || op_kind == spi::OpKind::enqueue ||
         op_kind == spi::OpKind::dequeue;
}

std::string handle(std::uint64_t value) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%" PRIx64, value);
  return text.data();
}

void print_device_operation(JobView const& job, DeviceOperationView const& operation) {
  std::printf("            %-8s %s", to_string(operation.stage), terminal_text(operation.name).c_str());
  if (operation.root)
    std::printf(" %s rank %d", operation.path == node::DevicePath::message ? "with" : "of root", *operation.root);
  std::printf(" on cuda:%d, %s call %" PRIu64 " in %s of %d ranks, %" PRIu64 " bytes, stream %s", operation.device,
              to_string(operation.path), operation.sequence, group_name(operation.group, operation.block).c_str(),
              operation.group_ranks, operation.bytes, handle(operation.stream).c_str());
  if (operation.communicator != 0) std::printf(", communicator %s", handle(operation.communicator).c_str());
  std::printf(", called %s%s", seconds(operation.age).c_str(), ago(job));
  if (operation.started_age) std::printf(", started %s%s", seconds(*operation.started_age).c_str(), ago(job));
  if (operation.ended_age) std::printf(", ended %s%s", seconds(*operation.ended_age).c_str(), ago(job));
  std::printf("\n");
}

void print_rank(JobView const& job, RankView const& rank, std::size_t last) {
  std::printf("  %-7s rank %d", to_string(rank.status), rank.rank);
  if (rank.status == RankStatus::absent) {
    std::printf("   not connected yet\n");
    return;
  }
  bool const ended = rank.status == RankStatus::dead || rank.status == RankStatus::left;
  std::printf("   pid %d, %s%s%s", rank.pid, ended ? "ended " : "last progress ", seconds(rank.since).c_str(),
              ago(job));
  if (rank.in_user_code) std::printf(", in the caller's code");
  if (!rank.waits_for.empty()) std::printf(", waits for %s", name_ranks(rank.waits_for).c_str());
  if (!rank.exit_reason.empty()) std::printf(": %s", terminal_text(rank.exit_reason).c_str());
  std::printf("\n");
  auto const count = std::min(rank.operations.size(), last);
  for (auto i = rank.operations.size() - count; i < rank.operations.size(); ++i) {
    auto const& operation = rank.operations[i];
    std::printf("            %-7s %s", to_string(operation.state), spi::to_string(operation.op_kind));
    if (operation.peer)
      std::printf(" %s rank %d", operation.op_kind == spi::OpKind::send ? "to" : "from", *operation.peer);
    std::printf(" %s %" PRIu64 " in %s, %" PRIu64 " bytes, %s%s\n", is_message(operation) ? "number" : "round",
                operation.round, group_name(operation.group, operation.block).c_str(), operation.bytes,
                seconds(operation.age).c_str(), ago(job));
  }
  auto const on_devices = std::min(rank.device_operations.size(), last);
  for (auto i = rank.device_operations.size() - on_devices; i < rank.device_operations.size(); ++i)
    print_device_operation(job, rank.device_operations[i]);
}

void print_device_call(GroupView const& group) {
  if (!group.device_call) return;
  auto const& call = *group.device_call;
  std::printf("  group %s on its GPUs: %s (%s call %" PRIu64 ")", group_name(group.name, group.block).c_str(),
              terminal_text(call.name).c_str(), to_string(call.path), call.sequence);
  auto const print = [](char const* what, std::vector<int> const& ranks) {
    if (!ranks.empty()) std::printf("; %s: %s", what, name_ranks(ranks).c_str());
  };
  print("started", call.started);
  print("enqueued", call.enqueued);
  print("ended", call.ended);
  print("not enqueued", call.missing);
  print("another call", call.different);
  std::printf("\n");
}

void print_group(GroupView const& group) {
  if (group.round == 0) return;
  std::printf("  group %s (%s): ", group_name(group.name, group.block).c_str(), name_ranks(group.ranks).c_str());
  if (group.failure) {
    std::printf("failed in round %" PRIu64 " (%s): %s; decided by rank %d\n", group.round,
                to_string(group.failure->verdict), terminal_text(group.failure->text).c_str(),
                group.failure->decided_by);
    return;
  }
  std::printf("%s round %" PRIu64 ": %s arrived", spi::to_string(group.op_kind), group.round,
              name_ranks(group.arrived).c_str());
  if (!group.missing.empty()) std::printf(", waited for: %s", name_ranks(group.missing).c_str());
  std::printf("\n");
}

void print_queue(QueueView const& queue) {
  std::printf("  queue %s:", group_name(queue.name, queue.block).c_str());
  if (queue.writer) {
    std::printf(" rank %d has written %" PRIu64 "%s", queue.writer->rank, queue.writer->messages,
                queue.writer->asleep ? " and waits for space" : "");
  } else {
    std::printf(" the writer has left");
  }
  for (auto const& reader : queue.readers)
    std::printf("; rank %d has taken %" PRIu64 "%s", reader.rank, reader.messages,
                reader.asleep ? " and waits for more" : "");
  std::printf("\n");
}

/// Returns the ranks that others wait for and that do not wait themselves: the ranks to look at first.
std::vector<int> holders(JobView const& job) {
  std::vector<int> waited_for;
  for (auto const& rank : job.ranks) waited_for.insert(waited_for.end(), rank.waits_for.begin(), rank.waits_for.end());
  std::vector<int> found;
  for (auto const& rank : job.ranks) {
    bool const is_waited_for = std::find(waited_for.begin(), waited_for.end(), rank.rank) != waited_for.end();
    if (is_waited_for && rank.waits_for.empty()) found.push_back(rank.rank);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void print_job(Shown const& shown, std::size_t last) {
  auto const& job = shown.view;
  std::printf("job %s on %s: %d ranks here, %s (%s)\n", job.job.empty() ? "(no id)" : terminal_text(job.job).c_str(),
              terminal_text(job.host).c_str(), job.ranks_here, job.running ? "running" : "ended",
              terminal_text(shown.where).c_str());
  if (auto const first = holders(job); !first.empty())
    std::printf("  look first at %s: waited for by other ranks, but not waiting\n", name_ranks(first).c_str());
  for (auto const& rank : job.ranks) print_rank(job, rank, last);
  for (auto const& group : job.groups) print_group(group);
  for (auto const& group : job.groups) print_device_call(group);
  for (auto const& queue : job.queues) print_queue(queue);
}

Json to_json(OperationView const& operation) {
  Json out{{"name", spi::to_string(operation.op_kind)},
           {"group", operation.group},
           {"block", operation.block},
           {"round", operation.round},
           {"bytes", operation.bytes},
           {"state", to_string(operation.state)},
           {"age_s", operation.age}};
  if (operation.peer) out["peer"] = *operation.peer;
  return out;
}

Json to_json(DeviceOperationView const& operation) {
  Json out{{"name", operation.name},
           {"path", to_string(operation.path)},
           {"group", operation.group},
           {"block", operation.block},
           {"group_ranks", operation.group_ranks},
           {"sequence", operation.sequence},
           {"bytes", operation.bytes},
           {"device", operation.device},
           {"stream", handle(operation.stream)},
           {"communicator", handle(operation.communicator)},
           {"stage", to_string(operation.stage)},
           {"age_s", operation.age}};
  if (operation.root) out["root"] = *operation.root;
  if (operation.started_age) out["started_age_s"] = *operation.started_age;
  if (operation.ended_age) out["ended_age_s"] = *operation.ended_age;
  return out;
}

Json to_json(node::DeviceCallView const& call) {
  return {{"name", call.name},       {"path", to_string(call.path)}, {"sequence", call.sequence},
          {"started", call.started}, {"enqueued", call.enqueued},    {"ended", call.ended},
          {"missing", call.missing}, {"different", call.different}};
}

template <class View>
Json last_as_json(std::vector<View> const& all, std::size_t last) {
  auto out = Json::array();
  for (auto i = all.size() - std::min(all.size(), last); i < all.size(); ++i) out.push_back(to_json(all[i]));
  return out;
}

Json to_json(RankView const& rank, std::size_t last) {
  return {{"rank", rank.rank},
          {"pid", rank.pid},
          {"status", to_string(rank.status)},
          {"since_s", rank.since},
          {"in_user_code", rank.in_user_code},
          {"exit_reason", rank.exit_reason},
          {"waits_for", rank.waits_for},
          {"operations", last_as_json(rank.operations, last)},
          {"device_operations", last_as_json(rank.device_operations, last)}};
}

Json to_json(GroupView const& group) {
  Json out{{"name", group.name},
           {"block", group.block},
           {"ranks", group.ranks},
           {"round", group.round},
           {"op_kind", spi::to_string(group.op_kind)},
           {"arrived", group.arrived},
           {"missing", group.missing}};
  if (group.device_call) out["device_call"] = to_json(*group.device_call);
  if (group.failure) {
    out["failure"] = {{"verdict", to_string(group.failure->verdict)},
                      {"text", group.failure->text},
                      {"blamed", group.failure->blamed},
                      {"decided_by", group.failure->decided_by}};
  }
  return out;
}

Json to_json(QueueView::Endpoint const& endpoint) {
  return {{"rank", endpoint.rank}, {"messages", endpoint.messages}, {"asleep", endpoint.asleep}};
}

Json to_json(QueueView const& queue) {
  auto readers = Json::array();
  for (auto const& reader : queue.readers) readers.push_back(to_json(reader));
  return {{"name", queue.name},
          {"block", queue.block},
          {"writer", queue.writer ? to_json(*queue.writer) : Json()},
          {"readers", std::move(readers)}};
}

Json to_json(Shown const& shown, std::size_t last) {
  auto const& job = shown.view;
  Json out{{"job", job.job},
           {"host", job.host},
           {"nonce", job.nonce},
           {"where", shown.where},
           {"running", job.running},
           {"ranks_here", job.ranks_here},
           {"look_first_at", holders(job)}};
  for (auto const* name : {"ranks", "groups", "queues"}) out[name] = Json::array();
  for (auto const& rank : job.ranks) out["ranks"].push_back(to_json(rank, last));
  for (auto const& group : job.groups) out["groups"].push_back(to_json(group));
  for (auto const& queue : job.queues) out["queues"].push_back(to_json(queue));
  return out;
}

void collect(std::vector<node::FoundJob> const& found, InspectJobRequest const& request, std::vector<Shown>& jobs) {
  for (auto const& job : found) {
    try {
      auto view = node::view_job(job.control());
      bool const known =
          std::any_of(jobs.begin(), jobs.end(), [&](Shown const& s) { return s.view.nonce == view.nonce; });
      if (known || (request.job && view.job != *request.job)) continue;
      jobs.push_back({std::move(view), job.where});
    } catch (FormatError const& e) {
      std::fprintf(stderr, "crossrank inspect: %s: %s\n", terminal_text(job.where).c_str(), e.what());
    }
  }
}

/// Prints one JSON object, even when there is no job.
void print_report(std::vector<Shown> const& jobs, std::vector<node::PendingRendezvousView> const& pending_rendezvous,
                  std::size_t last) {
  bool const found = !jobs.empty() || !pending_rendezvous.empty();
  Json out{{"command", "inspect"}, {"ok", found}, {"exit_code", found ? 0 : 1}, {"jobs", Json::array()}};
  for (auto const& job : jobs) out["jobs"].push_back(to_json(job, last));
  for (auto const& rendezvous : pending_rendezvous) out["jobs"].push_back(tools::to_json(rendezvous));
  // Replaces bytes of shared memory that are not UTF-8; they must not abort the report.
  std::printf("%s\n", out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace

int inspect_jobs(InspectJobRequest const& request) {
  std::vector<Shown> jobs;
  if (request.directory && !request.pid) {
    auto const records = node::find_flight_records(*request.directory);
    if (records.empty()) {
      std::fprintf(stderr, "crossrank inspect: there are no flight records in %s\n",
                   terminal_text(request.directory->string()).c_str());
    }
    collect(records, request, jobs);
  }
  collect(node::find_running_jobs(request.pid), request, jobs);
  auto pending_rendezvous = node::find_pending_rendezvous(request.pid);
  if (request.job)
    std::erase_if(pending_rendezvous, [&](auto const& rendezvous) { return rendezvous.job != *request.job; });
  if (request.json) {
    print_report(jobs, pending_rendezvous, request.last);
  } else {
    for (auto const& job : jobs) print_job(job, request.last);
    for (auto const& rendezvous : pending_rendezvous) print_pending_rendezvous(rendezvous);
  }
  if (!jobs.empty() || !pending_rendezvous.empty()) return 0;
  std::fprintf(stderr, "crossrank inspect: this user has no %s on this machine\n",
               request.job || request.pid || request.directory ? "such job" : "running job");
  return 1;
}

}  // namespace crossrank::tools
