#include "lib/node/memory/segment_names.hpp"

#include <cstdio>

#include <sys/file.h>
#include <unistd.h>

#include <boost/filesystem/operations.hpp>

#include "lib/platform/files/fd.hpp"
#include "lib/platform/random.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace crossrank::node {
namespace {

using platform::Fd;
using platform::system;

std::string hex(std::uint64_t high, std::uint64_t low) {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text.data();
}

bool remove_if_orphan(std::string const& name) {
  Fd const fd(system().shm_open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0));
  if (!fd) return false;
  struct stat status {};
  if (system().fstat(fd.get(), &status) != 0 || status.st_uid != ::geteuid() || !S_ISREG(status.st_mode)) return false;
  if (system().flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
  return system().shm_unlink(name.c_str()) == 0;
}

}  // namespace

std::string JobKey::digest() const {
  auto const text = std::to_string(::geteuid()) + '\0' + job_id + '\0' + master + '\0' + step;
  auto const hash = XXH3_128bits(text.data(), text.size());
  return hex(hash.high64, hash.low64);
}

std::array<std::uint64_t, 2> random_nonce() {
  constexpr auto const* operation = "draw a nonce";
  return {platform::random_number(operation), platform::random_number(operation)};
}

std::string segment_prefix() { return "crossrank." + std::to_string(::geteuid()) + "."; }

std::string unique_segment_name() {
  auto const nonce = random_nonce();
  return "/" + segment_prefix() + hex(nonce[0], nonce[1]);
}

std::vector<std::string> sweep_names() {
  namespace fs = boost::filesystem;
  std::vector<std::string> removed;
  auto const prefix = segment_prefix();
  boost::system::error_code ended;
  for (fs::directory_iterator entry("/dev/shm", ended), none; !ended && entry != none; entry.increment(ended)) {
    auto const name = entry->path().filename().string();
    if (name.rfind(prefix, 0) == 0 && remove_if_orphan("/" + name)) removed.push_back("/" + name);
  }
  return removed;
}

}  // namespace crossrank::node
