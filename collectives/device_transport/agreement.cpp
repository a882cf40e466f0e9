#include "collectives/device_transport/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "collectives/device_transport/call_gate.hpp"
#include "collectives/device_transport/call_table.hpp"
#include "collectives/device_transport/device_transports.hpp"
#include "collectives/device_transport/device_use.hpp"
#include "collectives/device_transport/rank_records.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/environment.hpp"
#include "lib/core/log.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/node/group/group.hpp"

namespace crossrank::device {
namespace {

using Factory = spi::DeviceTransportFactory;

constexpr char const* agreement_operation = "make a communicator";
// Keeps these operations apart from the comparison of a call.
constexpr std::uint64_t agreement_mark = 0x6e63'636c'6167;

/// A name of a factory in a record.
using Name = std::array<char, 24>;

Name name_record(std::string_view from) {
  Name name{};
  from.copy(name.data(), name.size() - 1);
  return name;
}

/// The choice and capabilities of a rank, as sent to the other ranks.
struct Offer {
  enum class Choice : std::uint32_t { automatic, by_name, staged };
  Choice choice = Choice::automatic;  ///< its `CROSSRANK_DEVICE`
  std::uint32_t is_usable = 0;        ///< 1: the rank has made its offer of the transport
  std::uint64_t is_capturing = 0;     ///< 1: a graph is being captured from its stream
  std::uint32_t has_kernels = 0;      ///< 1: its device runs the library's kernels
  std::uint32_t notes_calls = 0;      ///< 1: it can compare calls by a `CallTable`, and its check level asks for that
  Name name{};                        ///< of the transport that it prefers
  Name title{};
  spi::DeviceTransportOffer capabilities{};
  DeviceUse use{};
  RecordText lacks{};  ///< why it cannot use the transport
};

/// How a rank's part of the work has ended.
struct Report {
  enum class Outcome : std::uint32_t { failed, stopped, joined };
  Outcome outcome = Outcome::failed;  ///< `stopped`: because of another rank
  CallTable::Row row{};               ///< of the call table
  RecordError failure{};
};

/// Returns whether a graph is being captured. A GPU that cannot be opened captures nothing.
bool is_capturing(Stream const& stream) {
  try {
    return stream.is_capturing();
  } catch (Error const&) {
    return false;
  }
}

/// Completes the offer with a transport. The other ranks wait for it, so that nothing is thrown.
void offer_transport(Offer& mine, Factory& factory, Device device) {
  mine.name = name_record(factory.name());
  mine.title = name_record(factory.title());
  try {
    mine.capabilities = factory.offer(device);
    mine.has_kernels = spi::device_provider(device.kind).has_kernels(device) ? 1 : 0;
    mine.is_usable = 1;
  } catch (UnavailableError const& e) {
    auto const& info = e.info();
    mine.lacks = record_text(info.message + (info.system.empty() ? "" : ": " + info.system) +
                             (info.got.empty() ? "" : ", got " + info.got));
  } catch (std::exception const& e) {
    mine.lacks = record_text(e.what());
  }
}

/// This rank's offer, and the factory that it is of; null for none.
struct OwnOffer {
  Offer offer{};
  std::shared_ptr<Factory> factory{};
};

OwnOffer own_offer(Stream const& stream) {
  OwnOffer mine;
  if (is_capturing(stream)) {
    mine.offer.is_capturing = 1;
    return mine;
  }
  mine.offer.use = device_use(stream.device());
  auto const& wanted = environment().device_transport;
  if (wanted == "staged") {
    mine.offer.choice = Offer::Choice::staged;
    return mine;
  }
  auto factories = device_transports(stream.device().kind);
  mine.offer.title = name_record("a device transport");
  mine.offer.lacks = record_text("the process has none for " + to_string(stream.device()));
  if (!wanted.empty()) {
    mine.offer.choice = Offer::Choice::by_name;
    mine.offer.name = mine.offer.title = name_record(wanted);
    mine.offer.lacks = record_text("the process has no transport of this name");
    std::erase_if(factories, [&](auto const& factory) { return factory->name() != wanted; });
  }
  std::optional<Offer> first;
  for (auto& factory : factories) {
    auto offer = mine.offer;
    offer_transport(offer, *factory, stream.device());
    if (offer.is_usable != 0) return {.offer = offer, .factory = std::move(factory)};
    if (!first) first = offer;  // says why the best one is missing
  }
  if (first) mine.offer = *first;
  return mine;
}

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

/// Throws the same error on all ranks when a rank captures a graph.
void require_no_capture(std::vector<Offer> const& offers, spi::Transport const& transport) {
  auto info = error_in(
      transport, {.operation = agreement_operation,
                  .message = "the first collective of a group on GPU tensors cannot be captured, because it makes the "
                             "communicator",
                  .hint = "make a call before the capture, or capture inside GroupCoordinator::graph_capture"});
  for (std::size_t r = 0; r < offers.size(); ++r) {
    if (offers[r].is_capturing != 0) info.failed_ranks.push_back(static_cast<int>(r));
  }
  if (info.failed_ranks.empty()) return;
  info.got = "a capture on " + name_ranks(info.failed_ranks);
  throw UsageError(std::move(info));
}

/// Returns why the ranks have no transport in common, the same text on all ranks, or nothing.
std::optional<std::string> objection(std::vector<Offer> const& offers, Factory const* factory) {
  for (std::size_t r = 0; r < offers.size(); ++r) {
    auto const& offer = offers[r];
    if (offer.choice == Offer::Choice::staged) return rank_text(r) + " has CROSSRANK_DEVICE=staged";
    if (offer.is_usable == 0)
      return rank_text(r) + " cannot use " + string_of(offer.title) + ": " + string_of(offer.lacks);
    if (offer.name != offers.front().name) {
      return rank_text(r) + " would use " + string_of(offer.title) + ", and rank 0 " + string_of(offers.front().title);
    }
  }
  std::vector<spi::DeviceTransportOffer> capabilities;
  capabilities.reserve(offers.size());
  for (auto const& offer : offers) capabilities.push_back(offer.capabilities);
  return factory->objection(capabilities);
}

/// Sends the first rank's id to all. Returns nothing when that rank could not draw one, with the reason in `report`.
std::optional<spi::DeviceTransportId> share_id(spi::Transport& transport, Factory& factory, Report& report,
                                               spi::TimeoutPolicy const& timeout_policy) {
  struct Drawn {
    std::uint32_t succeeded = 0;
    spi::DeviceTransportId id{};
  } drawn;
  if (transport.rank() == 0) {
    try {
      drawn = {.succeeded = 1, .id = factory.draw_id()};
    } catch (std::exception const&) {  // a factory of others may throw anything
      report.failure = record_error(std::current_exception());
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
std::shared_ptr<spi::Transport> make_group(spi::Transport& transport, Factory const& factory, Report& report,
                                           spi::TimeoutPolicy const& timeout_policy) {
  auto all = all_ranks(transport.world_size());
  auto name = transport.name() + "/" + std::string(factory.name());
  try {
    return transport.split({spi::OpKind::split, agreement_mark}, all, std::move(name), timeout_policy);
  } catch (UnavailableError const&) {
    report.failure = record_error(std::current_exception());
    return nullptr;
  }
}

/// Returns the group on the node that holds all ranks of the transport; null where they are on several nodes.
std::shared_ptr<node::Group> group_of_one_node(spi::Transport const& transport) {
  auto group = node::group_of(transport.node_memory());
  return group && group->size() == transport.world_size() ? group : nullptr;
}

/// Makes this rank's part of the call table. Returns null without memory: then the ranks compare on the host.
std::unique_ptr<CallTable> make_call_table(spi::Transport const& transport, spi::Transport const& of_watchdog,
                                           Report& report) {
  try {
    auto table = std::make_unique<CallTable>(*group_of_one_node(transport), group_of_one_node(of_watchdog));
    report.row = table->own_row();
    return table;
  } catch (Error const&) {
    return nullptr;
  }
}

std::unique_ptr<spi::DeviceTransport> join(Factory& factory, spi::DevicePlace const& place,
                                           spi::DeviceTransportId const& id, DeviceWatchdog& watchdog, Report& report,
                                           std::chrono::milliseconds timeout) {
  std::unique_ptr<spi::DeviceTransport> made;
  try {
    made = factory.join(id, place, timeout, [&watchdog] { watchdog.poll(); });
    if (!made) throw BackendError({.operation = agreement_operation, .message = "the factory has made no transport"});
    watchdog.start(*made, place.device);
    report.outcome = Report::Outcome::joined;
    return made;
  } catch (PeerLostError const&) {  // another rank has given up or died
    report = {.outcome = Report::Outcome::stopped, .failure = record_error(std::current_exception())};
  } catch (std::exception const& e) {
    report.failure = record_error(std::current_exception());
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

/// Ends an agreement without a device transport.
void agree_on_staged(spi::Transport const& transport, std::vector<Offer> const& offers, std::string const& why) {
  auto const wanting = std::find_if(offers.begin(), offers.end(),
                                    [](Offer const& offer) { return offer.choice == Offer::Choice::by_name; });
  if (wanting != offers.end()) {
    auto const title = string_of(wanting->title);
    throw UnavailableError(
        error_in(transport, {.operation = agreement_operation,
                             .message = title + " cannot carry the collectives of this group: " + why,
                             .hint = "install the same " + title +
                                     " for all ranks, give each rank its own GPU, or unset CROSSRANK_DEVICE"}));
  }
  bool const is_chosen =
      std::any_of(offers.begin(), offers.end(), [](auto const& o) { return o.choice == Offer::Choice::staged; });
  bool const is_expected = std::none_of(offers.begin(), offers.end(), [](auto const& o) { return o.is_usable != 0; });
  if (transport.rank() != 0) return;
  log_event(is_chosen || is_expected ? LogLevel::debug : LogLevel::warning,
            "collectives on GPU tensors go through host memory", {{"group", transport.name()}, {"reason", why}});
}

}  // namespace

std::shared_ptr<WatchedTransport> agree_on_transport(spi::Transport& transport, Stream const& stream, CheckLevel check,
                                                     spi::TimeoutPolicy const& timeout_policy) {
  auto mine = own_offer(stream);
  mine.offer.notes_calls = check == CheckLevel::local && group_of_one_node(transport) ? 1 : 0;
  auto const offers = gather_records(transport, agreement_mark, mine.offer, timeout_policy);
  require_no_capture(offers, transport);
  std::vector<DeviceUse> uses;
  uses.reserve(offers.size());
  for (auto const& offer : offers) uses.push_back(offer.use);
  refuse_borrowed_device(uses, transport);
  if (auto const why = objection(offers, mine.factory.get())) {
    agree_on_staged(transport, offers, *why);
    return nullptr;
  }
  auto& factory = *mine.factory;
  spi::DevicePlace const place{.device = stream.device(), .rank = transport.rank(), .ranks = transport.world_size()};
  Report report;
  std::unique_ptr<spi::DeviceTransport> made;
  std::unique_ptr<DeviceWatchdog> watchdog;
  std::unique_ptr<CallTable> table;
  if (auto group = make_group(transport, factory, report, timeout_policy)) {
    if (std::ranges::all_of(offers, [](auto const& offer) { return offer.notes_calls != 0; }))
      table = make_call_table(transport, *group, report);
    watchdog = std::make_unique<DeviceWatchdog>(
        std::move(group), DeviceWatchdog::Watched{.group = transport.name(), .transport = factory.title()},
        timeout_policy.timeout);
  }
  auto const id = watchdog ? share_id(transport, factory, report, timeout_policy) : std::nullopt;
  if (id) made = join(factory, place, *id, *watchdog, report, timeout_policy.timeout);
  auto const reports = gather_records(transport, agreement_mark, report, timeout_policy);
  if (auto const r = first_failure(reports)) {
    watchdog.reset();  // its thread uses the transport
    if (made) made->abort();
    agree_on_staged(transport, offers, "on " + rank_text(*r) + " " + error_of(reports[*r].failure).text());
    return nullptr;
  }
  if (std::ranges::all_of(reports, [](auto const& one) { return one.row.bytes != 0; })) {
    std::vector<CallTable::Row> rows;
    std::ranges::transform(reports, std::back_inserter(rows), &Report::row);
    table->open(rows);
  } else {
    table.reset();
  }
  // Another thread releases the streams. Ranks that have no gate compare in the same rounds, and wait on the host.
  std::unique_ptr<CallGate> gate;
  if (!table && check == CheckLevel::local && transport.may_use_threads()) gate = CallGate::make(stream);
  bool const have_kernels =
      std::all_of(offers.begin(), offers.end(), [](auto const& offer) { return offer.has_kernels != 0; });
  return std::make_shared<WatchedTransport>(
      WatchedTransport::Group{
          .name = transport.name(), .backend = factory.name(), .place = place, .have_kernels = have_kernels},
      std::move(made), WatchedTransport::CallChecks{.table = std::move(table), .gate = std::move(gate)},
      std::move(watchdog), node::DeviceRecorder(transport.node_memory(), transport.global_ranks()));
}

}  // namespace crossrank::device
