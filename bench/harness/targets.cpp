#include "bench/harness/targets.hpp"

namespace crossrank::bench {
namespace {

constexpr std::size_t large = std::size_t{16} << 20;
constexpr std::size_t small = std::size_t{64} << 10;

std::optional<double> wanted_of_gather(Workload const& ours, std::string const& peer) {
  if (ours.variant != "warm") return std::nullopt;
  if (ours.bytes >= large) {
    if (peer == "streaming_limit" && !ours.reads) return 0.90;
    if (peer == "mpi_gather") return ours.reads ? 2.5 : 3.5;
    if (peer == "modelopt" && !ours.reads) return 30.0;
  }
  if (ours.bytes <= small && ours.reads) {
    if (peer == "mpi_gather") return 1.0 / 0.35;
    if (peer == "modelopt") return 500.0;
  }
  return std::nullopt;
}

std::optional<double> wanted_of_queue(Workload const& ours, std::string const& peer) {
  if (ours.variant != "latency" || ours.bytes != 64 || ours.reads) return std::nullopt;
  if (peer == "boost_queue") return 10.0;
  if (peer == "vllm_ring") return 30.0;
  return std::nullopt;
}

std::optional<double> wanted_of_collective(Workload const& ours, std::string const& peer) {
  constexpr std::size_t long_from = std::size_t{1} << 20;
  if (peer != "open_mpi") return std::nullopt;
  return ours.bytes >= long_from ? 1.0 / 0.6 : 1.0;
}

std::optional<double> wanted_of_checkpoint(Workload const& ours, std::string const& peer) {
  if (ours.path == "consolidate" && peer == "cp") return 0.9;
  if (peer == "python_merge" || peer == "dcp_to_torch_save" || peer == "torch_load") return 3.0;
  if (peer == "pread_limit") return 0.9;
  return std::nullopt;
}

}  // namespace

std::optional<double> wanted_ratio(Workload const& ours, std::string const& peer) {
  if (ours.path == "gather") return wanted_of_gather(ours, peer);
  if (ours.path == "queue") return wanted_of_queue(ours, peer);
  if (ours.path == "collectives") return wanted_of_collective(ours, peer);
  if (ours.path == "consolidate" || ours.path == "files") return wanted_of_checkpoint(ours, peer);
  if (ours.path == "transforms" && (ours.variant == "ddp communication" || ours.variant == "fully_shard step"))
    return 2.0;
  if (ours.path == "export" && peer == "dd") return 1.0 / 1.1;
  if (ours.path == "export" && peer == "dcp_save_and_consolidate") return 5.0;
  if (ours.path == "hosts" && peer == "one_host") return 2.0;
  if (ours.path == "configs" && peer == "modelopt" && ours.bytes == 23 && !ours.reads) return 200.0;
  if (ours.path == "barrier" && peer == "mpi_barrier") {
    if (ours.ranks == 2) return 1.0;
    if (ours.ranks == 4) return 1.0 / 0.7;
  }
  return std::nullopt;
}

std::optional<double> wanted_time(Workload const& ours, unsigned cores) {
  bool const free_cores = static_cast<unsigned>(ours.ranks) <= cores;
  if (ours.path == "gather" && ours.variant == "arena-backed" && !ours.reads) {
    if (ours.ranks == 2 && free_cores) return 0.6;
    if (ours.ranks == 4) return 6.0;
  }
  if (ours.path == "queue" && ours.variant == "latency" && ours.bytes == 64 && !ours.reads && free_cores) return 0.35;
  if (ours.path == "headers" && ours.bytes == 100'000) return 6'700'000.0;
  if (ours.path == "headers" && ours.bytes == 150'000) return 10'000'000.0;
  if (ours.path == "configs" && ours.bytes == 400 && ours.ranks == 2 && !ours.reads) return 100.0;
  return std::nullopt;
}

}  // namespace crossrank::bench
