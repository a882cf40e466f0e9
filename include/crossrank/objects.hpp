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

/// Gives every rank the root's object. The others' `value` is not looked at.
///
/// Collective; one meeting up to 48 bytes, then one more for each 16 MiB. `FormatError` on a rank that expects another
/// type or version; `UsageError` on the root and `RemoteError` elsewhere where it cannot be written: JSON of more than
/// 32 levels, or whose text is not UTF-8.
/// Reference: `broadcast_object` of vLLM's coordinator.
template <class T>
T Collective::broadcast_object(T value, Root root) const {
  detail::require_object<T>();
  auto const bytes =
      detail::broadcast_bytes(*this, "broadcast_object", root.root, [&] { return encode_object(value); });
  return rank() == root.root ? std::move(value) : detail::decode_in<T>(*this, "broadcast_object", bytes);
}

/// Fills `values` with those of the root, in place; there must be as many on every rank, else `MismatchError` where
/// there are not. Reference: `broadcast_object_list`.
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

/// The objects of all ranks, in rank order, on each. Collective; one meeting up to 48 bytes each, else three.
template <class T>
std::vector<T> Collective::all_gather_objects(T const& mine) const {
  detail::require_object<T>();
  std::vector<T> out;
  for (auto const& bytes : detail::all_gather_bytes(*this, "all_gather_objects", [&] { return encode_object(mine); })) {
    out.push_back(detail::decode_in<T>(*this, "all_gather_objects", bytes));
  }
  return out;
}

/// The same under the name of torch's single-object form.
template <class T>
std::vector<T> Collective::all_gather_object(T const& mine) const {
  return all_gather_objects(mine);
}

/// The objects of all ranks, in rank order, on the root; none elsewhere. Collective; one meeting, and a message from
/// each rank whose object takes more than 48 bytes.
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

/// Gives each rank its object of the root's list, which must have one for each; the others' is not looked at.
/// Collective; one meeting and a message to each rank. `UsageError` on the root and `RemoteError` elsewhere for a list
/// of another length.
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

/// Sends one object: a message with its size, then its bytes. Ordered with other objects between the two ranks.
template <class T>
void Collective::send_object(T const& value, int dst) const {
  detail::require_object<T>();
  detail::send_bytes(*this, "send_object", dst, [&] { return encode_object(value); });
}

/// Receives the next object of `src`. `RemoteError` when the sender could not write it.
template <class T>
T Collective::recv_object(int src) const {
  detail::require_object<T>();
  return detail::decode_in<T>(*this, "recv_object", detail::recv_bytes(*this, "recv_object", src));
}

}  // namespace crossrank
