#include "collectives/core/call_builder.hpp"

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/core/agreed_arguments.hpp"
#include "collectives/core/group_state.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {

using algorithms::Call;
using spi::OpKind;

namespace {

bool have_common_bytes(Tensor const& a, Tensor const& b) {
  if (a.nbytes() == 0 || b.nbytes() == 0) return false;
  std::less<std::byte const*> const before;
  return before(a.data(), b.data() + b.nbytes()) && before(b.data(), a.data() + a.nbytes());
}

}  // namespace

// ---------------------------------------------------------------- checks

void CallBuilder::refuse(char const* operation, std::string message, std::string expected, std::string got) const {
  throw UsageError(detail::usage_in(transport_, operation, std::move(message), std::move(expected), std::move(got)));
}

template <class Check>
auto CallBuilder::in_group(char const* operation, Check const& check) const {
  try {
    return check();
  } catch (UsageError const& e) {
    auto info = e.info();
    info.operation = operation;
    throw UsageError(spi::error_in(transport_, std::move(info)));
  }
}

spi::Sink CallBuilder::read_only_sink(Tensor const& tensor, char const* operation) const {
  in_group(operation, [&] { require_usable(tensor, operation); });
  return {.bytes = {tensor.data(), tensor.nbytes()}, .owner = tensor.storage()};
}

spi::Source CallBuilder::source(Tensor const& tensor, char const* operation) const {
  auto all = read_only_sink(tensor, operation);
  return {.bytes = all.bytes, .owner = std::move(all.owner)};
}

spi::Sink CallBuilder::sink(Tensor const& tensor, char const* operation) const {
  require_writable_here(tensor, operation);
  return read_only_sink(tensor, operation);
}

void CallBuilder::require_writable_here(Tensor const& tensor, char const* operation) const {
  in_group(operation, [&] { require_writable(tensor, operation); });
}

void CallBuilder::require_op(Dtype dtype, ReduceOp op, char const* operation) const {
  in_group(operation, [&] { static_cast<void>(algorithms::reducer({dtype, op}, operation)); });
}

void CallBuilder::require_rank(int rank, char const* operation, char const* what) const {
  if (rank >= 0 && rank < transport_.world_size()) return;
  refuse(operation, std::string(what) + " is not a rank of the group",
         "0 to " + std::to_string(transport_.world_size() - 1), std::to_string(rank));
}

void CallBuilder::require_tensor(Tensor const& tensor, char const* operation) const {
  if (!tensor.defined()) throw_undefined(detail::usage_in(transport_, operation, {}));
}

void CallBuilder::require_one_device(Tensor const& a, Tensor const& b, char const* operation) const {
  if (a.device() == b.device()) return;
  refuse(operation, "the tensors are on different devices", to_string(a.device()), to_string(b.device()));
}

void CallBuilder::require_whole(Tensor const& whole, Tensor const& part, char const* operation) const {
  require_tensor(whole, operation);
  require_tensor(part, operation);
  require_one_device(whole, part, operation);
  auto const n = static_cast<std::int64_t>(ranks());
  bool const fits = whole.dtype() == part.dtype() && whole.numel() % n == 0 && whole.numel() / n == part.numel();
  if (!fits) {
    refuse(operation, "the tensors do not fit together", std::to_string(n) + " x " + to_string(part), to_string(whole));
  }
}

void CallBuilder::require_rows(Tensor const& tensor, std::int64_t rows, char const* operation) const {
  require_tensor(tensor, operation);
  if (tensor.shape().empty() || tensor.shape()[0] != rows)
    refuse(operation, "the tensor has the wrong number of rows", std::to_string(rows) + " rows", to_string(tensor));
}

void CallBuilder::require_same_rows(Tensor const& a, Tensor const& b, char const* operation) const {
  require_one_device(a, b, operation);
  bool const same = a.dtype() == b.dtype() && a.shape().with(0, 0) == b.shape().with(0, 0);
  if (!same) refuse(operation, "the tensors do not fit together", "rows as of " + to_string(a), to_string(b));
}

void CallBuilder::require_apart(Tensor const& out, Tensor const& in, char const* operation) const {
  if (have_common_bytes(out, in)) refuse(operation, "the tensors overlap", "memory of its own for the result");
}

void CallBuilder::require_own_part(Tensor const& whole, Tensor const& part, std::size_t offset,
                                   char const* operation) const {
  if (have_common_bytes(whole, part) && part.data() != whole.data() + offset)
    refuse(operation, "the tensors overlap", "this rank's own part of the whole, or memory of its own");
}

