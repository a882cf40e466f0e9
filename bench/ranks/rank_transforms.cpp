// Trains a model of 100 million parameters without arithmetic, under DDP and FullyShard, and measures what a step
// costs. bench/peers/torch_transforms.py measures the same with PyTorch.
//
// Usage: bench_rank_transforms --out FILE [--quick] [--only ddp|fully_shard|memory]
//
// Times are those of the slowest rank: of backward for DDP, of forward and backward for FullyShard. "communication" is
// the time of DDP beyond that of a step which does not communicate. "exposed" is the same for a backward pass that
// takes twice as long as communication, and so could hide all of it: while it waits, as the host of a GPU does, or uses
// its core.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/mesh.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "bench/harness/harness.hpp"
#include "bench/ranks/layer_stack.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;
using bench::LayerStack;
using bench::Work;

namespace {

struct Launch {
  xr::MeshCollective const& job;
  bench::Arguments const& arguments;
  bench::UsageMeter meter{};
  std::vector<bench::Row> rows{};

  [[nodiscard]] bench::Row row(std::string variant) const {
    return {.path = "transforms",
            .variant = std::move(variant),
            .rank = job.rank(),
            .ranks = job.world_size(),
            .bytes = LayerStack::layers * LayerStack::parameters_of_layer * sizeof(float)};
  }
  /// Measures steps, each after a barrier, and returns the median of the times of the slowest rank.
  double time(std::string const& variant, std::function<void()> const& prepare, std::function<void()> const& step) {
    std::size_t const steps = arguments.quick ? 3 : 5;
    auto measured = row(variant);
    std::vector<double> times;
    for (std::size_t i = 0; i < steps + 2; ++i) {  // two to warm up
      prepare();
      job.dp_world().barrier();
      bench::Row one;
      bench::measure_once(one, meter, step);
      auto const slowest = job.dp_world().all_reduce_value(one.median_us, xr::ReduceOp::max);
      if (i < 2) continue;
      times.push_back(slowest);
      measured.faults = std::max(measured.faults, one.faults);
      measured.switches = std::max(measured.switches, one.switches);
      measured.system_calls = std::max(measured.system_calls, one.system_calls);
      measured.copied = std::max(measured.copied, one.copied);
      measured.system_call_source = one.system_call_source;
    }
    std::sort(times.begin(), times.end());
    measured.calls = steps;
    measured.min_us = times.front();
    measured.median_us = times[times.size() / 2];
    measured.p99_us = times.back();
    rows.push_back(measured);
    return measured.median_us;
  }
  void add(std::string const& variant, double time) {
    rows.push_back(row(variant));
    rows.back().min_us = rows.back().median_us = rows.back().p99_us = time;
  }
};

/// One transform: how it runs a step with and without communication.
struct Contestant {
  std::string name{};
  LayerStack* stack = nullptr;
  std::function<void()> prepare{};
  std::function<void()> step{};
  std::function<void()> local_step{};
};

/// Returns the time that communication adds to a step.
double measure_communication(Launch& launch, Contestant const& one) {
  auto const whole = launch.time(one.name + " step", one.prepare, one.step);
  auto const local = launch.time(one.name + " local step", one.prepare, one.local_step);
  launch.add(one.name + " communication", std::max(1.0, whole - local));
  return launch.rows.back().median_us;
}

/// Measures what remains of it behind both kinds of backward passes.
void measure_overlap(Launch& launch, Contestant const& one, double communication) {
  auto const of_layer = 2 * communication / static_cast<double>(LayerStack::layers);
  one.stack->wait = std::chrono::microseconds(std::lround(of_layer));
  launch.job.dp_world().barrier();  // all ranks compute at the same time, as in a step
  auto const begin = bench::microseconds_now();
  bench::require(bench::busy_rounds(20'000) > 0, "wrong sum");
  auto const of_round =
      launch.job.dp_world().all_reduce_value((bench::microseconds_now() - begin) / 20'000, xr::ReduceOp::avg);
  one.stack->rounds = static_cast<std::size_t>(of_layer / of_round) + 1;
  for (auto const& [work, name] : {std::pair{Work::waits, "waiting"}, std::pair{Work::uses_the_core, "computing"}}) {
    one.stack->work = work;
    auto const what = one.name + " " + name;
    auto const local = launch.time(what + " local step", one.prepare, one.local_step);
    auto const whole = launch.time(what + " step", one.prepare, one.step);
    launch.add(what + " exposed", std::max(0.0, whole - local));
  }
  one.stack->work = Work::none;
}

void run_ddp(Launch& launch) {
  auto const stack = std::make_shared<LayerStack>();
  stack->gradient = static_cast<float>(launch.job.rank() + 1);
  xr::DDPWrappedModel model(stack, launch.job.dp_world().split_by(0), {});
  auto const prepare = [&] {
    for (auto const& parameter : stack->parameters()) {
      if (!parameter->grad.defined()) continue;
      for (auto& value : parameter->grad.as_mutable<float>()) value = 0;
    }
  };
  auto const local_step = [&] {
    auto const scope = model.no_sync();
    model.backward({});
  };
  Contestant const ddp{"ddp", stack.get(), prepare, [&] { model.backward({}); }, local_step};
  measure_overlap(launch, ddp, measure_communication(launch, ddp));
  prepare();
  model.backward({});
  auto const expected = static_cast<float>(launch.job.world_size() + 1) / 2;
  for (auto const& parameter : stack->parameters()) {
    auto const values = parameter->grad.as<float>();
    bench::require(values.front() == expected && values.back() == expected, "wrong gradient of ", parameter->name);
  }
}

std::shared_ptr<xr::TrainableModel> sharded(Launch const& launch, std::shared_ptr<LayerStack> const& stack) {
  return xr::FullyShardTransform({.reshard_after_forward = true}, launch.job).apply(stack);
}

void run_fully_shard(Launch& launch) {
  auto const stack = std::make_shared<LayerStack>();
  stack->gradient = static_cast<float>(launch.job.rank() + 1);
  auto const model = sharded(launch, stack);
  launch.time(
      "fully_shard step", [&] { model->zero_grad(); },
      [&] {
        static_cast<void>(model->forward({}));
        model->backward({});
      });
  auto const expected = static_cast<float>(launch.job.world_size() + 1) / 2;
  for (auto const& tensor : model->trained_tensors()) {
    auto const values = tensor.grad.as<float>();
    bench::require(values.front() == expected && values.back() == expected, "wrong gradient of ", tensor.name);
  }
}

/// The payload is what the target allows: shard, gradients and state of AdamW, and two of the largest units. Against it
/// counts everything but code that the process has at the peak of two steps and did not have before the model was made:
/// also what allocators keep, and this rank's share of the memory through which the ranks exchange data.
void measure_memory(Launch& launch) {
  bench::PeakMemory const peak;
  auto const model = sharded(launch, std::make_shared<LayerStack>());
  auto& wrapped = dynamic_cast<xr::FullyShardedModel&>(*model);
  launch.job.dp_world().barrier();
  peak.restart();                         // a new model is whole on each rank
  xr::AdamW optimizer(model, {.lr = 0});  // the layers check their values
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    static_cast<void>(model->forward({}));
    model->backward({});
    optimizer.step();
  }
  auto const memory = wrapped.memory();
  auto row = launch.row("fully_shard memory");
  launch.job.dp_world().barrier();  // all ranks still use the shared memory
  row.peak_bytes = peak.growth_of_data();
  launch.job.dp_world().barrier();
  row.payload = 4.0 * static_cast<double>(memory.shards) + 2.0 * static_cast<double>(memory.largest_unit);
  launch.rows.push_back(row);
}

}  // namespace

int main(int argc, char** argv) {
  auto const arguments = bench::parse(argc, argv);
  auto const wants = [&](char const* what) { return arguments.only.empty() || arguments.only == what; };
  auto const world = xr::connect({.progress = xr::ProgressMode::thread});
  xr::MeshCollective const replicas(world, {.sharding_world_size = 1});
  xr::MeshCollective const shards(world, {.sharding_world_size = world.world_size()});
  std::vector<bench::Row> rows;
  auto const run = [&](xr::MeshCollective const& job, void (*measure)(Launch&)) {
    Launch launch{.job = job, .arguments = arguments};
    measure(launch);
    rows.insert(rows.end(), launch.rows.begin(), launch.rows.end());
  };
  if (wants("memory")) run(shards, measure_memory);
  if (wants("ddp")) run(replicas, run_ddp);
  if (wants("fully_shard")) run(shards, run_fully_shard);
  bench::append(arguments.out, rows);
  shards.close();
}
