#include <crossrank/collective.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/digest.hpp"
#include "lib/node/group.hpp"

namespace crossrank {

using spi::Verb;

struct Collective::State {
  std::shared_ptr<spi::Transport> transport;
  spi::Patience patience;
  std::atomic_flag busy{};
  std::atomic<bool> closed{false};
  int splits = 0;
};

namespace {

ErrorInfo usage(char const* operation, std::string message) {
  return {.operation = operation, .message = std::move(message)};
}

ErrorInfo usage_in(spi::Transport const& transport, char const* operation, std::string message) {
  return {.operation = operation,
          .message = std::move(message),
          .group = transport.name(),
          .rank = transport.rank(),
          .world_size = transport.world_size()};
}

void run(spi::Transport& transport, spi::Ticket ticket, spi::Patience const& patience) {
  transport.wait(ticket, patience);
}

void require_tensor(spi::Transport const& transport, Tensor const& tensor, char const* operation) {
  if (!tensor.defined()) throw UsageError(usage_in(transport, operation, "the tensor is none"));
  if (tensor.device().kind != Device::Kind::cpu)
    throw UsageError(usage_in(transport, operation, "the tensor is not on the CPU"));
}

std::uint64_t digest_of(Tensor const& tensor) {
  return ArgumentDigest()
      .add(static_cast<std::uint64_t>(tensor.dtype()))
      .add(std::span(tensor.shape().begin(), tensor.shape().size()))
      .value();
}

}  // namespace

Collective::Turn::Turn(Collective const& collective, char const* operation) : state_(&collective.state(operation)) {
  if (state_->busy.test_and_set(std::memory_order_acquire)) {
    throw UsageError(usage_in(*state_->transport, operation,
                              "another call on this group is under way in another thread or open range"));
  }
}

Collective::Turn::~Turn() { state_->busy.clear(std::memory_order_release); }

Collective make_collective(std::shared_ptr<spi::Transport> transport, spi::Patience const& patience) {
  auto state = std::make_shared<Collective::State>();
  state->transport = std::move(transport);
  state->patience = patience;
  return Collective(std::move(state));
}

Collective::State& Collective::state(char const* operation) const {
  if (!state_) throw UsageError(usage(operation, "this handle names no group: connect() or split() makes one"));
  if (state_->closed.load(std::memory_order_relaxed))
    throw UsageError(usage_in(*state_->transport, operation, "the group is closed"));
  return *state_;
}

int Collective::rank() const { return state("rank").transport->rank(); }
int Collective::world_size() const { return state("world_size").transport->world_size(); }
int Collective::global_rank() const {
  auto const& transport = *state("global_rank").transport;
  return transport.global_ranks()[static_cast<std::size_t>(transport.rank())];
}
RankSpan Collective::ranks() const { return state("ranks").transport->global_ranks(); }
int Collective::local_rank() const {
  auto const& transport = *state("local_rank").transport;
  auto const on_node = transport.node_ranks();
  return static_cast<int>(std::lower_bound(on_node.begin(), on_node.end(), transport.rank()) - on_node.begin());
}
int Collective::local_world_size() const {
  return static_cast<int>(state("local_world_size").transport->node_ranks().size());
}
bool Collective::is_master() const { return rank() == 0; }
bool Collective::is_local_master() const { return local_rank() == 0; }
std::string_view Collective::backend() const { return state("backend").transport->backend(); }
std::string const& Collective::name() const { return state("name").transport->name(); }
std::shared_ptr<spi::Transport> const& Collective::transport() const { return state("transport").transport; }
spi::Patience const& Collective::patience() const { return state("patience").patience; }

void Collective::require_rank(int rank, char const* operation, char const* what) const {
  auto const& transport = *state(operation).transport;
  if (rank >= 0 && rank < transport.world_size()) return;
  auto info = usage_in(transport, operation, std::string(what) + " is not a rank of the group");
  info.expected = "0 to " + std::to_string(transport.world_size() - 1);
  info.got = std::to_string(rank);
  throw UsageError(std::move(info));
}

void Collective::barrier() const {
  Turn const turn(*this, "barrier");
  run(*state_->transport, state_->transport->post_barrier({.verb = Verb::barrier}), state_->patience);
}

void Collective::broadcast(Tensor& tensor, Root root) const {
  Turn const turn(*this, "broadcast");
  auto& transport = *state_->transport;
  require_tensor(transport, tensor, "broadcast");
  require_rank(root.root, "broadcast", "the root");
  auto const digest = ArgumentDigest().add(static_cast<std::uint64_t>(root.root)).add(digest_of(tensor)).value();
  auto const bytes = root.root == transport.rank()
                         ? std::span(const_cast<std::byte*>(tensor.bytes().data()), tensor.nbytes())
                         : tensor.mutable_bytes();  // the root's bytes are only read
  run(transport, transport.post_broadcast({Verb::broadcast, digest}, {.bytes = bytes}, root.root), state_->patience);
}

void Collective::all_gather(Tensor& out, Tensor const& in) const {
  Turn const turn(*this, "all_gather");
  auto& transport = *state_->transport;
  require_tensor(transport, in, "all_gather");
  require_tensor(transport, out, "all_gather");
  auto const ranks = static_cast<std::size_t>(transport.world_size());
  if (out.dtype() != in.dtype() || out.numel() != in.numel() * transport.world_size()) {
    auto info = usage_in(transport, "all_gather", "the result does not fit");
    info.expected = std::to_string(ranks) + " x " + to_string(in);
    info.got = to_string(out);
    throw UsageError(std::move(info));
  }
  std::vector<std::size_t> const counts(ranks, in.nbytes());
  run(transport,
      transport.post_all_gatherv({Verb::all_gatherv, digest_of(in)}, {.bytes = in.bytes()}, counts,
                                 {.bytes = out.mutable_bytes()}),
      state_->patience);
}

std::vector<std::vector<std::byte>> Collective::all_gatherv(std::span<std::byte const> mine) const {
  Turn const turn(*this, "all_gatherv");
  auto& transport = *state_->transport;
  auto const ranks = static_cast<std::size_t>(transport.world_size());
  std::vector<std::uint64_t> sizes(ranks);
  std::uint64_t const size = mine.size();
  std::vector<std::size_t> const eight(ranks, sizeof size);
  run(transport,
      transport.post_all_gatherv({Verb::all_gatherv, 0}, {.bytes = std::as_bytes(std::span(&size, 1))}, eight,
                                 {.bytes = std::as_writable_bytes(std::span(sizes))}),
      state_->patience);
  std::vector<std::size_t> const counts(sizes.begin(), sizes.end());
  std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  run(transport, transport.post_all_gatherv({Verb::all_gatherv, 0}, {.bytes = mine}, counts, {.bytes = all}),
      state_->patience);
  std::vector<std::vector<std::byte>> out;
  auto at = all.cbegin();
  for (auto const count : counts) {
    out.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return out;
}

void Collective::all_reduce(Tensor& tensor, ReduceOp op) const {
  require_tensor(*state("all_reduce").transport, tensor, "all_reduce");
  all_reduce_bytes(tensor.mutable_bytes(), tensor.dtype(), op);
}

void Collective::all_reduce_bytes(std::span<std::byte> values, Dtype dtype, ReduceOp op) const {
  Turn const turn(*this, "all_reduce");
  auto& transport = *state_->transport;
  auto const reduce = algorithms::reducer(dtype, op);  // refuses what makes no sense before anything is sent
  auto const ranks = static_cast<std::size_t>(transport.world_size());
  auto const digest = ArgumentDigest()
                          .add(static_cast<std::uint64_t>(dtype))
                          .add(static_cast<std::uint64_t>(op))
                          .add(values.size())
                          .value();
  std::vector<std::byte> all(values.size() * ranks);
  std::vector<std::size_t> const counts(ranks, values.size());
  run(transport, transport.post_all_gatherv({Verb::all_reduce, digest}, {.bytes = values}, counts, {.bytes = all}),
      state_->patience);
  reduce(values, all, transport.world_size());
}

void Collective::send(Tensor const& tensor, int dst, Tag tag) const {
  Turn const turn(*this, "send");
  auto& transport = *state_->transport;
  require_tensor(transport, tensor, "send");
  require_rank(dst, "send", "the destination");
  if (dst == transport.rank() && transport.world_size() > 1)
    throw UsageError(usage_in(transport, "send", "a message to oneself"));
  run(transport, transport.post_send({.bytes = tensor.bytes()}, dst, tag.tag), state_->patience);
}

void Collective::recv(Tensor& tensor, int src, Tag tag) const {
  Turn const turn(*this, "recv");
  auto& transport = *state_->transport;
  require_tensor(transport, tensor, "recv");
  require_rank(src, "recv", "the source");
  if (src == transport.rank() && transport.world_size() > 1)
    throw UsageError(usage_in(transport, "recv", "a message from oneself"));
  run(transport, transport.post_recv({.bytes = tensor.mutable_bytes()}, src, tag.tag), state_->patience);
}

Collective Collective::split(std::initializer_list<std::initializer_list<int>> groups) const {
  std::vector<std::vector<int>> lists;
  for (auto const& group : groups) lists.emplace_back(group);
  return split(lists);
}

Collective Collective::split(std::vector<std::vector<int>> const& groups, std::string name) const {
  Turn const turn(*this, "split");
  auto& transport = *state_->transport;
  std::set<int> seen;
  std::vector<int> mine;
  ArgumentDigest digest;
  for (auto const& group : groups) {
    digest.add(group.size());
    for (int const rank : group) {
      require_rank(rank, "split", "a listed rank");
      digest.add(static_cast<std::uint64_t>(rank));
      if (!seen.insert(rank).second)
        throw UsageError(usage_in(transport, "split", "rank " + std::to_string(rank) + " is listed twice"));
    }
    if (std::find(group.begin(), group.end(), transport.rank()) != group.end()) mine = group;
  }
  if (name.empty()) name = transport.name() + "/" + std::to_string(state_->splits);
  ++state_->splits;
  auto made = transport.split({Verb::split, digest.value()}, mine, std::move(name), state_->patience);
  return made ? make_collective(std::move(made), state_->patience) : Collective();
}

Collective Collective::split_by(int color, int key) const {
  struct Choice {
    int color;
    int key;
  };
  Choice const mine{color, key};
  auto const all = all_gatherv(std::as_bytes(std::span(&mine, 1)));
  std::vector<std::pair<Choice, int>> chosen;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Choice choice{};
    std::memcpy(&choice, all[rank].data(), sizeof choice);
    if (choice.color >= 0) chosen.emplace_back(choice, static_cast<int>(rank));
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](auto const& a, auto const& b) {
    return std::pair(a.first.color, a.first.key) < std::pair(b.first.color, b.first.key);
  });
  std::vector<std::vector<int>> groups;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (i == 0 || chosen[i].first.color != chosen[i - 1].first.color) groups.emplace_back();
    groups.back().push_back(chosen[i].second);
  }
  return split(groups);
}

void Collective::abort(std::string_view why) const noexcept {
  if (state_) state_->transport->abort(why);
}

void Collective::keep_alive() const noexcept {
  if (!state_) return;
  if (auto const group = state_->transport->node_group()) group->progress();
}

void Collective::close() {
  if (!state_ || state_->closed.load(std::memory_order_relaxed)) return;
  Turn const turn(*this, "close");
  state_->closed.store(true, std::memory_order_relaxed);
  state_->transport->close(state_->patience);
}

}  // namespace crossrank
