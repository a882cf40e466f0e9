#include "collectives/nccl/agreement.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "collectives/nccl/rank_records.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/environment.hpp"
#include "lib/core/log.hpp"
#include "lib/core/rank_list.hpp"
#include "lib/platform/random.hpp"

namespace crossrank::nccl {
namespace {

constexpr char const* agreement_operation = "make a communicator";
// Keeps these operations apart from the comparison of a call.
constexpr std::uint64_t agreement_mark = 0x6e63'636c'6167;

/// The choice and the equipment of a rank, as it tells the others.
struct Offer {
  enum class Choice : std::uint32_t { automatic, nccl, staged };
  Choice choice = Choice::automatic;  ///< its `CROSSRANK_DEVICE`
  std::int32_t version = 0;           ///< of its NCCL; 0 for none
  std::uint64_t is_capturing = 0;     ///< 1: a graph is being captured from its stream
  std::uint64_t process = 0;          ///< a random number of its process
  RecordText gpu{};                   ///< identity of its GPU
  RecordText lacks{};                 ///< why it has no NCCL
};

/// How a rank's part of the work has ended.
struct Report {
  enum class Outcome : std::uint32_t { failed, stopped, joined };
  Outcome outcome = Outcome::failed;  ///< `stopped`: because of another rank
  RecordText failure{};
};

/// First version of NCCL whose ranks in one process do not write straight into the tensors of each other.
constexpr int first_version_for_threads = 22300;

/// Returns a number that no other process has.
std::uint64_t process_number() {
  // A child after `fork` has no CUDA, so it needs no number of its own.
  static std::uint64_t const number = platform::random_number(agreement_operation);
  return number;
}

/// Returns whether a graph is being captured. A GPU that cannot be opened captures nothing.
bool is_capturing(Stream const& stream) {
  try {
    return stream.is_capturing();
  } catch (Error const&) {
    return false;
  }
}

Offer own_offer(Stream const& stream) {
  Offer mine;
  if (is_capturing(stream)) {
    mine.is_capturing = 1;
    return mine;
  }
  if (auto const forced = environment().device_transport)
    mine.choice = *forced == DeviceTransport::nccl ? Offer::Choice::nccl : Offer::Choice::staged;
  if (mine.choice == Offer::Choice::staged) return mine;
  try {
    mine.process = process_number();
    mine.gpu = record_text(cuda::device_info(stream.device()).uuid);
  } catch (Error const& e) {  // the other ranks wait for the offer
    mine.lacks = record_text(e.what());
    return mine;
  }
  try {
    mine.version = nccl_library().version;
  } catch (UnavailableError const& e) {
    mine.lacks = record_text(e.info().message + (e.info().system.empty() ? "" : ": " + e.info().system));
  }
  return mine;
}

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

/// Throws the same error on all ranks when a rank captures a graph.
void require_no_capture(std::vector<Offer> const& offers, spi::Transport const& transport) {
  ErrorInfo info{.operation = agreement_operation,
                 .message =
                     "the first collective of a group on GPU tensors cannot be captured, because it makes the "
                     "communicator",
                 .hint = "make a call before the capture, or capture inside GroupCoordinator::graph_capture",
                 .group = transport.name(),
                 .rank = transport.rank(),
                 .world_size = transport.world_size()};
  for (std::size_t r = 0; r < offers.size(); ++r) {
    if (offers[r].is_capturing != 0) info.failed_ranks.push_back(static_cast<int>(r));
  }
  if (info.failed_ranks.empty()) return;
  info.got = "a capture on " + name_ranks(info.failed_ranks);
  throw UsageError(std::move(info));
}

/// Returns why the group cannot use NCCL, the same text on all ranks, or nothing.
std::optional<std::string> objection(std::vector<Offer> const& offers) {
  for (std::size_t r = 0; r < offers.size(); ++r) {
    auto const& offer = offers[r];
    if (offer.choice == Offer::Choice::staged) return rank_text(r) + " has CROSSRANK_DEVICE=staged";
    if (offer.version == 0) return rank_text(r) + " cannot use NCCL: " + string_of(offer.lacks);
    if (offer.version != offers.front().version) {
      return rank_text(r) + " has NCCL " + version_text(offer.version) + ", and rank 0 has " +
             version_text(offers.front().version);
    }
    if (offer.gpu.front() == '\0') return "the driver of " + rank_text(r) + " does not identify GPUs";
    for (std::size_t other = 0; other < r; ++other) {
      if (offers[other].gpu == offer.gpu)
        return rank_text(other) + " and " + rank_text(r) + " use the same GPU, " + string_of(offer.gpu);
      // Only its own GPU can access the memory of a pool of the library.
      if (offers[other].process == offer.process && offer.version < first_version_for_threads) {
        return rank_text(other) + " and " + rank_text(r) + " are threads of one process, where NCCL " +
               version_text(offer.version) + " needs memory that all GPUs can access (" +
               version_text(first_version_for_threads) + " does not)";
      }
    }
  }
  return {};
}

/// Sends the first rank's id to all. Returns nothing when that rank could not draw one, with the reason in `report`.
std::optional<api::UniqueId> share_id(spi::Transport& transport, Report& report,
                                      spi::TimeoutPolicy const& timeout_policy) {
  struct Drawn {
    std::uint32_t succeeded = 0;
    api::UniqueId id{};
  } drawn;
  if (transport.rank() == 0) {
    try {
      drawn = {.succeeded = 1, .id = Communicator::draw_id()};
    } catch (Error const& e) {
      report.failure = record_text(e.what());
    }
  }
  transport.wait(transport.post_broadcast({spi::OpKind::check, agreement_mark},
                                          {.bytes = std::as_writable_bytes(std::span(&drawn, 1))}, 0),
                 timeout_policy);
  if (drawn.succeeded != 0) return drawn.id;
  if (transport.rank() != 0) report.outcome = Report::Outcome::stopped;
  return {};
}

/// Makes a group of the same ranks for the watchdog. Returns null, on all ranks, when their node has no space for it.
std::unique_ptr<NcclWatchdog> make_watchdog(spi::Transport& transport, Report& report,
                                            spi::TimeoutPolicy const& timeout_policy) {
  auto all = all_ranks(transport.world_size());
  try {
    return std::make_unique<NcclWatchdog>(
        transport.split({spi::OpKind::split, agreement_mark}, all, transport.name() + "/nccl", timeout_policy),
        transport.name(), timeout_policy.timeout);
  } catch (UnavailableError const& e) {
    report.failure = record_text(e.what());
    return nullptr;
  }
}

std::unique_ptr<Communicator> join(spi::Transport const& transport, Device device, api::UniqueId const& id,
                                   NcclWatchdog& watchdog, Report& report, spi::TimeoutPolicy const& timeout_policy) {
  std::unique_ptr<Communicator> made;
  try {
    made = std::make_unique<Communicator>(
        id, Communicator::Place{.device = device, .rank = transport.rank(), .ranks = transport.world_size()},
        timeout_policy.timeout, [&watchdog] { watchdog.poll(); });
    watchdog.start(*made);
    report.outcome = Report::Outcome::joined;
    return made;
  } catch (PeerLostError const& e) {  // another rank has given up or died
    report = {.outcome = Report::Outcome::stopped, .failure = record_text(e.what())};
  } catch (Error const& e) {
    report.failure = record_text(e.what());
    watchdog.abort(e.what());
  }
  if (made) made->abort();
  return nullptr;
}

/// Returns the first rank that failed by itself, else the first one that failed.
std::optional<std::size_t> first_failure(std::vector<Report> const& reports) {
  for (auto const outcome : {Report::Outcome::failed, Report::Outcome::stopped}) {
    auto const found =
        std::find_if(reports.begin(), reports.end(), [&](auto const& report) { return report.outcome == outcome; });
    if (found != reports.end()) return as_size(found - reports.begin());
  }
  return {};
}

/// Ends an agreement without NCCL.
void settle_for_staged(spi::Transport const& transport, std::vector<Offer> const& offers, std::string const& why) {
  auto const wants = [](Offer const& offer) { return offer.choice == Offer::Choice::nccl; };
  if (std::any_of(offers.begin(), offers.end(), wants)) {
    throw UnavailableError({.operation = agreement_operation,
                            .message = "NCCL cannot carry the collectives of this group: " + why,
                            .hint = "install the same NCCL for all ranks, give each rank its own GPU, or unset "
                                    "CROSSRANK_DEVICE",
                            .group = transport.name(),
                            .rank = transport.rank(),
                            .world_size = transport.world_size()});
  }
  bool const is_chosen =
      std::any_of(offers.begin(), offers.end(), [](auto const& o) { return o.choice == Offer::Choice::staged; });
  bool const is_expected = std::none_of(offers.begin(), offers.end(), [](auto const& o) { return o.version != 0; });
  if (transport.rank() != 0) return;
  log_event(is_chosen || is_expected ? LogLevel::debug : LogLevel::warning,
            "collectives on GPU tensors go through host memory", {{"group", transport.name()}, {"reason", why}});
}

}  // namespace

std::shared_ptr<NcclGroup> agree_on_communicator(spi::Transport& transport, Stream const& stream,
                                                 spi::TimeoutPolicy const& timeout_policy) {
  auto const offers = gather_records(transport, agreement_mark, own_offer(stream), timeout_policy);
  require_no_capture(offers, transport);
  if (auto const why = objection(offers)) {
    settle_for_staged(transport, offers, *why);
    return nullptr;
  }
  Report report;
  std::unique_ptr<Communicator> communicator;
  auto watchdog = make_watchdog(transport, report, timeout_policy);
  auto const id = watchdog ? share_id(transport, report, timeout_policy) : std::nullopt;
  if (id) communicator = join(transport, stream.device(), *id, *watchdog, report, timeout_policy);
  if (auto const reports = gather_records(transport, agreement_mark, report, timeout_policy);
      auto const r = first_failure(reports)) {
    watchdog.reset();  // its thread uses the communicator
    if (communicator) communicator->abort();
    settle_for_staged(transport, offers, "on " + rank_text(*r) + " " + string_of(reports[*r].failure));
    return nullptr;
  }
  return std::make_shared<NcclGroup>(transport.name(), std::move(communicator), std::move(watchdog),
                                     node::DeviceRecorder(transport.node_memory(), transport.global_ranks()));
}

}  // namespace crossrank::nccl
