// iceoryx 2.0: untyped publishers that wait for slow subscribers. Its daemon must be running, with pools for the sizes.
// Usage: iceoryx_queue RANKS --out FILE [--quick] -- SIZES...
#include <cstring>
#include <string>
#include <thread>

#include <iceoryx_hoofs/log/logmanager.hpp>
#include <iceoryx_posh/mepoo/chunk_header.hpp>
#include <iceoryx_posh/popo/untyped_publisher.hpp>
#include <iceoryx_posh/popo/untyped_subscriber.hpp>
#include <iceoryx_posh/runtime/posh_runtime.hpp>

#include "bench/peers/forked_ranks.hpp"
#include "bench/harness/queue_workload.hpp"

namespace bench = crossrank::bench;

namespace {

void send(iox::popo::UntypedPublisher& publisher, std::span<std::byte const> bytes) {
  publisher.loan(static_cast<std::uint32_t>(bytes.size()))
      .and_then([&](void* chunk) {
        std::memcpy(chunk, bytes.data(), bytes.size());
        publisher.publish(chunk);
      })
      .or_else([](auto&) { bench::require(false, "iceoryx has no chunk for a message"); });
}

/// Polls for the next message. Yields when there are more ranks than processors.
void receive(iox::popo::UntypedSubscriber& subscriber, bool crowded, bench::Consume const& consume) {
  for (bool taken = false; !taken;) {
    subscriber.take()
        .and_then([&](void const* chunk) {
          auto const bytes = iox::mepoo::ChunkHeader::fromUserPayload(chunk)->userPayloadSize();
          consume({static_cast<std::byte const*>(chunk), bytes});
          subscriber.release(chunk);
          taken = true;
        })
        .or_else([crowded](auto& error) {
          bench::require(error == iox::popo::ChunkReceiveResult::NO_CHUNK_AVAILABLE, "iceoryx gives no chunk");
          if (crowded) std::this_thread::yield();
        });
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::require(argc > 1, "usage: iceoryx_queue RANKS --out FILE [--quick] -- SIZES...");
  int const ranks = std::atoi(argv[1]);
  auto const sizes = bench::sizes_in(argc, argv);
  auto const arguments = bench::parse(argc - static_cast<int>(sizes.size()) - 2, argv + 1);
  auto const job_name = std::to_string(::getpid());
  bench::ForkedRanks job(ranks);
  bool const first = job.rank() == 0;
  bool const crowded = static_cast<unsigned>(ranks) > std::thread::hardware_concurrency();
  iox::log::LogManager::GetLogManager().SetDefaultLogLevel(iox::log::LogLevel::kWarn,
                                                           iox::log::LogLevelOutput::kHideLogLevel);
  auto const name = "bench_" + job_name + "_" + std::to_string(job.rank());
  iox::runtime::PoshRuntime::initRuntime(iox::RuntimeName_t(iox::cxx::TruncateToCapacity, name));
  auto const service = [&](char const* way) {
    return iox::capro::ServiceDescription("crossrank", iox::capro::IdString_t(iox::cxx::TruncateToCapacity, job_name),
                                          iox::capro::IdString_t(iox::cxx::TruncateToCapacity, way));
  };
  iox::popo::PublisherOptions sending;
  sending.subscriberTooSlowPolicy = iox::popo::ConsumerTooSlowPolicy::WAIT_FOR_CONSUMER;
  iox::popo::SubscriberOptions receiving;
  receiving.queueCapacity = 6;
  receiving.queueFullPolicy = iox::popo::QueueFullPolicy::BLOCK_PRODUCER;
  iox::popo::UntypedPublisher publisher(service(first ? "there" : job.rank() == 1 ? "back" : "nowhere"), sending);
  iox::popo::UntypedSubscriber subscriber(service(first ? "back" : "there"), receiving);
  while (subscriber.getSubscriptionState() != iox::SubscribeState::SUBSCRIBED) std::this_thread::yield();
  auto const rows =
      bench::measure_queue({.who = "iceoryx",
                            .rank = job.rank(),
                            .ranks = ranks,
                            .send = [&](std::span<std::byte const> bytes) { send(publisher, bytes); },
                            .receive = [&](bench::Consume const& consume) { receive(subscriber, crowded, consume); },
                            .barrier = [&] { job.barrier(); }},
                           sizes, arguments.quick);
  bench::append(arguments.out, rows);
  job.finish();
}
