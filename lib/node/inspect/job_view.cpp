#include "lib/node/inspect/job_view.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/node/memory/corruption.hpp"
#include "lib/node/liveness/failure_record.hpp"
#include "lib/node/inspect/flight_recorder.hpp"
#include "lib/node/memory/group_blocks.hpp"
#include "lib/node/liveness/watchdog_thread.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

/// Returns the number of ranks. Read once, because another process may write there at any time.
int check(std::span<std::byte const> control) {
  auto const refuse = [](std::string expected, std::string got) {
    throw FormatError({.operation = "inspect",
                       .message = "not a control segment that this command can read",
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .section = "control header"});
  };
  if (control.size() < sizeof(ControlHeader)) refuse("a whole header", std::to_string(control.size()) + " bytes");
  auto const& header = *reinterpret_cast<ControlHeader const*>(control.data());
  if (header.magic != control_magic) refuse("a control segment", "other bytes");
  if (header.version != layout_version) {
    refuse("layout " + std::to_string(layout_version) + ", that of this command",
           "layout " + std::to_string(header.version));
  }
  auto const ranks = load_once(header.ranks);
  if (ranks == 0 || ranks > static_cast<std::uint32_t>(max_ranks))
    refuse("1 to " + std::to_string(max_ranks) + " ranks", std::to_string(ranks));
  auto const whole = ControlGeometry(static_cast<int>(ranks)).total_bytes();
  if (control.size() != whole) refuse(std::to_string(whole) + " bytes", std::to_string(control.size()));
  return static_cast<int>(ranks);
}

template <std::size_t N>
std::string text_in(char const (&text)[N]) {
  return {text, ::strnlen(text, N)};
}

double seconds_between(std::uint64_t from, std::uint64_t to) {
  return to > from ? static_cast<double>(to - from) * 1e-9 : 0.0;
}

/// One group block as it is, with the members that are plausible.
struct Block {
  GroupHeader const* header = nullptr;
  MemberBlock const* members = nullptr;
  int size = 0;

  [[nodiscard]] Decision decision() const noexcept {
    return Decision::unpack(header->decision.load(std::memory_order_acquire));
  }
  [[nodiscard]] int node_rank(int member) const noexcept {
    return static_cast<int>(members[member].node_rank.load(std::memory_order_relaxed));
  }
  [[nodiscard]] int member_of(int node_rank_wanted) const noexcept {
    for (int member = 0; member < size; ++member) {
      if (node_rank(member) == node_rank_wanted) return member;
    }
    return -1;
  }
  /// Returns the last round at which the member has arrived.
  [[nodiscard]] std::uint64_t last_round(int member) const noexcept {
    std::uint64_t last = 0;
    for (auto const& line : members[member].arrivals) {
      ArrivalWord const word{line.round.load(std::memory_order_acquire)};
      bool const two = line.also.load(std::memory_order_relaxed) != 0;
      if (!word.vetoed() && word.word != 0) last = std::max(last, word.word + (two ? 1 : 0));
    }
    return last;
  }
  [[nodiscard]] bool posted(int member, std::uint64_t round) const noexcept { return last_round(member) >= round; }
  /// Returns the last round at which all members have arrived.
  [[nodiscard]] std::uint64_t last_of_all() const noexcept {
    auto last = size == 0 ? 0 : last_round(0);
    for (int member = 1; member < size; ++member) last = std::min(last, last_round(member));
    return last;
  }
  [[nodiscard]] spi::OpKind op_kind(int member, std::uint64_t round) const noexcept {
    auto const& line = line_of(members[member], round);
    return line.round.load(std::memory_order_relaxed) == round ? static_cast<spi::OpKind>(line.op_kind)
                                                               : spi::OpKind::range_close;
  }
};

class Reader {
 public:
  Reader(std::span<std::byte const> control, int ranks)
      : header_(*reinterpret_cast<ControlHeader const*>(control.data())),
        ranks_(ranks),
        geometry_(ranks_),
        records_(reinterpret_cast<RankRecord const*>(control.data() + geometry_.records_offset())),
        flights_(reinterpret_cast<FlightRing const*>(control.data() + geometry_.flights_offset())),
        device_flights_(reinterpret_cast<DeviceFlightRing const*>(control.data() + geometry_.device_flights_offset())),
        // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): only asked where things stand, never to write there
        blocks_(const_cast<std::byte*>(control.data()), ranks_, 0, nullptr) {}

