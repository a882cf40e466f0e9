#include "tools/inspect/inspect_rendezvous.hpp"

#include <cstdio>
#include <string>

#include "lib/core/text/terminal_text.hpp"
#include "lib/core/text/rank_list.hpp"

namespace crossrank::tools {
namespace {

using node::PendingRendezvousView;
using platform::ProcessState;

char const* status_of(PendingRendezvousView::Arrived const& rank) {
  switch (rank.state) {
    case ProcessState::stopped: return "stopped";
    case ProcessState::blocked: return "blocked";
    case ProcessState::gone: return "dead";
    case ProcessState::running:
    case ProcessState::unknown: break;
  }
  return "connecting";
}

}  // namespace

void print_pending_rendezvous(PendingRendezvousView const& rendezvous) {
  std::printf("job %s on %s: %d ranks here, waiting in connect() for %zu of them (%s)\n",
              rendezvous.job.empty() ? "(no id)" : terminal_text(rendezvous.job).c_str(),
              terminal_text(rendezvous.host).c_str(), rendezvous.ranks, rendezvous.missing.size(),
              terminal_text(rendezvous.where).c_str());
  if (!rendezvous.missing.empty()) {
    std::printf("  missing: %s; waited %.1f s of %.1f s\n", format_ranks(rendezvous.missing).c_str(),
                rendezvous.waiting, rendezvous.timeout);
  }
  for (auto const& rank : rendezvous.arrived)
    std::printf("  %-10s rank %d   pid %d\n", status_of(rank), rank.rank, rank.pid);
}

Json to_json(PendingRendezvousView const& rendezvous) {
  Json out{{"job", rendezvous.job},
           {"host", rendezvous.host},
           {"where", rendezvous.where},
           {"running", true},
           {"connecting", true},
           {"ranks_here", rendezvous.ranks},
           {"missing", rendezvous.missing},
           {"waiting_s", rendezvous.waiting},
           {"timeout_s", rendezvous.timeout},
           {"look_first_at", rendezvous.missing}};
  for (auto const* name : {"ranks", "groups", "queues"}) out[name] = Json::array();
  for (auto const& rank : rendezvous.arrived)
    out["ranks"].push_back({{"rank", rank.rank}, {"pid", rank.pid}, {"status", status_of(rank)}});
  for (int const rank : rendezvous.missing)
    out["ranks"].push_back({{"rank", rank}, {"pid", nullptr}, {"status", "absent"}});
  return out;
}

}  // namespace crossrank::tools
