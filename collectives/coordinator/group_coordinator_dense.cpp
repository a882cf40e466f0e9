#include <crossrank/group.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>

#include "collectives/coordinator/dense_operations.hpp"
#include "collectives/coordinator/coordinator_state.hpp"
#include "collectives/core/named_calls.hpp"
#include "collectives/core/own_part.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/tensor/strided_runs.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {
namespace {

void require_tensor(Collective const& group, Tensor const& tensor, char const* operation) {
  if (!tensor.defined()) throw_undefined(usage_in(group, operation, {}));
}

void require_first_dim(Collective const& group, Tensor const& tensor, char const* operation) {
  require_tensor(group, tensor, operation);
  if (tensor.shape().empty())
    throw UsageError(usage_in(group, operation, "the tensor has no rows", "a first dimension", to_string(tensor)));
}

/// Throws `UsageError` unless there is one size per rank and none is negative.
void require_sizes(Collective const& group, std::vector<std::int64_t> const& sizes, char const* operation) {
  if (std::ssize(sizes) != group.world_size()) {
    throw UsageError(usage_in(group, operation, "expected one size per rank", std::to_string(group.world_size()),
                              std::to_string(sizes.size())));
  }
  for (auto const size : sizes) {
    if (size < 0) throw UsageError(usage_in(group, operation, "a size is negative", {}, std::to_string(size)));
  }
}

std::vector<std::int64_t> equal_parts(Collective const& group, std::int64_t length, char const* operation) {
  if (length % group.world_size() != 0) {
    throw UsageError(usage_in(group, operation, "the dimension is not divisible by the number of ranks",
                              "a multiple of " + std::to_string(group.world_size()), std::to_string(length)));
  }
  return per_rank(group.world_size(), length / group.world_size());
}

Tensor reduce_scatter_along(Collective const& group, Tensor const& tensor, std::int64_t dim,
                            std::vector<std::int64_t> sizes, ReduceOrder order, char const* operation) {
  require_tensor(group, tensor, operation);
  auto const at = resolve_dim(tensor.shape(), dim, operation);
  auto const length = tensor.shape()[at];
  if (sizes.empty()) sizes = equal_parts(group, length, operation);
  require_sizes(group, sizes, operation);
  if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != length) {
    throw UsageError(usage_in(group, operation, "the sizes do not add up to the dimension", std::to_string(length),
                              std::to_string(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}))));
  }
  auto const mine = at_rank(sizes, group.rank());
  auto const shape = tensor.shape().with(at, mine);
  if (tensor.numel() == 0) return Tensor::zeros(shape, tensor.dtype(), tensor.device());
  // Along the first dimension the data is ordered by rank already.
  if (at == 0) return reduce_parts(group, tensor, sizes, order);
  auto const per_entry = tensor.numel() / length;
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (auto const size : sizes) {
    parts.push_back(slice(tensor, {static_cast<std::int64_t>(at)}, begin, size).reshape({size * per_entry}));
    begin += size;
  }
  // The ranks compare shapes, so the packed data gets one that tells tensors of other shapes apart.
  auto const joined = allocate_result(group, "reduce_scatterv", [&] { return concat(parts); });
  auto const packed = joined.reshape(tensor.shape().with(at, tensor.shape()[0]).with(0, length));
  return reduce_parts(group, packed, sizes, order).reshape(shape);
}

bool on_one_gpu(std::vector<Tensor> const& tensors) {
  auto const device = tensors.front().device();
  return device.kind != Device::Kind::cpu &&
         std::all_of(tensors.begin(), tensors.end(), [&](Tensor const& one) { return one.device() == device; });
}

Tensor all_gather_along(Collective const& group, Tensor const& tensor, std::int64_t dim, char const* operation) {
  require_tensor(group, tensor, operation);
  auto const at = resolve_dim(tensor.shape(), dim, operation);
  std::int64_t const ranks = group.world_size();
  auto joined = empty_result(group, operation, {ranks, tensor.numel()}, tensor);
  group.all_gather(joined, tensor);
  return along(joined, tensor.shape(), at);
}

}  // namespace

Tensor along(Tensor const& joined, Shape const& shape, std::size_t dim) {
  auto const ranks = joined.shape()[0];
  if (dim == 0) return joined.reshape(shape.with(0, shape[0] * ranks));
  std::vector<Tensor> parts;
  for (std::int64_t rank = 0; rank < ranks; ++rank) parts.push_back(joined.narrow(0, rank, 1).reshape(shape));
  return concat(parts, {static_cast<std::int64_t>(dim)});
}

Tensor GroupCoordinator::all_reduce(Tensor const& tensor, ReduceOp op, ReduceOrder order) const {
  if (dense("all_reduce").world_size() == 1) return tensor;
  return all_reduce_out_place(tensor, op, order);
}

Tensor GroupCoordinator::all_reduce_out_place(Tensor const& tensor, ReduceOp op, ReduceOrder order) const {
  auto const& group = dense("all_reduce");
  require_tensor(group, tensor, "all_reduce");
  auto out = allocate_result(group, "all_reduce", [&] { return tensor.clone(); });
  group.all_reduce(out, op, order);
  return out;
}

void GroupCoordinator::all_reduce_in_place(Tensor& tensor, ReduceOp op, ReduceOrder order) const {
  dense("all_reduce").all_reduce(tensor, op, order);
}

