#include "tools/inspect_lobby.hpp"

#include <cstdio>
#include <string>

#include "lib/core/terminal_text.hpp"
#include "lib/node/rank_list.hpp"

namespace crossrank::tools {
namespace {

using node::LobbyView;
using node::ProcessState;

char const* life_of(LobbyView::Arrived const& rank) {
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

void print_lobby(LobbyView const& lobby) {
  std::printf("job %s on %s: %d ranks here, waits in connect() for %zu of them (%s)\n",
              lobby.job.empty() ? "(no id)" : terminal_text(lobby.job).c_str(), terminal_text(lobby.host).c_str(),
              lobby.ranks, lobby.missing.size(), terminal_text(lobby.where).c_str());
  if (!lobby.missing.empty()) {
    std::printf("  missing: %s; waited for %.1f s of %.1f s\n", node::compress(lobby.missing).c_str(), lobby.waiting,
                lobby.timeout);
  }
  for (auto const& rank : lobby.arrived) std::printf("  %-10s rank %d   pid %d\n", life_of(rank), rank.rank, rank.pid);
}

Json to_json(LobbyView const& lobby) {
  Json out{{"job", lobby.job},           {"host", lobby.host},
           {"where", lobby.where},       {"running", true},
           {"connecting", true},         {"ranks_here", lobby.ranks},
           {"missing", lobby.missing},   {"waiting_s", lobby.waiting},
           {"timeout_s", lobby.timeout}, {"look_first_at", lobby.missing}};
  for (auto const* name : {"ranks", "groups", "queues"}) out[name] = Json::array();
  for (auto const& rank : lobby.arrived)
    out["ranks"].push_back({{"rank", rank.rank}, {"pid", rank.pid}, {"life", life_of(rank)}});
  for (int const rank : lobby.missing) out["ranks"].push_back({{"rank", rank}, {"pid", nullptr}, {"life", "absent"}});
  return out;
}

}  // namespace crossrank::tools