std::size_t CallBuilder::before(std::span<std::size_t const> counts) const {
  return std::accumulate(counts.begin(), counts.begin() + transport_.rank(), std::size_t{0});
}

std::vector<std::size_t> CallBuilder::equal_counts(std::size_t bytes) const {
  return std::vector<std::size_t>(ranks(), bytes);
}

/// Divides the rows of `like` among the ranks. Checks every number in `rows`, which only this rank has seen.
CallBuilder::Division CallBuilder::divide(std::span<std::int64_t const> rows, Tensor const& like,
                                          char const* operation) const {
  if (rows.size() != ranks()) {
    refuse(operation, "the number of rows of each rank is missing", std::to_string(ranks()) + " numbers",
           std::to_string(rows.size()));
  }
  require_tensor(like, operation);
  if (like.shape().empty()) refuse(operation, "a scalar has no rows", "at least one dimension", to_string(like));
  auto const bytes_of_rows = [&](std::int64_t count) {
    return in_group(operation, [&] { return dense_bytes(like.shape().with(0, count), like.dtype()); });
  };
  Division division;
  for (auto const count : rows) {
    if (count < 0) refuse(operation, "a number of rows is negative", "0 or more", std::to_string(count));
    if (count > std::numeric_limits<std::int64_t>::max() - division.rows)
      refuse(operation, "the total number of rows is too large", "less than 2^63 in all");
    division.rows += count;
    division.counts.push_back(bytes_of_rows(count));
  }
  static_cast<void>(bytes_of_rows(division.rows));  // refuses a sum that overflows
  return division;
}

// ---------------------------------------------------------------- operations

Call CallBuilder::barrier() const { return {.signature = {.op_kind = OpKind::barrier}}; }

Call CallBuilder::broadcast(Tensor& tensor, Root root) const {
  require_tensor(tensor, "broadcast");
  require_rank(root.root, "broadcast", "the root");
  Call call{.root = root.root};
  call.out = root.root == transport_.rank() ? read_only_sink(tensor, "broadcast") : sink(tensor, "broadcast");
  AgreedArguments(check_)
      .device(tensor.device())
      .root(root.root)
      .dtype(tensor.dtype())
      .shape(tensor.shape())
      .into(call, OpKind::broadcast);
  return call;
}

Call CallBuilder::all_reduce(std::span<std::byte> values, Dtype dtype, ReduceOp op) const {
  require_op(dtype, op, "all_reduce");
  Call call{.in = {.bytes = values}, .out = {.bytes = values}, .reduction = {dtype, op}};
  auto const count = static_cast<std::int64_t>(values.size() * 8 / bits_of(dtype));
  AgreedArguments(check_).dtype(dtype).op(op).shape({count}).into(call, OpKind::all_reduce);
  return call;
}

Call CallBuilder::all_reduce(Tensor& tensor, ReduceOp op, ReduceOrder order) const {
  require_tensor(tensor, "all_reduce");
  require_op(tensor.dtype(), op, "all_reduce");
  Call call{.in = source(tensor, "all_reduce"), .out = sink(tensor, "all_reduce"), .reduction = {tensor.dtype(), op}};
  AgreedArguments(check_)
      .device(tensor.device())
      .dtype(tensor.dtype())
      .op(op)
      .order(order)
      .shape(tensor.shape())
      .into(call, OpKind::all_reduce);
  return call;
}

Call CallBuilder::reduce(Tensor& tensor, ReduceOp op, Root root, ReduceOrder order) const {
  require_tensor(tensor, "reduce");
  require_rank(root.root, "reduce", "the root");
  require_op(tensor.dtype(), op, "reduce");
  Call call{.in = source(tensor, "reduce"), .root = root.root, .reduction = {tensor.dtype(), op}};
  if (root.root == transport_.rank()) call.out = sink(tensor, "reduce");
  AgreedArguments(check_)
      .device(tensor.device())
      .root(root.root)
      .dtype(tensor.dtype())
      .op(op)
      .order(order)
      .shape(tensor.shape())
      .into(call, OpKind::reduce);
  return call;
}

