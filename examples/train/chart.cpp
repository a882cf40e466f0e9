#include "chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

namespace train {
namespace {

constexpr double width = 760;
constexpr double height = 420;
constexpr double left = 60;
constexpr double right = 20;
constexpr double top = 40;
constexpr double bottom = 50;
constexpr std::array<char const*, 6> colours{"#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00"};

/// Converts steps and losses to places in the image.
struct Scale {
  double steps = 1;
  double least = 0;
  double most = 1;

  [[nodiscard]] double x(double step) const {
    return left + (width - left - right) * (step - 1) / std::max(1.0, steps - 1);
  }
  [[nodiscard]] double y(double loss) const { return top + (height - top - bottom) * (most - loss) / (most - least); }
};

Scale scale_of(std::vector<Curve> const& curves) {
  Scale scale{.least = 1e9, .most = 0};
  for (auto const& curve : curves) {
    scale.steps = std::max(scale.steps, curve.first_step - 1.0 + static_cast<double>(curve.losses.size()));
    for (auto const loss : curve.losses) {
      scale.least = std::min(scale.least, std::floor(loss));
      scale.most = std::max(scale.most, std::ceil(loss));
    }
  }
  return scale;
}

template <class... Arguments>
std::string text(char const* format, Arguments... arguments) {
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(), format, arguments...);
  return line.data();
}

std::string axes(Scale const& scale) {
  std::string svg;
  for (double loss = scale.least; loss <= scale.most; loss += 1) {
    svg += text("<line x1='%.0f' x2='%.0f' y1='%.1f' y2='%.1f' stroke='#ddd'/>", left, width - right, scale.y(loss),
                scale.y(loss));
    svg += text("<text x='%.0f' y='%.1f' text-anchor='end'>%.0f</text>\n", left - 8, scale.y(loss) + 4, loss);
  }
  for (int i = 0; i <= 4; ++i) {
    auto const step = std::round(1 + (scale.steps - 1) * i / 4);
    svg +=
        text("<text x='%.1f' y='%.0f' text-anchor='middle'>%.0f</text>\n", scale.x(step), height - bottom + 20, step);
  }
  svg += text("<text x='%.0f' y='%.0f' text-anchor='middle'>step</text>\n", (left + width - right) / 2, height - 10);
  return svg + text("<text x='16' y='%.0f' text-anchor='middle' transform='rotate(-90 16 %.0f)'>loss</text>\n",
                    height / 2, height / 2);
}

/// Curves that lie on top of each other stay visible: each is thinner than the one below it.
std::string line(Curve const& curve, Scale const& scale, std::size_t number, std::size_t count) {
  auto const* const colour = colours[number % colours.size()];
  auto const thickness = 1.5 + 2.0 * static_cast<double>(count - 1 - number);
  std::string svg = text("<polyline fill='none' stroke='%s' stroke-width='%.1f' points='", colour, thickness);
  for (std::size_t i = 0; i < curve.losses.size(); ++i)
    svg += text("%.1f,%.1f ", scale.x(curve.first_step + static_cast<double>(i)), scale.y(curve.losses[i]));
  svg += "'/>\n";
  auto const y = top + 12 + 20 * static_cast<double>(number);
  auto const x = width - right - 270;
  svg += text("<line x1='%.0f' x2='%.0f' y1='%.0f' y2='%.0f' ", x, x + 30, y, y);
  svg += text("stroke='%s' stroke-width='%.1f'/>", colour, thickness);
  return svg + text("<text x='%.0f' y='%.0f'>", x + 40, y + 4) + curve.name + "</text>\n";
}

}  // namespace

std::string draw(std::vector<Curve> const& curves) {
  auto const scale = scale_of(curves);
  auto svg = text("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' ", width, height);
  svg += "font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n";
  svg += text("<text x='%.0f' y='22' font-size='15'>The same training on different numbers of ranks</text>\n", left);
  svg += axes(scale);
  for (std::size_t i = 0; i < curves.size(); ++i) svg += line(curves[i], scale, i, curves.size());
  return svg + "</svg>\n";
}

}  // namespace train