  [[nodiscard]] JobView read() {
    JobView view{.job = text_in(header_.job), .host = text_in(header_.host), .ranks_here = ranks_};
    std::array<char, 33> nonce{};
    std::snprintf(nonce.data(), nonce.size(), "%016llx%016llx", static_cast<unsigned long long>(header_.nonce[0]),
                  static_cast<unsigned long long>(header_.nonce[1]));
    view.nonce = nonce.data();
    for (int rank = 0; rank < ranks_; ++rank) statuses_.push_back(status_of(records_[rank]));
    view.running = std::any_of(statuses_.begin(), statuses_.end(),
                               [](RankStatus status) { return status != RankStatus::absent && !over(status); });
    now_ = view.running ? static_cast<std::uint64_t>(platform::system().now().count()) : last_seen_of_all();
    for (int rank = 0; rank < ranks_; ++rank) view.ranks.push_back(view_rank(rank));
    auto const made = blocks_.made();
    for (std::uint32_t index = 0; index < made; ++index) {
      auto const state = BlockUse::unpack(blocks_.header(index).use_word.load(std::memory_order_acquire)).state;
      if (state == BlockState::ready) view.groups.push_back(view_group(index, view));
      if (state == BlockState::queue) view.queues.push_back(view_queue(index, view));
    }
    for (auto& rank : view.ranks) {
      std::sort(rank.waits_for.begin(), rank.waits_for.end());
      rank.waits_for.erase(std::unique(rank.waits_for.begin(), rank.waits_for.end()), rank.waits_for.end());
    }
    return view;
  }

 private:
  static bool over(RankStatus status) noexcept { return status == RankStatus::dead || status == RankStatus::left; }

  static RankStatus status_of(RankRecord const& record) {
    auto const state = static_cast<AttachState>(record.state.load(std::memory_order_acquire));
    if (state == AttachState::left) return RankStatus::left;
    if (state == AttachState::absent) return RankStatus::absent;
    if (state == AttachState::dead || (record.liveness.load(std::memory_order_acquire) & owner_died_bit) != 0)
      return RankStatus::dead;
    using platform::ProcessState;
    switch (platform::process_state(record.pid, record.pid_namespace)) {
      case ProcessState::gone: return RankStatus::dead;
      case ProcessState::stopped: return RankStatus::stopped;
      case ProcessState::blocked: return RankStatus::blocked;
      case ProcessState::running:
      case ProcessState::unknown: break;
    }
    return RankStatus::alive;
  }

  [[nodiscard]] static std::uint64_t last_seen(RankRecord const& record) {
    return std::max(record.attached_at, record.heartbeat_at.load(std::memory_order_relaxed));
  }

