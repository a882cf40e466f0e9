#pragma once
#include <string>
#include <vector>

namespace train {

/// The losses of one job.
struct Curve {
  std::string name{};
  int first_step = 1;
  std::vector<double> losses{};
};

/// Draws the curves as an SVG image.
[[nodiscard]] std::string draw(std::vector<Curve> const& curves);

}  // namespace train
