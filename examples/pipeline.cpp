// Passes batches through a pipeline of two stages of two tensor-parallel ranks. Each rank of a stage sends half of a
// tensor that both hold, and the next stage joins the halves. Run it with `crossrank run -n 4 -- pipeline`.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <utility>

namespace {

constexpr int steps = 10;

/// Runs one stage: adds one to every hidden state.
xr::TensorDict forward(xr::TensorDict in) {
  auto hidden = in.tensor("hidden_states").clone();
  for (auto& value : hidden.as_mutable<float>()) value += 1;
  in.set("hidden_states", std::move(hidden));
  return in;
}

xr::TensorDict first_batch(int step) {
  return {{"hidden_states", xr::Tensor::zeros({64, 32}, xr::Dtype::f32)},
          {"step", step},
          {"lens", xr::Json{1, 2, 3}},
          {"cache", xr::TensorDict{{"positions", xr::Tensor::scalar(step)}}}};
}

}  // namespace

int main() {
  auto world = xr::connect();
  xr::Mesh const mesh(world, {{"pp", world.world_size() / 2}, {"tp", 2}});
  auto const tp = xr::GroupCoordinator::create(world, mesh.groups("tp"), {.name = "tp"});
  auto const pp = xr::GroupCoordinator::create(world, mesh.groups("pp"), {.name = "pp"});
  int right = 0;
  for (int step = 0; step < steps; ++step) {
    auto batch = pp.is_first_rank() ? first_batch(step) : pp.recv_tensor_dict({.all_gather_group = tp});
    batch = forward(std::move(batch));
    auto const depth = static_cast<float>(pp.rank() + 1);
    right += batch.get<int>("step") == step && batch.tensor("hidden_states").as<float>().back() == depth &&
                     batch.dict("cache").tensor("positions").item<int>() == step
                 ? 1
                 : 0;
    if (!pp.is_last_rank()) pp.send_tensor_dict(batch, {.all_gather_group = tp});
  }
  auto const all = world.gather_objects(right);
  int sum = 0;
  for (int const one : all) sum += one;
  if (world.is_master()) std::printf("%d of %d batches right\n", sum, steps * world.world_size());
  world.close();
  return right == steps ? 0 : 1;
}