Call CallBuilder::reduce_scatter(Tensor& out, Tensor const& in, ReduceOp op, ReduceOrder order) const {
  require_whole(in, out, "reduce_scatter");
  require_apart(out, in, "reduce_scatter");
  require_op(in.dtype(), op, "reduce_scatter");
  Call call{.in = source(in, "reduce_scatter"),
            .out = sink(out, "reduce_scatter"),
            .counts = equal_counts(out.nbytes()),
            .reduction = {in.dtype(), op}};
  AgreedArguments(check_)
      .device(in.device())
      .dtype(in.dtype())
      .op(op)
      .order(order)
      .shape(out.shape())
      .into(call, OpKind::reduce_scatterv, "reduce_scatter");
  return call;
}

Call CallBuilder::reduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op, ReduceOrder order) const {
  auto division = divide(rows.rows, in, "reduce_scatterv");
  require_rows(in, division.rows, "reduce_scatterv");
  require_rows(out, rows.rows[rank()], "reduce_scatterv");
  require_same_rows(in, out, "reduce_scatterv");
  require_apart(out, in, "reduce_scatterv");
  require_op(in.dtype(), op, "reduce_scatterv");
  Call call{.in = source(in, "reduce_scatterv"),
            .out = sink(out, "reduce_scatterv"),
            .counts = std::move(division.counts),
            .reduction = {in.dtype(), op}};
  AgreedArguments(check_)
      .device(in.device())
      .dtype(in.dtype())
      .op(op)
      .order(order)
      .row(in.shape())
      .rows(rows.rows)
      .into(call, OpKind::reduce_scatterv);
  return call;
}

Call CallBuilder::all_gather(Tensor& out, Tensor const& in) const {
  require_whole(out, in, "all_gather");
  require_own_part(out, in, rank() * in.nbytes(), "all_gather");
  Call call{.in = source(in, "all_gather"), .out = sink(out, "all_gather"), .counts = equal_counts(in.nbytes())};
  AgreedArguments(check_)
      .device(in.device())
      .dtype(in.dtype())
      .shape(in.shape())
      .into(call, OpKind::all_gatherv, "all_gather");
  return call;
}

Call CallBuilder::all_gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  auto division = divide(rows.rows, in, "all_gatherv");
  require_rows(in, rows.rows[rank()], "all_gatherv");
  require_rows(out, division.rows, "all_gatherv");
  require_same_rows(in, out, "all_gatherv");
  require_own_part(out, in, before(division.counts), "all_gatherv");
  Call call{.in = source(in, "all_gatherv"), .out = sink(out, "all_gatherv"), .counts = std::move(division.counts)};
  AgreedArguments(check_)
      .device(in.device())
      .dtype(in.dtype())
      .row(in.shape())
      .rows(rows.rows)
      .into(call, OpKind::all_gatherv);
  return call;
}

void CallBuilder::set_buffers(Call& call, Flow flow, Tensor const& whole, Tensor const& part,
                              char const* operation) const {
  bool const is_root = call.root == transport_.rank();
  if (flow == Flow::to_root) {
    call.in = source(part, operation);
    if (is_root) call.out = sink(whole, operation);
  } else {
    call.out = sink(part, operation);
    if (is_root) call.in = source(whole, operation);
  }
}

Call CallBuilder::equal_parts(Flow flow, Tensor const& whole, Tensor const& part, Root root) const {
  auto const* const operation = flow == Flow::to_root ? "gather" : "scatter";
  require_rank(root.root, operation, "the root");
  require_tensor(part, operation);
  if (root.root == transport_.rank()) {
    require_whole(whole, part, operation);
    require_own_part(whole, part, rank() * part.nbytes(), operation);
  }
  Call call{.counts = equal_counts(part.nbytes()), .root = root.root};
  set_buffers(call, flow, whole, part, operation);
  AgreedArguments(check_)
      .device(part.device())
      .root(root.root)
      .dtype(part.dtype())
      .shape(part.shape())
      .into(call, flow == Flow::to_root ? OpKind::gatherv : OpKind::scatterv, operation);
  return call;
}

Call CallBuilder::unequal_parts(Flow flow, Tensor const& whole, Tensor const& part, Rows rows) const {
  auto const* const operation = flow == Flow::to_root ? "gatherv" : "scatterv";
  require_rank(rows.root, operation, "the root");
  auto division = divide(rows.rows, part, operation);
  require_rows(part, rows.rows[rank()], operation);
  if (rows.root == transport_.rank()) {
    require_rows(whole, division.rows, operation);
    require_same_rows(part, whole, operation);
    require_own_part(whole, part, before(division.counts), operation);
  }
  Call call{.counts = std::move(division.counts), .root = rows.root};
  set_buffers(call, flow, whole, part, operation);
  AgreedArguments(check_)
      .device(part.device())
      .root(rows.root)
      .dtype(part.dtype())
      .row(part.shape())
      .rows(rows.rows)
      .into(call, flow == Flow::to_root ? OpKind::gatherv : OpKind::scatterv);
  return call;
}

