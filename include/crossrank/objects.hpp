#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/export.hpp>
#include <crossrank/serialize.hpp>

namespace crossrank {

namespace detail {

using Bytes = std::vector<std::byte>;

/// Makes this rank's part of a call. What it throws reaches every rank of the call as a `RemoteError`, and its own
/// caller unchanged; the group goes on.
using Produce = std::function<Bytes()>;

/// What the root made; empty on the root itself.
[[nodiscard]] CROSSRANK_EXPORT Bytes broadcast_bytes(Collective const& group, char const* operation, int root,
                                                     Produce const& produce);
/// What each rank made, in rank order.
[[nodiscard]] CROSSRANK_EXPORT std::vector<Bytes> all_gather_bytes(Collective const& group, char const* operation,
                                                                   Produce const& produce);
/// The same on the root; empty elsewhere.
[[nodiscard]] CROSSRANK_EXPORT std::vector<Bytes> gather_bytes(Collective const& group, char const* operation, int root,
                                                               Produce const& produce);
/// The root makes a part for each rank: this rank's.
[[nodiscard]] CROSSRANK_EXPORT Bytes scatter_bytes(Collective const& group, char const* operation, int root,
                                                   std::function<std::vector<Bytes>()> const& produce);
CROSSRANK_EXPORT void send_bytes(Collective const& group, char const* operation, int dst, Produce const& produce);
[[nodiscard]] CROSSRANK_EXPORT Bytes recv_bytes(Collective const& group, char const* operation, int src);
/// Throws `error` as one of `operation` on this rank of the group.
[[noreturn]] CROSSRANK_EXPORT void refuse_object_in(Collective const& group, char const* operation,
                                                    FormatError const& error);
/// The object that came in a call.
template <class T>
[[nodiscard]] T decode_in(Collective const& group, char const* operation, Bytes const& bytes) {
  try {
    return decode_object<T>(bytes);
  } catch (FormatError const& e) {
    refuse_object_in(group, operation, e);
  }
}
[[noreturn]] CROSSRANK_EXPORT void refuse_list(Collective const& group, char const* operation, std::size_t expected,
                                               std::size_t got);

}  // namespace detail

/// Returns the root's object on every rank. `value` counts on the root alone.
///
/// Collective; one barrier round up to 48 bytes, then one more for each 16 MiB. `FormatError` on a rank that expects
/// another type or version. Where the root cannot write the object (JSON of more than 32 levels, text that is not
/// UTF-8), `UsageError` on the root and `RemoteError` elsewhere. Follows `broadcast_object` of vLLM's coordinator.
template <class T>
T Collective::broadcast_object(T value, Root root) const {
  detail::require_object<T>();
  auto const bytes =
      detail::broadcast_bytes(*this, "broadcast_object", root.root, [&] { return encode_object(value); });
  return rank() == root.root ? std::move(value) : detail::decode_in<T>(*this, "broadcast_object", bytes);
}

/// Replaces `values` by the root's, in place.
///
/// Collective; costs and errors as for `broadcast_object`. All ranks give as many values, else `MismatchError` on those
/// that differ. Follows `broadcast_object_list` of PyTorch.
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
/// Collective; one barrier round up to 48 bytes each, else three. Errors as for `broadcast_object`.
template <class T>
std::vector<T> Collective::all_gather_objects(T const& mine) const {
  detail::require_object<T>();
  std::vector<T> out;
  for (auto const& bytes : detail::all_gather_bytes(*this, "all_gather_objects", [&] { return encode_object(mine); })) {
    out.push_back(detail::decode_in<T>(*this, "all_gather_objects", bytes));
  }
  return out;
}

/// Returns the objects of all ranks on every rank, under PyTorch's name for it. Same as `all_gather_objects`.
template <class T>
std::vector<T> Collective::all_gather_object(T const& mine) const {
  return all_gather_objects(mine);
}

/// Returns the objects of all ranks, in rank order, on the root, and an empty list elsewhere.
///
/// Collective; one barrier round, and a message from each rank whose object takes more than 48 bytes. Errors as for
/// `broadcast_object`.
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

/// Returns entry r of the root's list on rank r. `all` counts on the root alone.
///
/// Collective; one barrier round and a message to each rank. `UsageError` on the root and `RemoteError` elsewhere when
/// the list does not have one entry for each rank.
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

/// Sends one object to rank `dst`, as a message with its size and one with its bytes. Objects between two ranks keep
/// their order.
template <class T>
void Collective::send_object(T const& value, int dst) const {
  detail::require_object<T>();
  detail::send_bytes(*this, "send_object", dst, [&] { return encode_object(value); });
}

/// Returns the next object of rank `src`. `RemoteError` when the sender could not write it.
template <class T>
T Collective::recv_object(int src) const {
  detail::require_object<T>();
  return detail::decode_in<T>(*this, "recv_object", detail::recv_bytes(*this, "recv_object", src));
}

}  // namespace crossrank
