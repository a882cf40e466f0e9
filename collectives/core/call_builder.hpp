#pragma once
#include <cstdint>
#include <span>

#include <crossrank/collective.hpp>

#include "collectives/algorithms/call.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank {

/// Turns the arguments of the public operations into calls in bytes. Throws `UsageError` for invalid arguments. Local.
class CallBuilder {
 public:
  CallBuilder(spi::Transport const& transport, CheckLevel check) : transport_(transport), check_(check) {}

  using Call = algorithms::Call;
  [[nodiscard]] Call barrier() const;
  [[nodiscard]] Call broadcast(Tensor& tensor, Root root) const;
  [[nodiscard]] Call all_reduce(Tensor& tensor, ReduceOp op, ReduceOrder order) const;
  [[nodiscard]] Call all_reduce(std::span<std::byte> values, Dtype dtype, ReduceOp op) const;
  [[nodiscard]] Call reduce(Tensor& tensor, ReduceOp op, Root root, ReduceOrder order) const;
  [[nodiscard]] Call reduce_scatter(Tensor& out, Tensor const& in, ReduceOp op, ReduceOrder order) const;
  [[nodiscard]] Call reduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op, ReduceOrder order) const;
  [[nodiscard]] Call all_gather(Tensor& out, Tensor const& in) const;
  [[nodiscard]] Call all_gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  [[nodiscard]] Call gather(Tensor& out, Tensor const& in, Root root) const;
  [[nodiscard]] Call gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  [[nodiscard]] Call scatter(Tensor& out, Tensor const& in, Root root) const;
  [[nodiscard]] Call scatterv(Tensor& out, Tensor const& in, Rows rows) const;
  // Fused calls, in fused_calls.cpp.
  [[nodiscard]] Call all_reduce(std::span<Tensor> tensors, ReduceOp op, ReduceOrder order) const;
  [[nodiscard]] Call reduce_scatter(std::span<Tensor> outs, std::span<Tensor const> ins, ReduceOp op,
                                    ReduceOrder order) const;
  [[nodiscard]] Call all_gather(std::span<Tensor> outs, std::span<Tensor const> ins) const;
  /// `called` is the name of the operation for its caller.
  [[nodiscard]] Call all_gatherv(std::span<Tensor> outs, std::span<Tensor const> ins, Rows rows,
                                 char const* called) const;
  [[nodiscard]] Call all_to_all(Tensor& out, Tensor const& in) const;
  [[nodiscard]] Call all_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const;
  [[nodiscard]] Call send(Tensor const& tensor, int dst, Tag tag) const;
  [[nodiscard]] Call recv(Tensor& tensor, int src, Tag tag) const;
  /// The call's `source` names the sender once it has ended.
  [[nodiscard]] Call recv_any(Tensor& tensor, Tag tag) const;
  /// Throws if the operation would overwrite memory while it reads it.
  void require_apart(Tensor const& out, Tensor const& in, char const* operation) const;
  void require_one_device(Tensor const& a, Tensor const& b, char const* operation) const;

 private:
  struct Division {
    std::vector<std::size_t> counts;  ///< bytes of each rank
    std::int64_t rows = 0;            ///< of all
  };

  [[nodiscard]] std::size_t rank() const { return as_size(transport_.rank()); }
  [[nodiscard]] std::size_t ranks() const { return as_size(transport_.world_size()); }
  [[noreturn]] void refuse(char const* operation, std::string message, std::string expected = {},
                           std::string got = {}) const;
  /// Calls `check`, and adds operation, group and rank to its `UsageError`.
  template <class Check>
  auto in_group(char const* operation, Check const& check) const;
  /// Returns a buffer that the transport only reads. A broadcast takes one buffer for both directions.
  [[nodiscard]] spi::Sink read_only_sink(Tensor const& tensor, char const* operation) const;
  [[nodiscard]] spi::Source source(Tensor const& tensor, char const* operation) const;
  [[nodiscard]] spi::Sink sink(Tensor const& tensor, char const* operation) const;
  void require_writable_here(Tensor const& tensor, char const* operation) const;
  /// Throws unless the dtype supports the op.
  void require_op(Dtype dtype, ReduceOp op, char const* operation) const;
  /// The direction of a gather or scatter. `whole` holds the parts of all ranks and counts only on the root.
  enum class Flow : std::uint8_t { to_root, from_root };
  [[nodiscard]] Call equal_parts(Flow flow, Tensor const& whole, Tensor const& part, Root root) const;
  [[nodiscard]] Call unequal_parts(Flow flow, Tensor const& whole, Tensor const& part, Rows rows) const;
  /// Sets what this rank reads and writes. `call.root` is set.
  void set_buffers(Call& call, Flow flow, Tensor const& whole, Tensor const& part, char const* operation) const;
  [[nodiscard]] Call message(spi::OpKind op_kind, Tensor const& tensor, int peer, Tag tag) const;
  void require_rank(int rank, char const* operation, char const* what) const;
  void require_tensor(Tensor const& tensor, char const* operation) const;
  /// Throws unless `whole` holds `ranks` times as many elements as `part`, of the same dtype.
  void require_whole(Tensor const& whole, Tensor const& part, char const* operation) const;
  void require_rows(Tensor const& tensor, std::int64_t rows, char const* operation) const;
  void require_same_rows(Tensor const& a, Tensor const& b, char const* operation) const;
  /// Throws unless `part` is this rank's part of `whole`, `offset` bytes into it, or memory of its own.
  void require_own_part(Tensor const& whole, Tensor const& part, std::size_t offset, char const* operation) const;
  /// Returns the bytes of all ranks before this one.
  [[nodiscard]] std::size_t before(std::span<std::size_t const> counts) const;
  [[nodiscard]] Division divide(std::span<std::int64_t const> rows, Tensor const& like, char const* operation) const;
  [[nodiscard]] std::vector<std::size_t> equal_counts(std::size_t bytes) const;
  /// Throws unless there are as many results as inputs, and at least one.
  void require_pairs(std::size_t outs, std::size_t ins, char const* operation) const;
  void require_same_dtype(std::span<Tensor const> tensors, char const* operation) const;
  /// Throws unless all tensors are on one device.
  void require_fusable(std::span<Tensor const> tensors, char const* operation) const;

  spi::Transport const& transport_;
  CheckLevel check_;
};

}  // namespace crossrank
