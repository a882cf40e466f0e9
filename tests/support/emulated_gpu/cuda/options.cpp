#include "tests/support/emulated_gpu/cuda/options.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace emulated {
namespace {

std::string text(char const* name, std::string fallback = {}) {
  char const* const value = std::getenv(name);
  return value != nullptr ? std::string(value) : std::move(fallback);
}

template <class Number>
void read(char const* name, Number& number) {
  if (char const* const value = std::getenv(name); value != nullptr && *value != '\0') {
    number = static_cast<Number>(std::strtoull(value, nullptr, 10));
  }
}

std::string host_name() {
  char name[256] = {};
  static_cast<void>(::gethostname(name, sizeof name - 1));
  return name;
}

Options* read_all() {
  auto* const o = new Options;  // lives as long as the process: stream threads may outlive static objects
  read("EMULATED_GPU_COUNT", o->count);
  read("EMULATED_GPU_MEMORY", o->memory);
  read("EMULATED_GPU_DRIVER_VERSION", o->driver_version);
  read("EMULATED_GPU_CAPABILITY", o->capability);
  read("EMULATED_GPU_SEED", o->seed);
  read("EMULATED_GPU_DELAY_US", o->delay_us);
  read("EMULATED_GPU_LAUNCH_QUEUE", o->launch_queue);
  read("EMULATED_GPU_EXIT_CODE", o->exit_code);
  o->peers = text("EMULATED_GPU_PEERS", "all");
  o->host = text("EMULATED_GPU_HOST", host_name());
  o->read_only_register = text("EMULATED_GPU_READ_ONLY_REGISTER", "1") != "0";
  o->abort_on_report = text("EMULATED_GPU_ABORT", "0") != "0";
  o->log = text("EMULATED_GPU_LOG");
  o->report = text("EMULATED_GPU_REPORT");
  o->kept = text("EMULATED_GPU_KEPT");
  o->fail = text("EMULATED_GPU_FAIL");
  o->hang = text("EMULATED_GPU_HANG");
  o->kernels = text("EMULATED_GPU_KERNELS");
  o->visible_set = std::getenv("CUDA_VISIBLE_DEVICES") != nullptr;
  o->visible = text("CUDA_VISIBLE_DEVICES");
  return o;
}

}  // namespace

Options const& options() {
  static Options const* const instance = read_all();
  return *instance;
}

std::vector<std::string> split(std::string const& list, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

}  // namespace emulated
