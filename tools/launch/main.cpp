/// The launcher of `crossrank run` as a program of its own: `crossrank_launcher N PROGRAM [ARGUMENT...]`.
///
/// `examples/run` uses it, because it builds in half the time of the whole command.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tools/launch/launcher.hpp"

int main(int argc, char** argv) {
  int const ranks = argc > 2 ? std::atoi(argv[1]) : 0;
  if (ranks < 1) {
    std::fprintf(stderr, "usage: crossrank_launcher N PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  try {
    return crossrank::tools::launch(
        {.command = "crossrank_launcher", .program = {argv + 2, argv + argc}, .ranks = ranks});
  } catch (std::exception const& error) {
    std::fprintf(stderr, "crossrank_launcher: %s\n", error.what());
    return 1;
  }
}
