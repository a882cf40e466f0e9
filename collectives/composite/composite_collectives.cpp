#include "collectives/composite/composite_transport.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/spi/argument_digest.hpp"
#include "collectives/shm/shm_transport.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/sum.hpp"
#include "lib/tensor/copy_memory.hpp"

/// The steps that each collective is made of.
namespace crossrank::composite {
namespace {

using spi::OpKind;
using spi::RequestId;

constexpr std::size_t small_bytes = std::size_t{1} << 16;  // travels with the round itself
constexpr std::size_t piece_bytes = std::size_t{4} << 20;  // in flight between nodes and inside one at the same time

/// Adds the choice of steps to the digest: the ranks must agree on it as on the arguments.
spi::Signature with_path(spi::Signature signature, std::uint64_t path) {
  return {signature.op_kind, ArgumentDigest().add(signature.digest).add(path).value(), signature.arguments};
}

}  // namespace

RequestId CompositeTransport::post_barrier(spi::Signature signature) {
  CompositeOp op{.op_kind = signature.op_kind};
  op.steps.push_back({&across(), [this, signature] { return across().post_barrier(signature); }});
  return post_steps(std::move(op));
}

RequestId CompositeTransport::post_broadcast(spi::Signature signature, spi::Sink buffer, int root) {
  if (buffer.bytes.size() <= small_bytes) {
    CompositeOp op{.op_kind = signature.op_kind};
    op.steps.push_back({&across(), [this, signature, buffer, root] {
                          return across().post_broadcast(with_path(signature, 1), buffer, root);
                        }});
    return post_steps(std::move(op));
  }
  require_no_collective(spi::to_string(signature.op_kind));
  auto const bytes = buffer.bytes;
  auto const request_id = keep({.op_kind = signature.op_kind, .payload = LargeBroadcast{.buffer = std::move(buffer)}});
  auto& op = operation(request_id);
  announce(op, with_path(signature, bytes.size()),
           {.bytes = bytes.size(), .staged = leader_for(root) == rank() ? bytes.size() : 0},
           [this, &op, bytes, root] { spread(op.steps, bytes, root); });
  return begin_kept(request_id);
}

RequestId CompositeTransport::post_all_gatherv(spi::Signature signature, spi::Source mine,
                                               std::span<std::size_t const> counts, spi::Sink out) {
  if (sum(counts) <= small_bytes) {
    CompositeOp op{.op_kind = signature.op_kind};
    op.steps.push_back({&across(), [this, signature, mine, out, all = std::vector(counts.begin(), counts.end())] {
                          return across().post_all_gatherv(with_path(signature, 1), mine, all, out);
                        }});
    return post_steps(std::move(op));
  }
  require_no_collective(spi::to_string(signature.op_kind));
  std::size_t staged = 0;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    if (leader_for(static_cast<int>(member)) == rank()) staged = std::max(staged, counts[member]);
  }
  auto const own = mine.bytes.size();
  auto const request_id =
      keep({.op_kind = signature.op_kind,
            .payload =
                LargeGather{.mine = std::move(mine), .out = std::move(out), .counts = {counts.begin(), counts.end()}}});
  auto& op = operation(request_id);
  auto& gather = std::get<LargeGather>(op.payload);
  // The sizes that the members send decide what follows, not the sizes that others expect.
  announce(op, with_path(signature, 2), {.bytes = own, .staged = staged},
           [this, &op, &gather] { gather_blocks(op, gather); });
  return begin_kept(request_id);
}

int CompositeTransport::leader_for(int root) const {
  auto const& map = subtransports_.map;
  return at_rank(map.node_of, root) == map.own ? root : map.members_of(map.own).front();
}

std::vector<std::byte> CompositeTransport::reserve_staging(std::size_t bytes) {
  auto* const local = dynamic_cast<shm::ShmTransport*>(subtransports_.local.get());
  if (local == nullptr || local->world_size() == 1) return {};
  try {
    local->reserve_for_broadcast(std::min(bytes, piece_bytes));
    return {};
  } catch (Error const&) {
    return encode_exception(std::current_exception());
  }
}

