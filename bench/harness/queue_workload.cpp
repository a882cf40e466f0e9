#include "bench/harness/queue_workload.hpp"

#include "bench/harness/consume.h"

namespace crossrank::bench {
namespace {

/// Messages of one size. The first word of each is its number.
class Messages {
 public:
  Messages(QueueContestant const& contestant, std::size_t bytes, bool reads)
      : contestant_(contestant), bytes_(bytes), reads_(reads), mine_(bytes) {
    bench_fill(mine_.data(), bytes, contestant.rank);
    std::vector<std::byte> theirs(bytes);
    bench_fill(theirs.data(), bytes, contestant.rank == 0 ? 1 : 0);
    bench_stamp(theirs.data(), bytes, 0);
    sum_ = bench_sum(theirs.data(), bytes);
  }

  void send(std::uint64_t number) {
    bench_stamp(mine_.data(), bytes_, number);
    contestant_.send(mine_);
  }
  void receive(std::uint64_t number) {
    contestant_.receive([&](std::span<std::byte const> message) {
      require(message.size() == bytes_ && bench_read_stamp(message.data(), bytes_) == number,
              "received another message");
      if (reads_) require(bench_sum(message.data(), bytes_) == sum_ + number, "received wrong bytes");
    });
  }

 private:
  QueueContestant const& contestant_;
  std::size_t bytes_;
  bool reads_;
  std::vector<std::byte> mine_;
  std::uint64_t sum_ = 0;
};

void sweep(Row& row, UsageMeter const& meter, bool quick, std::function<void(std::uint64_t)> const& call) {
  auto const batch = bench_batch(row.bytes);
  std::uint64_t number = 1;
  for (std::size_t i = 0; i < 8 * batch; ++i) call(number++);
  measure(row, meter, bench_samples(row.bytes, quick ? 1 : 0), batch, number, call);
}

void halve(Row& row) {
  for (auto* const time : {&row.min_us, &row.median_us, &row.p99_us}) *time /= 2;
}

}  // namespace

std::vector<Row> measure_queue(QueueContestant const& contestant, std::vector<std::size_t> const& sizes, bool quick) {
  UsageMeter const meter;
  std::vector<Row> rows;
  for (auto const bytes : sizes) {
    for (bool const reads : {false, true}) {
      Row row{.path = "queue",
              .who = contestant.who,
              .rank = contestant.rank,
              .ranks = contestant.ranks,
              .bytes = bytes,
              .reads = reads};
      Messages messages(contestant, bytes, reads);
      bool const first = contestant.rank == 0;
      contestant.barrier();
      if (contestant.ranks == 2) {
        row.variant = "latency";
        row.payload = static_cast<double>(bytes);
        sweep(row, meter, quick, [&](std::uint64_t number) {
          if (first) messages.send(number);
          messages.receive(number);
          if (!first) messages.send(number);
        });
        halve(row);
        rows.push_back(row);
      }
      contestant.barrier();
      row.variant = "stream";
      row.payload = first ? static_cast<double>(bytes) : 0.0;
      sweep(row, meter, quick, [&](std::uint64_t number) { first ? messages.send(number) : messages.receive(number); });
      rows.push_back(row);
    }
  }
  contestant.barrier();
  return rows;
}

}  // namespace crossrank::bench
