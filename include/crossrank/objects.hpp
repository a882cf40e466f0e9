#pragma once
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/export.hpp>
#include <crossrank/serialize.hpp>

namespace crossrank {

namespace detail {

using Bytes = std::vector<std::byte>;

/// Makes this rank's part of a call. An exception reaches its own caller unchanged and every other rank of the call as
/// a `RemoteError`; the group stays usable.
using Produce = std::function<Bytes()>;

/// Returns the root's bytes; empty on the root itself.
[[nodiscard]] CROSSRANK_EXPORT Bytes broadcast_bytes(Collective const& group, char const* operation, int root,
                                                     Produce const& produce);
/// Returns the bytes of each rank, in rank order.
[[nodiscard]] CROSSRANK_EXPORT std::vector<Bytes> all_gather_bytes(Collective const& group, char const* operation,
                                                                   Produce const& produce);
/// Returns the bytes of each rank, in rank order, on the root; empty elsewhere.
[[nodiscard]] CROSSRANK_EXPORT std::vector<Bytes> gather_bytes(Collective const& group, char const* operation, int root,
                                                               Produce const& produce);
/// Returns this rank's part of the list that the root makes.
[[nodiscard]] CROSSRANK_EXPORT Bytes scatter_bytes(Collective const& group, char const* operation, int root,
                                                   std::function<std::vector<Bytes>()> const& produce);
/// Sends the bytes to rank `dst`.
CROSSRANK_EXPORT void send_bytes(Collective const& group, char const* operation, int dst, Produce const& produce);
/// Returns the next bytes from rank `src`.
[[nodiscard]] CROSSRANK_EXPORT Bytes recv_bytes(Collective const& group, char const* operation, int src);
/// Throws `error` with the operation, group and rank added.
[[noreturn]] CROSSRANK_EXPORT void refuse_object_in(Collective const& group, char const* operation,
                                                    FormatError const& error);
/// Returns the object in the bytes that a call delivered. `FormatError` names operation, group and rank.
template <class T>
[[nodiscard]] T decode_in(Collective const& group, char const* operation, Bytes const& bytes) {
  try {
    return decode_object<T>(bytes);
  } catch (FormatError const& e) {
    refuse_object_in(group, operation, e);
  }
}
/// Throws the error of a list that has not one value for each rank.
[[noreturn]] CROSSRANK_EXPORT void refuse_list(Collective const& group, char const* operation, std::size_t expected,
                                               std::size_t got);

}  // namespace detail

/// Returns the root's object on every rank. Only the root's `value` is used.
///
/// Collective; one barrier round up to 48 bytes, then one more for each 16 MiB. `FormatError` on a rank that expects
/// another type or version. `UsageError` on the root and `RemoteError` elsewhere when the root cannot encode the object
/// (JSON of more than 32 levels, text that is not UTF-8). Follows `broadcast_object` of vLLM's coordinator.
template <class T>
T Collective::broadcast_object(T value, Root root) const {
  detail::require_object<T>();
  auto const bytes =
      detail::broadcast_bytes(*this, "broadcast_object", root.root, [&] { return encode_object(value); });
  return rank() == root.root ? std::move(value) : detail::decode_in<T>(*this, "broadcast_object", bytes);
}

/// Replaces `values` by the root's, in place.
///
/// Collective; costs and errors as for `broadcast_object`. `MismatchError` on a rank whose number of values differs
/// from the root's. Follows `broadcast_object_list` of PyTorch.
template <class T>
void Collective::broadcast_objects(std::vector<T>& values, Root root) const {
  detail::require_object<T>();
  auto const bytes =
      detail::broadcast_bytes(*this, "broadcast_objects", root.root, [&] { return encode_object(values); });
  if (rank() == root.root) return;
  auto got = detail::decode_in<std::vector<T>>(*this, "broadcast_objects", bytes);
  if (got.size() != values.size()) detail::refuse_list(*this, "broadcast_objects", values.size(), got.size());
  values = std::move(got);
}

/// Returns the objects of all ranks, in rank order, on every rank.
///
/// Collective; one barrier round if no object takes more than 48 bytes, else three. Errors as for `broadcast_object`.
template <class T>
std::vector<T> Collective::all_gather_objects(T const& mine) const {
  detail::require_object<T>();
  std::vector<T> out;
  for (auto const& bytes : detail::all_gather_bytes(*this, "all_gather_objects", [&] { return encode_object(mine); })) {
    out.push_back(detail::decode_in<T>(*this, "all_gather_objects", bytes));
  }
  return out;
}

/// Returns the same as `all_gather_objects`. The name is PyTorch's.
template <class T>
std::vector<T> Collective::all_gather_object(T const& mine) const {
  return all_gather_objects(mine);
}

/// Returns the objects of all ranks, in rank order, on the root, and an empty list elsewhere.
///
/// Collective; one barrier round, and another one if an object takes more than 48 bytes. Objects larger than 1 MiB take
/// more rounds. Errors as for `broadcast_object`.
template <class T>
std::vector<T> Collective::gather_objects(T const& mine, Root root) const {
  detail::require_object<T>();
  std::vector<T> out;
  for (auto const& bytes :
       detail::gather_bytes(*this, "gather_objects", root.root, [&] { return encode_object(mine); })) {
    out.push_back(detail::decode_in<T>(*this, "gather_objects", bytes));
  }
  return out;
}

/// Returns entry r of the root's list on rank r. Only the root's `all` is used.
///
/// Collective; two barrier rounds, and more for objects of more than 1 MiB. `UsageError` on the root and `RemoteError`
/// elsewhere when the list does not have one entry for each rank.
template <class T>
T Collective::scatter_objects(std::vector<T> const& all, Root root) const {
  detail::require_object<T>();
  auto const bytes = detail::scatter_bytes(*this, "scatter_objects", root.root, [&] {
    std::vector<detail::Bytes> parts;
    for (T const& one : all) parts.push_back(encode_object(one));
    return parts;
  });
  return detail::decode_in<T>(*this, "scatter_objects", bytes);
}

/// Sends one object to rank `dst`, as a message with its size and a message with its bytes. Objects between two ranks
/// keep their order. Involves only the two ranks. Blocks as `Collective::send` does. `UsageError` when the object
/// cannot be encoded; `PeerLostError`, `TimeoutError`.
template <class T>
void Collective::send_object(T const& value, int dst) const {
  detail::require_object<T>();
  detail::send_bytes(*this, "send_object", dst, [&] { return encode_object(value); });
}

/// Returns the next object from rank `src`. Involves only the two ranks. `RemoteError` when the sender could not encode
/// it; `FormatError` when the message holds another type, which consumes it; `PeerLostError`, `TimeoutError`.
template <class T>
T Collective::recv_object(int src) const {
  detail::require_object<T>();
  return detail::decode_in<T>(*this, "recv_object", detail::recv_bytes(*this, "recv_object", src));
}

}  // namespace crossrank