/// Memory is reserved before anything moves. If a member has none, all learn of it in this round, and the group goes
/// on.
void CompositeTransport::announce(CompositeOp& op, spi::Signature signature, Contribution const& mine,
                                  std::function<void()> then) {
  op.error = reserve_staging(mine.staged);
  auto const own = std::make_shared<Announcement>(Announcement{.bytes = mine.bytes, .error_bytes = op.error.size()});
  op.announced.resize(as_size(world_size()));
  auto const post = [this, signature, own, &op] {
    std::vector<std::size_t> const counts(op.announced.size(), sizeof *own);
    return across().post_all_gatherv(signature, {.bytes = std::as_bytes(std::span(own.get(), 1)), .owner = own}, counts,
                                     {.bytes = std::as_writable_bytes(std::span(op.announced))});
  };
  op.steps.push_back({&across(), post, [this, &op, then = std::move(then)] {
                        bool const all_can =
                            std::ranges::all_of(op.announced, [](auto const& one) { return one.error_bytes == 0; });
                        all_can ? then() : refuse(op);
                      }});
}

/// Adds the exchange of the members' errors.
void CompositeTransport::refuse(CompositeOp& op) {
  std::vector<std::size_t> counts;
  for (auto const& one : op.announced) counts.push_back(one.error_bytes);
  auto const records = std::make_shared<std::vector<std::byte>>(sum(counts));
  auto const post = [this, &op, counts, records] {
    return across().post_all_gatherv({.op_kind = op.op_kind}, {.bytes = op.error}, counts,
                                     {.bytes = *records, .owner = records});
  };
  op.steps.push_back({&across(), post, [this, &op, counts, records] {
                        try {
                          throw_member_errors(decode_errors(counts, *records), spi::to_string(op.op_kind));
                        } catch (Error const&) {
                          op.failure = std::current_exception();
                        }
                      }});
}

/// Adds one spread for each member's block, once the sizes are known.
void CompositeTransport::gather_blocks(CompositeOp& op, LargeGather& gather) {
  std::vector<std::size_t> sizes;
  for (auto const& one : op.announced) sizes.push_back(one.bytes);
  auto buffer = gather.out.bytes;
  for (std::size_t member = 0; member < sizes.size() && !op.failure; ++member) {
    if (sizes[member] == gather.counts[member]) continue;
    op.failure = std::make_exception_ptr(MismatchError(
        error_in(*this, {.operation = spi::to_string(op.op_kind),
                         .message = "rank " + std::to_string(member) + " sent a different number of bytes than agreed",
                         .expected = std::to_string(gather.counts[member]),
                         .got = std::to_string(sizes[member]),
                         .failed_ranks = {static_cast<int>(member)}})));
    gather.scratch.resize(sum(sizes));
    buffer = gather.scratch;
  }
  std::size_t offset = 0;
  for (std::size_t member = 0; member < sizes.size(); ++member) {
    auto const block = buffer.subspan(offset, sizes[member]);
    offset += sizes[member];
    if (static_cast<int>(member) == rank() && block.data() != gather.mine.bytes.data() && !block.empty())
      copy_memory(block.data(), gather.mine.bytes.data(), block.size());
    spread(op.steps, block, static_cast<int>(member));
  }
}

void CompositeTransport::spread(std::deque<Step>& steps, std::span<std::byte> bytes, int root) {
  for (std::size_t at = 0; at < bytes.size(); at += piece_bytes)
    spread_piece(steps, bytes.subspan(at, std::min(piece_bytes, bytes.size() - at)), root);
}

/// The piece goes down a chain with one member of each node, from the root's node on. Each of these members broadcasts
/// it on its node.
void CompositeTransport::spread_piece(std::deque<Step>& steps, std::span<std::byte> piece, int root) {
  auto const& map = subtransports_.map;
  auto const nodes = static_cast<int>(map.nodes.size());
  auto const start = at_rank(map.node_of, root);
  auto const leader = [&](int node) {
    return node == start ? root : map.members_of((node % nodes + nodes) % nodes).front();
  };
  auto const place = (map.own - start + nodes) % nodes;
  auto* const bulk = subtransports_.bulk.get();
  auto* const local = subtransports_.local.get();
  if (leader(map.own) == rank()) {
    if (place != 0) {
      auto const src = leader((map.own - 1 + nodes) % nodes);
      steps.push_back({bulk, [bulk, piece, src] { return bulk->post_recv({.bytes = piece}, src, 0); }});
    }
    if (place != nodes - 1) {
      auto const dst = leader((map.own + 1) % nodes);
      steps.push_back({bulk, [bulk, piece, dst] { return bulk->post_send({.bytes = piece}, dst, 0); }});
    }
  }
  if (local->world_size() == 1) return;
  auto const from = map.place_of(leader(map.own));
  steps.push_back({local, [local, piece, from] {
                     return local->post_broadcast({.op_kind = OpKind::broadcast}, {.bytes = piece}, from);
                   }});
}

