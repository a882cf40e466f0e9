// Rank 0 sends requests to all other ranks. Each of them answers its share, and reads a large tensor directly from rank
// 0's memory. Run it alone, or with `crossrank run -n 4 -- queue`.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <string>

namespace {

struct Request {
  int id = 0;
  std::string prompt{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(id, prompt);
  }
};

constexpr int requests = 100;

void serve(xr::MessageQueue const& queue) {
  auto const cache = xr::Tensor::zeros({2'000'000}, xr::Dtype::f32);  // longer than a chunk: read in place
  queue.enqueue(xr::TensorDict{{"cache", cache}, {"step", 7}});
  for (int id = 0; id < requests; ++id) queue.enqueue(Request{id, "tell me about " + std::to_string(id)});
  queue.close();
  while (!queue.wait_for(std::chrono::milliseconds(100))) std::printf("the readers are still working\n");
}

/// Returns the number of requests that this rank answered; -1 when a message is wrong.
int answer(xr::MessageQueue const& queue, xr::Collective const& world) {
  auto const batch = queue.dequeue<xr::TensorDict>();
  if (!batch || batch->get<int>("step") != 7 || batch->tensor("cache").numel() != 2'000'000) return -1;
  int answered = 0;
  while (auto const request = queue.dequeue<Request>()) {  // ends when the writer closes
    if (request->id % (world.world_size() - 1) != world.rank() - 1) continue;
    if (request->prompt != "tell me about " + std::to_string(request->id)) return -1;
    ++answered;
  }
  return answered;
}

}  // namespace

int main() {
  auto world = xr::connect();
  auto const queue = xr::MessageQueue::create(world, {.writer_rank = 0});
  int mine = 0;
  if (queue.is_writer()) {
    serve(queue);
  } else {
    mine = answer(queue, world);
  }
  auto const all = world.gather_objects(mine);
  int sum = 0;
  for (int const one : all) sum += one;
  if (world.is_master()) std::printf("%d requests answered by %d ranks\n", sum, world.world_size() - 1);
  world.close();
  return mine < 0 ? 1 : 0;
}
