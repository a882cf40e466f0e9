#pragma once
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

namespace crossrank::bench {

/// Runs a program with a fixed number of arguments: returns what `body(argv)` returns. `usage` has one word for each
/// argument. Another number of arguments is exit status 2, an exception 1, both with a message on standard error.
template <class Body>
int run_main(int argc, char** argv, std::string_view usage, Body const& body) {
  if (argc != 2 + std::count(usage.begin(), usage.end(), ' ')) {
    std::fprintf(stderr, "usage: %s %.*s\n", argv[0], static_cast<int>(usage.size()), usage.data());
    return 2;
  }
  try {
    return body(argv);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

}  // namespace crossrank::bench