  [[nodiscard]] std::uint64_t last_seen_of_all() const {
    std::uint64_t last = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      last = std::max({last, last_seen(records_[rank]), records_[rank].departed_at.load(std::memory_order_relaxed)});
    }
    return last;
  }

  /// Returns the rank of the job; -1 for a number that is no rank of the node.
  [[nodiscard]] int global(int node_rank) const noexcept {
    if (node_rank < 0 || node_rank >= ranks_) return -1;
    return static_cast<int>(records_[node_rank].global_rank);
  }

  [[nodiscard]] RankView view_rank(int rank) const {
    auto const& record = records_[rank];
    auto const status = at_rank(statuses_, rank);
    RankView view{.rank = global(rank), .pid = record.pid, .status = status};
    if (status == RankStatus::absent) {
      view.rank = ranks_ == 1 ? 0 : rank;  // the rank has not written its number yet
      return view;
    }
    auto since = record.progress_at.load(std::memory_order_relaxed);
    if (over(status)) {
      since = record.departed_at.load(std::memory_order_relaxed);
      if (since == 0) since = last_seen(record);  // nobody was left to see it
    }
    view.since = seconds_between(since, now_);
    view.in_user_code = record.in_user_code.load(std::memory_order_relaxed) != 0;
    auto const exit_text =
        std::min<std::size_t>(record.exit_text_bytes.load(std::memory_order_acquire), sizeof record.exit_text);
    view.exit_reason.assign(record.exit_text, exit_text);
    for (auto const& flight : read_flight(flights_[rank])) {
      view.operations.push_back(view_operation(rank, flight));
      auto const& operation = view.operations.back();
      if (operation.state == OperationState::waiting && operation.peer) view.waits_for.push_back(*operation.peer);
    }
    for (auto const& flight : read_device_flight(device_flights_[rank])) {
      auto& operation = view.device_operations.emplace_back(view_device_operation(flight, now_));
      if (is_member_of(operation.block, rank)) operation.group = text_in(blocks_.header(operation.block).name);
    }
    return view;
  }

  [[nodiscard]] bool is_member_of(std::uint32_t block, int rank) const {
    if (block >= blocks_.made()) return false;
    auto const state = BlockUse::unpack(blocks_.header(block).use_word.load(std::memory_order_acquire)).state;
    return state == BlockState::ready && block_at(block).member_of(rank) >= 0;
  }

  /// Adds what the group's members do on their devices, and the waits of those that have started a call for those that
  /// have not enqueued it.
  void add_device_call(Block const& block, GroupView& view, JobView& job) const {
    std::vector<DeviceOperationsOfRank> members;
    for (int member = 0; member < block.size; ++member) {
      auto const rank = block.node_rank(member);
      if (rank < 0 || rank >= ranks_) continue;
      members.push_back({.rank = global(rank), .operations = &at_rank(job.ranks, rank).device_operations});
    }
    view.device_call = view_device_call(view.block, members);
    if (!view.device_call) return;
    for (int const rank : view.device_call->started) add_waits(job, rank, view.device_call->missing);
  }

  [[nodiscard]] OperationView view_operation(int rank, FlightRecord const& flight) const {
    auto const& note = flight.note;
    OperationView view{.op_kind = note.op_kind, .block = note.block, .round = note.round, .bytes = note.bytes};
    auto const began = records_[rank].attached_at + std::uint64_t{flight.at} * 100'000'000;
    view.age = seconds_between(began, now_);
    if (note.block >= blocks_.made()) return view;
    auto const state = BlockUse::unpack(blocks_.header(note.block).use_word.load(std::memory_order_acquire)).state;
    if (state != BlockState::ready && state != BlockState::queue) return view;
    view.group = text_in(blocks_.header(note.block).name);
    if (state == BlockState::queue) {
      view.state = OperationState::done;  // noted when it is
      return view;
    }
    auto const block = block_at(note.block);
    auto const member = block.member_of(rank);
    if (member < 0) {  // the block is another group's by now
      view.group.clear();
      return view;
    }
    if (note.op_kind == spi::OpKind::recv_any) {
      view.state = any_message_state(block, member, note);
    } else if (spi::is_message(note.op_kind) && note.peer < static_cast<std::uint32_t>(block.size)) {
      view.peer = global(block.node_rank(static_cast<int>(note.peer)));
      view.state = message_state(block, member, note);
    } else {
      view.state = round_state(block, member, note.round);
    }
    return view;
  }

  [[nodiscard]] OperationState message_state(Block const& block, int member, FlightOperation const& note) const {
    bool const sends = note.op_kind == spi::OpKind::send;
    auto const peer = static_cast<int>(note.peer);
    auto const* const channels = reinterpret_cast<Channel const*>(block.members + block.size);
    auto const& channel = sends ? channels[member * block.size + peer] : channels[peer * block.size + member];
    auto const moved = (sends ? channel.sent : channel.received).load(std::memory_order_acquire);
    if (moved >= note.round) return OperationState::done;
    return block.decision().failed() ? OperationState::failed : OperationState::waiting;
  }

  /// The note counts all messages to the rank. The receive is done when it has received as many.
  [[nodiscard]] OperationState any_message_state(Block const& block, int member, FlightOperation const& note) const {
    auto const* const channels = reinterpret_cast<Channel const*>(block.members + block.size);
    std::uint64_t received = 0;
    for (int src = 0; src < block.size; ++src)
      received += channels[src * block.size + member].received.load(std::memory_order_acquire);
    if (received >= note.round) return OperationState::done;
    return block.decision().failed() ? OperationState::failed : OperationState::waiting;
  }

  [[nodiscard]] static OperationState round_state(Block const& block, int member, std::uint64_t round) {
    auto const decided = block.decision();
    if (decided.failed() && decided.round <= round) return OperationState::failed;
    if (block.last_of_all() >= round) return OperationState::done;
    return block.posted(member, round) ? OperationState::waiting : OperationState::unknown;
  }

  [[nodiscard]] Block block_at(std::uint32_t index) const {
    auto const& header = blocks_.header(index);
    return {&header, blocks_.members(index), blocks_.member_count(index)};
  }

  [[nodiscard]] GroupView view_group(std::uint32_t index, JobView& job) const {
    auto const block = block_at(index);
    auto const decided = block.decision();
    GroupView view{.name = text_in(block.header->name), .block = index};
    for (int member = 0; member < block.size; ++member) view.ranks.push_back(global(block.node_rank(member)));
    auto const round = decided.failed() ? decided.round : block.last_of_all() + 1;
    for (int member = 0; member < block.size; ++member) {
      bool const there = block.posted(member, round);
      if (there && view.arrived.empty()) view.op_kind = block.op_kind(member, round);
      (there ? view.arrived : view.missing).push_back(at_rank(view.ranks, member));
    }
    if (decided.failed()) {
      view.round = round;
      view.failure = view_failure(block, decided, view.ranks);
    } else if (!view.arrived.empty()) {
      view.round = round;
      for (int const rank : view.arrived) add_waits(job, rank, view.missing);
    } else {
      view.missing.clear();
    }
    add_device_call(block, view, job);
    return view;
  }

  [[nodiscard]] static FailureView view_failure(Block const& block, Decision decided, std::vector<int> const& ranks) {
    FailureView failure{.verdict = decided.verdict};
    if (decided.decider >= block.size) return failure;
    failure.decided_by = at_rank(ranks, decided.decider);
    auto const error = read_failure_record(block.members[decided.decider].failure);
    failure.text = error.info.message;
    for (int const member : error.info.failed_ranks) {
      if (member < block.size) failure.blamed.push_back(at_rank(ranks, member));
    }
    return failure;
  }

  [[nodiscard]] QueueView view_queue(std::uint32_t index, JobView& job) const {
    QueueView view{.name = text_in(blocks_.header(index).name), .block = index};
    int const endpoints = blocks_.endpoint_count(index);
    for (int i = 0; i < endpoints; ++i) {
      auto const& endpoint = blocks_.endpoints(index)[i];
      auto const [use, holder, state] = EndpointWord::unpack(endpoint.state.load(std::memory_order_acquire));
      if (state != EndpointState::taken || holder >= static_cast<std::uint32_t>(ranks_)) continue;
      QueueView::Endpoint const seen{global(static_cast<int>(holder)), endpoint.cursor.load(std::memory_order_acquire),
                                     (endpoint.doorbell.load(std::memory_order_relaxed) & 1) != 0};
      if (i == 0) {
        view.writer = seen;
      } else {
        view.readers.push_back(seen);
      }
    }
    if (!view.writer) return view;
    auto const slowest = std::min_element(view.readers.begin(), view.readers.end(),
                                          [](auto const& a, auto const& b) { return a.messages < b.messages; });
    for (auto const& reader : view.readers) {
      if (reader.asleep && reader.messages >= view.writer->messages) add_waits(job, reader.rank, {view.writer->rank});
      if (view.writer->asleep && reader.messages == slowest->messages) add_waits(job, view.writer->rank, {reader.rank});
    }
    return view;
  }

  static void add_waits(JobView& job, int rank, std::vector<int> const& others) {
    for (auto& view : job.ranks) {
      if (view.rank == rank && !over(view.status))
        view.waits_for.insert(view.waits_for.end(), others.begin(), others.end());
    }
  }

  ControlHeader const& header_;
  int ranks_;
  ControlGeometry geometry_;
  RankRecord const* records_;
  FlightRing const* flights_;
  DeviceFlightRing const* device_flights_;
  GroupBlocks blocks_;
  std::vector<RankStatus> statuses_{};
  std::uint64_t now_ = 0;
};

}  // namespace

JobView view_job(std::span<std::byte const> control) {
  int const ranks = check(control);
  return Reader(control, ranks).read();
}

}  // namespace crossrank::node
