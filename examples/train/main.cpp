// Trains a small Llama on a text, with 1, 2 and 4 ranks and both transforms, and compares the losses.
// Usage: train TEXT OUT [STEPS]
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <vector>

#include "chart.hpp"
#include "training.hpp"

namespace {

namespace fs = std::filesystem;
using train::Curve;
using train::Plan;

constexpr double max_apart = 1e-3;  // sums in another order change the last bits of each step

/// The last job goes on where the one before it has saved: each rank its own rows, in a form that torch loads as well.
std::vector<Plan> make_plans(fs::path const& out, int steps) {
  return {{.name = "1 rank", .ranks = 1, .steps = steps},
          {.name = "DDP, 2 ranks", .ranks = 2, .steps = steps},
          {.name = "DDP, 4 ranks", .ranks = 4, .steps = steps},
          {.name = "FullyShard, 2 ranks", .ranks = 2, .sharded = true, .steps = steps},
          {.name = "FullyShard, 4 ranks, first half",
           .ranks = 4,
           .sharded = true,
           .steps = steps / 2,
           .save_to = out / "half",
           .format = xr::CheckpointFormat::dcp},
          {.name = "resumed with DDP, 2 ranks",
           .ranks = 2,
           .steps = steps,
           .resume_from = out / "half",
           .save_to = out / "model"}};
}

Curve train_and_show(Plan const& plan, train::Text const& text) {
  bool const terminal = isatty(STDOUT_FILENO) == 1;
  Curve curve{.name = plan.name};
  auto const show = [&](int step, double loss) {
    if (!terminal && step != plan.steps) return;
    std::printf("%s%-32s step %3d of %d, loss %.4f%s", terminal ? "\r" : "", plan.name.c_str(), step, plan.steps, loss,
                step == plan.steps ? "\n" : "");
    std::fflush(stdout);
  };
  curve.losses = run(plan, {}, text, show);
  curve.first_step = plan.steps - static_cast<int>(curve.losses.size()) + 1;
  return curve;
}

/// Returns the largest distance of a curve from the first one.
double largest_distance(std::vector<Curve> const& curves) {
  double largest = 0;
  for (auto const& curve : curves) {
    for (std::size_t i = 0; i < curve.losses.size(); ++i) {
      auto const& expected = curves.front().losses.at(static_cast<std::size_t>(curve.first_step - 1) + i);
      largest = std::max(largest, std::abs(curve.losses[i] - expected));
    }
  }
  return largest;
}

int compare(fs::path const& file, fs::path const& out, int steps) {
  train::Text const text(file, train::LlamaConfig{}.context);
  fs::create_directories(out);
  std::vector<Curve> curves;
  for (auto const& plan : make_plans(out, steps)) curves.push_back(train_and_show(plan, text));
  std::ofstream(out / "losses.svg") << train::draw(curves);
  auto const distance = largest_distance(curves);
  std::printf("largest distance between two curves: %.1e\nwrote %s and %s\n", distance, (out / "losses.svg").c_str(),
              (out / "model").c_str());
  if (distance <= max_apart) return 0;
  std::fprintf(stderr, "the curves differ by more than %.0e\n", max_apart);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int const steps = argc == 4 ? std::atoi(argv[3]) : 60;
  if (argc < 3 || argc > 4 || steps < 2) {
    std::fprintf(stderr, "usage: train TEXT OUT [STEPS], with at least 2 steps\n");
    return 2;
  }
  try {
    return compare(argv[1], argv[2], steps);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
