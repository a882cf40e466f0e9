#include "lib/platform/random.hpp"

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <span>

#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::platform {

std::uint64_t random_number(std::string const& operation) {
  std::uint64_t number = 0;
  if (system().random(std::as_writable_bytes(std::span(&number, 1))) != 0)
    throw_io(operation + ": getrandom", "random numbers", errno);
  return number;
}

std::string random_hex(std::string const& operation) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, random_number(operation));
  return text.data();
}

}  // namespace crossrank::platform
