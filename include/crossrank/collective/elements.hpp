#pragma once
#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>

#include <crossrank/collective.hpp>
#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/element_range.hpp>
#include <crossrank/export.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/tensor.hpp>

// The members of `Collective` that take elements. Each calls the member for tensors with a tensor of one dimension over
// the elements.
namespace crossrank {

namespace detail {

/// A tensor over the caller's elements for the duration of one call. Allocates nothing.
class CROSSRANK_EXPORT ElementsOfCall final : public spi::Storage {
 public:
  template <ElementRange R>
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): the other constructor initializes all members
  explicit ElementsOfCall(R& values)
      : ElementsOfCall(std::data(values), std::size(values), dtype_of<std::remove_cv_t<ElementOf<R>>>) {}
  ~ElementsOfCall() override;
  ElementsOfCall(ElementsOfCall const&) = delete;
  ElementsOfCall& operator=(ElementsOfCall const&) = delete;

  /// Returns the tensor. Neither it nor a copy of it may outlive this object.
  [[nodiscard]] Tensor& tensor() noexcept { return tensor_; }
  [[nodiscard]] std::byte* data() noexcept override { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }

 private:
  ElementsOfCall(void const* data, std::size_t count, Dtype dtype);

  std::byte* data_;
  std::size_t bytes_;
  Tensor tensor_{};
};

/// A tensor over the caller's elements that a request may hold.
class ElementsOfRequest {
 public:
  template <ElementRange R>
  explicit ElementsOfRequest(R& values)
      : tensor_(over(std::data(values), std::size(values), dtype_of<std::remove_cv_t<ElementOf<R>>>)) {}
  [[nodiscard]] Tensor& tensor() noexcept { return tensor_; }

 private:
  [[nodiscard]] CROSSRANK_EXPORT static Tensor over(void const* data, std::size_t count, Dtype dtype);
  Tensor tensor_;
};

}  // namespace detail

template <MutableElementRange R>
void Collective::all_reduce(R&& values, ReduceOp op) const {
  std::span const span(values);
  all_reduce_bytes(std::as_writable_bytes(span), dtype_of<detail::ElementOf<R>>, op);
}
template <MutableElementRange R>
Request Collective::iall_reduce(R&& values, ReduceOp op) const {
  return iall_reduce(detail::ElementsOfRequest(values).tensor(), op);
}
template <Element T>
T Collective::all_reduce_value(T value, ReduceOp op) const {
  all_reduce_bytes(std::as_writable_bytes(std::span(&value, 1)), dtype_of<T>, op);
  return value;
}

template <MutableElementRange R>
void Collective::broadcast(R&& values, Root root) const {
  broadcast(detail::ElementsOfCall(values).tensor(), root);
}
template <MutableElementRange R>
Request Collective::ibroadcast(R&& values, Root root) const {
  return ibroadcast(detail::ElementsOfRequest(values).tensor(), root);
}

template <MutableElementRange R>
void Collective::reduce(R&& values, ReduceOp op, Root root) const {
  reduce(detail::ElementsOfCall(values).tensor(), op, root);
}
template <MutableElementRange R>
Request Collective::ireduce(R&& values, ReduceOp op, Root root) const {
  return ireduce(detail::ElementsOfRequest(values).tensor(), op, root);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::reduce_scatter(Out&& out, In&& in, ReduceOp op) const {
  reduce_scatter(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), op);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::ireduce_scatter(Out&& out, In&& in, ReduceOp op) const {
  return ireduce_scatter(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), op);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::reduce_scatterv(Out&& out, In&& in, Rows rows, ReduceOp op) const {
  reduce_scatterv(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), rows, op);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::ireduce_scatterv(Out&& out, In&& in, Rows rows, ReduceOp op) const {
  return ireduce_scatterv(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), rows, op);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::all_gather(Out&& out, In&& in) const {
  all_gather(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor());
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::iall_gather(Out&& out, In&& in) const {
  return iall_gather(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor());
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::all_gatherv(Out&& out, In&& in, Rows rows) const {
  all_gatherv(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), rows);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::iall_gatherv(Out&& out, In&& in, Rows rows) const {
  return iall_gatherv(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), rows);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::gather(Out&& out, In&& in, Root root) const {
  gather(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), root);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::igather(Out&& out, In&& in, Root root) const {
  return igather(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), root);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::gatherv(Out&& out, In&& in, Rows rows) const {
  gatherv(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), rows);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::igatherv(Out&& out, In&& in, Rows rows) const {
  return igatherv(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), rows);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::scatter(Out&& out, In&& in, Root root) const {
  scatter(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), root);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::iscatter(Out&& out, In&& in, Root root) const {
  return iscatter(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), root);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::scatterv(Out&& out, In&& in, Rows rows) const {
  scatterv(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), rows);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::iscatterv(Out&& out, In&& in, Rows rows) const {
  return iscatterv(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), rows);
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::all_to_all(Out&& out, In&& in) const {
  all_to_all(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor());
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::iall_to_all(Out&& out, In&& in) const {
  return iall_to_all(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor());
}

template <MutableElementRange Out, ElementRangeLike<Out> In>
void Collective::all_to_allv(Out&& out, In&& in, ExchangedRows rows) const {
  all_to_allv(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), rows);
}
template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
Request Collective::iall_to_allv(Out&& out, In&& in, ExchangedRows rows) const {
  return iall_to_allv(detail::ElementsOfRequest(out).tensor(), detail::ElementsOfRequest(in).tensor(), rows);
}

template <ElementRange R>
void Collective::send(R&& values, int dst, Tag tag) const {
  send(detail::ElementsOfCall(values).tensor(), dst, tag);
}
template <BorrowedElementRange R>
Request Collective::isend(R&& values, int dst, Tag tag) const {
  return isend(detail::ElementsOfRequest(values).tensor(), dst, tag);
}

template <MutableElementRange R>
void Collective::recv(R&& values, int src, Tag tag) const {
  recv(detail::ElementsOfCall(values).tensor(), src, tag);
}
template <MutableElementRange R>
Request Collective::irecv(R&& values, int src, Tag tag) const {
  return irecv(detail::ElementsOfRequest(values).tensor(), src, tag);
}

template <MutableElementRange R>
int Collective::recv_any(R&& values, Tag tag) const {
  return recv_any(detail::ElementsOfCall(values).tensor(), tag);
}
template <MutableElementRange R>
Request Collective::irecv_any(R&& values, Tag tag) const {
  return irecv_any(detail::ElementsOfRequest(values).tensor(), tag);
}

template <MutableElementRange Out, ElementRange In>
void Collective::sendrecv(Out&& out, In&& in, Partners partners) const {
  sendrecv(detail::ElementsOfCall(out).tensor(), detail::ElementsOfCall(in).tensor(), partners);
}

}  // namespace crossrank