Tensor GroupCoordinator::all_gather(Tensor const& tensor, Dim dim) const {
  if (dense("all_gather").world_size() == 1) return tensor;
  return all_gather_out_place(tensor, dim);
}

Tensor GroupCoordinator::all_gather_out_place(Tensor const& tensor, Dim dim) const {
  return all_gather_along(dense("all_gather"), tensor, dim.dim, "all_gather");
}

Tensor GroupCoordinator::all_gatherv(Tensor const& tensor, std::vector<std::int64_t> const& sizes) const {
  return all_gatherv(std::vector<Tensor>{tensor}, sizes).front();
}

std::vector<Tensor> GroupCoordinator::all_gatherv(std::vector<Tensor> const& tensors,
                                                  std::vector<std::int64_t> const& sizes) const {
  constexpr char const* operation = "all_gatherv";
  auto const& group = dense(operation);
  return join_rows(group, tensors, sizes, operation);
}

std::vector<Tensor> join_rows(Collective const& group, std::vector<Tensor> const& tensors,
                              std::vector<std::int64_t> sizes, char const* operation) {
  if (tensors.empty()) return {};
  for (auto const& tensor : tensors) require_first_dim(group, tensor, operation);
  auto const rows = tensors.front().shape()[0];
  for (auto const& tensor : tensors) {
    if (tensor.shape()[0] == rows) continue;
    throw UsageError(usage_in(group, operation, "the tensors have different numbers of rows", std::to_string(rows),
                              to_string(tensor)));
  }
  if (sizes.empty()) sizes = group.all_gather_objects(rows);
  require_sizes(group, sizes, operation);
  if (rows != at_rank(sizes, group.rank())) {
    throw UsageError(usage_in(group, operation, "the number of rows differs from this rank's size",
                              std::to_string(at_rank(sizes, group.rank())), to_string(tensors.front())));
  }
  if (group.world_size() == 1) return tensors;
  auto const total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<Tensor> out;
  for (auto const& tensor : tensors)
    out.push_back(empty_result(group, operation, tensor.shape().with(0, total), tensor));
  if (tensors.size() > 1 && on_one_gpu(tensors)) {
    // Ranks compare their calls before each call on GPUs, so that one call saves more than the packing costs.
    detail::NamedCalls(group, operation).all_gatherv(out, tensors, {.rows = sizes});
  } else {
    for (std::size_t i = 0; i < out.size(); ++i) group.all_gatherv(out[i], tensors[i], {.rows = sizes});
  }
  return out;
}

Tensor GroupCoordinator::reduce_scatter(Tensor const& tensor, Dim dim, ReduceOrder order) const {
  if (dense("reduce_scatter").world_size() == 1) return tensor;
  return reduce_scatter_out_place(tensor, dim, order);
}

Tensor GroupCoordinator::reduce_scatter_out_place(Tensor const& tensor, Dim dim, ReduceOrder order) const {
  return reduce_scatter_along(dense("reduce_scatter"), tensor, dim.dim, {}, order, "reduce_scatter");
}

Tensor GroupCoordinator::reduce_scatterv(Tensor const& tensor, Dim dim, std::vector<std::int64_t> const& sizes,
                                         ReduceOrder order) const {
  return reduce_scatter_along(dense("reduce_scatterv"), tensor, dim.dim, sizes, order, "reduce_scatterv");
}

Tensor GroupCoordinator::gather(Tensor const& tensor, GatherTo to) const {
  auto const& group = dense("gather");
  if (group.world_size() == 1) return tensor;
  checked_rank(group, to.dst, "gather", "the destination");
  require_tensor(group, tensor, "gather");
  auto const at = resolve_dim(tensor.shape(), to.dim, "gather");
  auto const joined = gather_equal(group, tensor, to.dst);
  return joined.defined() ? along(joined, tensor.shape(), at) : Tensor{};
}

Tensor GroupCoordinator::broadcast(Tensor tensor, BroadcastFrom source) const {
  auto const& group = dense("broadcast");
  checked_rank(group, source.src, "broadcast", "the source");
  if (group.world_size() > 1) group.broadcast(tensor, {source.src});
  return tensor;
}

void GroupCoordinator::send(Tensor const& tensor, std::optional<int> dst) const {
  auto const& group = dense("send");
  group.send(tensor, dst.value_or((group.rank() + 1) % group.world_size()));
}

Tensor GroupCoordinator::recv(Shape const& shape, Dtype dtype, std::optional<int> src) const {
  auto const& group = dense("recv");
  int const from = src.value_or((group.rank() + group.world_size() - 1) % group.world_size());
  std::optional<UnavailableError> failure;
  auto const allocate = [&] { return Tensor::empty(shape, dtype, device()); };
  Tensor out;
  try {
    out = device().kind == Device::Kind::cpu ? allocate_result(group, "recv", allocate) : allocate();
  } catch (UnavailableError const& e) {
    if (device().kind == Device::Kind::cpu) throw;
    failure.emplace(own_part_failure(e, "recv", *group.transport()));
    out = Tensor::empty(shape, dtype);  // takes the message anyway, so that the sender does not wait forever
  }
  if (group.transport() == cpu_group().transport()) static_cast<void>(cpu_group_after_dicts(from, "recv"));
  group.recv(out, from);
  if (failure) throw *std::move(failure);
  return out;
}

}  // namespace crossrank
