#define CROSSRANK_NO_XR
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <string_view>
#include <vector>

// This program has its own namespace xr.
namespace xr {
constexpr float second = 2.0F;
}

// Calls code inside the library, not only in headers, and catches an exception from it.
int main() {
  std::vector<float> const values{1, 2, 3, 4};
  auto const half = crossrank::Tensor::of<float>(values, {2, 2});
  auto const whole = crossrank::concat(std::vector{half, half}, {.dim = 0});
  try {
    (void)crossrank::concat(std::vector<crossrank::Tensor>{});
    std::puts("an empty list was joined");
    return 1;
  } catch (crossrank::UsageError const& error) {
    if (std::string_view(error.what()).find("concat") == std::string_view::npos) return 2;
  }
  if (whole.numel() != 8 || whole.as<float>()[5] != xr::second) return 3;
  std::printf("crossrank %s joined %zu bytes\n", CROSSRANK_VERSION, whole.nbytes());
  return 0;
}
