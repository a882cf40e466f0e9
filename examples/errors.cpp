// Makes one kind of error on purpose and prints what each rank is told. Run it with
// `crossrank run -n 4 -- errors KIND`, where KIND is usage, remote, mismatch, timeout or lost.
#include <crossrank/crossrank.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

namespace {

/// Runs one step with the other ranks. The last rank makes a mistake.
void step(std::string_view kind, xr::Collective const& world) {
  int const last = world.world_size() - 1;
  bool const wrong = world.rank() == last;
  if (kind == "usage") {
    world.send(xr::Tensor::scalar(1.F), world.world_size());  // the group has no such rank
  } else if (kind == "remote") {
    xr::compute_and_broadcast(world, []() -> int { throw std::runtime_error("the disk is full"); }, {.root = last});
  } else if (kind == "mismatch") {
    auto value = xr::Tensor::zeros({wrong ? 3 : 2}, xr::Dtype::f32);
    world.all_reduce(value);
  } else {
    if (wrong && kind == "timeout") std::this_thread::sleep_for(std::chrono::seconds(3));
    if (wrong && kind == "lost") std::raise(SIGKILL);
    world.barrier();
  }
}

std::string list(std::span<int const> ranks) {
  std::string text;
  for (int const rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text.empty() ? "none" : text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: errors usage|remote|mismatch|timeout|lost\n"), 2;
  auto const world = xr::connect({.timeout = std::chrono::seconds(1), .check = xr::CheckLevel::collective});
  try {
    step(argv[1], world);
  } catch (xr::Error const& e) {
    std::printf("rank %d: %s, failed ranks %s: %s\n", world.rank(), to_string(e.code()), list(e.failed_ranks()).c_str(),
                e.what());
    if (!e.group_usable()) return 1;
  } catch (std::exception const& e) {
    std::printf("rank %d: %s\n", world.rank(), e.what());
  }
  world.barrier();
  if (world.is_master()) std::printf("the group is still usable\n");
}