// The bytes of a gather or scatter travel straight to the rank that needs them.

template <class Post>
std::optional<RequestId> CompositeTransport::post_across(OpKind op_kind, Post post) {
  require_no_collective(spi::to_string(op_kind));
  try {
    auto const request_id = post(across());
    if (!request_id) return {};
    CompositeOp op{.op_kind = op_kind, .request_id = *request_id};
    op.steps.push_back({&across(), {}});
    return keep(std::move(op));
  } catch (Error const& e) {
    if (e.group_usable()) throw;
    end_with(&across(), spi::to_string(op_kind));
  }
}

std::optional<RequestId> CompositeTransport::post_gatherv(spi::Signature signature, spi::Source const& mine,
                                                          std::span<std::size_t const> counts, spi::Sink const& out,
                                                          int root) {
  return post_across(signature.op_kind, [&](spi::Transport& transport) {
    return transport.post_gatherv(signature, mine, counts, out, root);
  });
}

std::optional<RequestId> CompositeTransport::post_scatterv(spi::Signature signature, spi::Source const& all,
                                                           std::span<std::size_t const> counts, spi::Sink const& mine,
                                                           int root) {
  return post_across(signature.op_kind, [&](spi::Transport& transport) {
    return transport.post_scatterv(signature, all, counts, mine, root);
  });
}

/// One round on `across` compares what all members send and expect, and moves what goes to other nodes. The rest goes
/// through the memory of each node, unless a member lacks it.
std::optional<RequestId> CompositeTransport::post_all_to_allv(spi::Signature signature, spi::Source const& in,
                                                              std::span<std::size_t const> send_counts,
                                                              spi::Sink const& out,
                                                              std::span<std::size_t const> recv_counts) {
  auto const on_node = parts_on_node(in, send_counts, out, recv_counts);
  if (!on_node) {
    return post_across(signature.op_kind, [&](spi::Transport& transport) {
      return transport.post_all_to_allv(signature, in, send_counts, out, recv_counts);
    });
  }
  require_no_collective(spi::to_string(signature.op_kind));
  auto const request_id = keep({.op_kind = signature.op_kind});
  auto& op = operation(request_id);
  message::Shortcut const shortcut{.members = {node_ranks().begin(), node_ranks().end()},
                                   .lacks_memory = !reserve_for_exchange(on_node->in.bytes.size()),
                                   .use = std::make_shared<bool>(false)};
  auto const post = [this, signature, in, out, shortcut, sends = std::vector(send_counts.begin(), send_counts.end()),
                     expects = std::vector(recv_counts.begin(), recv_counts.end())] {
    return neighbours_->messages->post_exchange(signature, in, sends, out, expects, shortcut);
  };
  auto* const local = subtransports_.local.get();
  auto const move_on_node = [local, on_node] {
    return *local->post_all_to_allv({.op_kind = OpKind::all_to_allv}, on_node->in, on_node->send_counts, on_node->out,
                                    on_node->recv_counts);
  };
  op.steps.push_back({&across(), post, [&op, local, move_on_node, use = shortcut.use] {
                        if (*use) op.steps.push_back({local, move_on_node});
                      }});
  return begin_kept(request_id);
}

/// The members of this node must follow one another, so that their parts do in both buffers.
std::optional<CompositeTransport::NodeParts> CompositeTransport::parts_on_node(
    spi::Source const& in, std::span<std::size_t const> send_counts, spi::Sink const& out,
    std::span<std::size_t const> recv_counts) const {
  auto const members = node_ranks();
  if (!neighbours_ || members.back() - members.front() + 1 != static_cast<int>(members.size())) return {};
  auto const first = as_size(members.front());
  auto const sends = send_counts.subspan(first, members.size());
  auto const expects = recv_counts.subspan(first, members.size());
  NodeParts parts{.in = in,
                  .out = out,
                  .send_counts = {sends.begin(), sends.end()},
                  .recv_counts = {expects.begin(), expects.end()}};
  parts.in.bytes = in.bytes.subspan(sum(send_counts.first(first)), sum(sends));
  parts.out.bytes = out.bytes.subspan(sum(recv_counts.first(first)), sum(expects));
  return parts;
}

bool CompositeTransport::reserve_for_exchange(std::size_t bytes) noexcept {
  auto* const local = dynamic_cast<shm::ShmTransport*>(subtransports_.local.get());
  try {
    if (local != nullptr) local->reserve_for_exchange(bytes);
    return true;
  } catch (std::exception const&) {
    return false;
  }
}

}  // namespace crossrank::composite
