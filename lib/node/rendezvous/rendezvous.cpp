#include "lib/node/rendezvous/rendezvous.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

#include "lib/core/environment.hpp"
#include "lib/node/inspect/flight_file.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::node {
namespace {

constexpr std::uint64_t address_bits = std::uint64_t{1} << 46;  // what all arenas of a node may map in one process
constexpr std::uint64_t least_arena = std::uint64_t{1} << 20;

/// Returns the name of a job for messages.
std::string const& name_of(JobKey const& key) { return key.job_id.empty() ? key.master : key.job_id; }

}  // namespace

std::uint64_t address_space_left(int ranks) {
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    std::ifstream statm("/proc/self/statm");
    std::uint64_t pages = 0;
    statm >> pages;
    auto const used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    left = limit.rlim_cur > used ? limit.rlim_cur - used : 0;
  }
  auto const arenas = static_cast<std::uint64_t>(ranks) * 2;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < left / arenas) left = limit.rlim_cur * arenas;
  return left == std::numeric_limits<std::uint64_t>::max() ? 0 : std::max<std::uint64_t>(left, 1);
}

NodeSizes choose_sizes(NodeOptions const& options, std::uint64_t address_space) {
  auto const ranks = static_cast<std::uint64_t>(options.ranks);
  NodeSizes sizes;
  sizes.cap_bytes = std::max(options.cap_bytes.value_or(platform::usable_memory() / 2), std::uint64_t{page_bytes});
  sizes.arena_bytes = std::min(std::bit_ceil(std::min(sizes.cap_bytes, address_bits / 8) * 4), address_bits / ranks);
  if (address_space != 0) sizes.arena_bytes = std::min(sizes.arena_bytes, address_space / (2 * ranks));
  sizes.arena_bytes = std::max(sizes.arena_bytes / page_bytes * page_bytes, least_arena);
  return sizes;
}

platform::Fd make_control(NodeOptions const& options, NodeSizes sizes) {
  ControlGeometry const geometry(options.ranks);
  auto const& directory = environment().flight_dir;
  std::filesystem::path path;
  if (!directory.empty())
    path = flight_file_path(std::filesystem::absolute(directory), name_of(options.key), random_nonce());
  auto fd = path.empty() ? make_shared_memory("control segment", geometry.total_bytes())
                         : make_flight_file(path, geometry.total_bytes());
  if (int const error = reserve_pages(fd, 0, geometry.base_bytes()); error != 0) {
    if (!path.empty()) remove_flight_file(path.c_str(), fd);
    platform::throw_io({.operation = "connect",
                        .message = "no memory for the control segment of " + std::to_string(options.ranks) + " ranks",
                        .expected = std::to_string(geometry.base_bytes()) + " bytes",
                        .resource = path.native(),
                        .hint = control_memory_hint(path.native(), error)},
                       error);
  }
  init_control(fd, options, sizes, path.native());
  return fd;
}

void init_control(platform::Fd const& fd, NodeOptions const& options, NodeSizes sizes, std::string_view path) {
  ControlGeometry const geometry(options.ranks);
  Mapping const mapping(fd, geometry.base_bytes(), Mapping::Access::read_write, "control segment");
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): made in place, nothing is owned
  auto* const header = new (mapping.data()) ControlHeader{};
  auto const nonce = random_nonce();
  header->version = layout_version;
  header->ranks = static_cast<std::uint32_t>(options.ranks);
  header->nonce[0] = nonce[0];
  header->nonce[1] = nonce[1];
  header->arena_bytes = sizes.arena_bytes;
  header->cap_bytes = sizes.cap_bytes;
  header->group_capacity = geometry.group_capacity();
  header->slot_capacity = geometry.slot_capacity();
  name_of(options.key).copy(header->job, sizeof header->job - 1);
  if (::gethostname(header->host, sizeof header->host - 1) != 0) header->host[0] = '\0';
  path.copy(header->flight_file, sizeof header->flight_file - 1);
  header->magic = control_magic;
}

void check_control(ControlHeader const& header, NodeOptions const& options) {
  auto const refuse = [&](std::string expected, std::string got) {
    bool const numbers = header.version == layout_version && header.magic == control_magic;
    throw MismatchError(
        {.operation = "connect",
         .message = numbers ? "the ranks expect different numbers of ranks on this node"
                            : "the ranks of this node are built from different versions of crossrank",
         .expected = std::move(expected),
         .got = std::move(got),
         .resource = options.key.text(),
         .hint = numbers ? "start all ranks from one launcher, with one WORLD_SIZE" : "run one version on all ranks",
         .rank = options.rank,
         .world_size = options.ranks,
         .failed_ranks = {options.rank},
         .group_usable = false});
  };
  if (header.magic != control_magic) refuse("a control segment", "other bytes");
  if (header.version != layout_version)
    refuse("layout " + std::to_string(layout_version), "layout " + std::to_string(header.version));
  if (header.ranks != static_cast<std::uint32_t>(options.ranks)) {
    refuse(std::to_string(options.ranks) + " ranks", std::to_string(header.ranks) + " ranks");
  }
}

}  // namespace crossrank::node