Call CallBuilder::gather(Tensor& out, Tensor const& in, Root root) const {
  return equal_parts(Flow::to_root, out, in, root);
}

Call CallBuilder::gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  return unequal_parts(Flow::to_root, out, in, rows);
}

Call CallBuilder::scatter(Tensor& out, Tensor const& in, Root root) const {
  return equal_parts(Flow::from_root, in, out, root);
}

Call CallBuilder::scatterv(Tensor& out, Tensor const& in, Rows rows) const {
  return unequal_parts(Flow::from_root, in, out, rows);
}

Call CallBuilder::all_to_all(Tensor& out, Tensor const& in) const {
  require_tensor(in, "all_to_all");
  require_tensor(out, "all_to_all");
  require_one_device(in, out, "all_to_all");
  bool const fits = in.dtype() == out.dtype() && in.nbytes() == out.nbytes() &&
                    in.numel() % static_cast<std::int64_t>(ranks()) == 0 && in.nbytes() % ranks() == 0;
  if (!fits) {
    refuse("all_to_all", "the tensors do not fit together", "two of a multiple of " + std::to_string(ranks()),
           to_string(in) + " and " + to_string(out));
  }
  require_apart(out, in, "all_to_all");
  auto const part = in.nbytes() / ranks();
  Call call{.in = source(in, "all_to_all"),
            .out = sink(out, "all_to_all"),
            .counts = equal_counts(part),
            .receive_counts = equal_counts(part),
            .is_even = true};
  AgreedArguments(check_)
      .device(in.device())
      .dtype(in.dtype())
      .shape(in.shape())
      .into(call, OpKind::all_to_allv, "all_to_all");
  return call;
}

Call CallBuilder::all_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const {
  auto sent = divide(rows.send, in, "all_to_allv");
  auto received = divide(rows.receive, out, "all_to_allv");
  require_rows(in, sent.rows, "all_to_allv");
  require_rows(out, received.rows, "all_to_allv");
  require_same_rows(in, out, "all_to_allv");
  require_apart(out, in, "all_to_allv");
  Call call{.in = source(in, "all_to_allv"),
            .out = sink(out, "all_to_allv"),
            .counts = std::move(sent.counts),
            .receive_counts = std::move(received.counts)};
  AgreedArguments(check_).device(in.device()).dtype(in.dtype()).row(in.shape()).into(call, OpKind::all_to_allv);
  return call;
}

/// Where calls are compared, the tag of a message also encodes dtype and shape, because every backend compares tags.
Call CallBuilder::message(OpKind op_kind, Tensor const& tensor, int peer, Tag tag) const {
  Call call{.signature = {.op_kind = op_kind}, .message = {.partner = peer, .tag = tag.tag}, .device = tensor.device()};
  if (check_ != CheckLevel::collective) return call;
  AgreedArguments(check_).dtype(tensor.dtype()).shape(tensor.shape()).tag(tag).into(call, op_kind);
  call.device = tensor.device();  // the device is not compared: a message may go from a GPU to a CPU
  call.message.tag = static_cast<std::uint32_t>(call.signature.digest);
  return call;
}

Call CallBuilder::send(Tensor const& tensor, int dst, Tag tag) const {
  require_tensor(tensor, "send");
  require_rank(dst, "send", "the destination");
  if (dst == transport_.rank() && ranks() > 1) refuse("send", "a rank cannot send to itself");
  auto call = message(OpKind::send, tensor, dst, tag);
  call.in = source(tensor, "send");
  return call;
}

Call CallBuilder::recv(Tensor& tensor, int src, Tag tag) const {
  require_tensor(tensor, "recv");
  require_rank(src, "recv", "the source");
  if (src == transport_.rank() && ranks() > 1) refuse("recv", "a rank cannot receive from itself");
  auto call = message(OpKind::recv, tensor, src, tag);
  call.out = sink(tensor, "recv");
  return call;
}

Call CallBuilder::recv_any(Tensor& tensor, Tag tag) const {
  require_tensor(tensor, "recv_any");
  auto call = message(OpKind::recv_any, tensor, 0, tag);
  call.out = sink(tensor, "recv_any");
  call.message.source = std::make_shared<int>(-1);
  return call;
}

}  // namespace crossrank
