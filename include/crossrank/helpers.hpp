#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/objects.hpp>

/// @file
/// Helpers for scripts that run as a job, after axolotl's `utils.distributed`.
///
/// All are collective except the predicates, `zero_only` and `abort_on_throw`. When a callable throws on one rank, its
/// caller gets the exception unchanged, every other rank gets a `RemoteError` with its type and text, and the group
/// stays usable. While a callable runs, the other ranks wait for it up to the group's `user_limit`. Results arrive with
/// their exact bytes.

namespace crossrank {

/// Says which ranks `zero_first` runs first.
enum class FirstRank : std::uint8_t {
  of_job,  ///< rank 0 of the job
  of_node  ///< one rank on each node
};

/// Returns whether the job has more than one rank. Local. A handle without a group counts as a job of one.
[[nodiscard]] CROSSRANK_EXPORT bool is_distributed(Collective const& world);
/// Returns whether this is rank 0 of the job, or the only rank. Local.
[[nodiscard]] CROSSRANK_EXPORT bool is_main_process(Collective const& world);
/// Returns whether this is the first rank of the group on its node, or the only rank. Local.
[[nodiscard]] CROSSRANK_EXPORT bool is_local_main_process(Collective const& world);
/// Runs a barrier; does nothing in a job of one. Collective; one barrier round.
CROSSRANK_EXPORT void barrier(Collective const& world);

namespace detail {

template <class F, class... Arguments>
using ResultOf = std::remove_cvref_t<std::invoke_result_t<F&, Arguments...>>;

/// Holds the result of a callable, which may be void.
template <class R>
struct Kept {
  std::optional<R> value{};
  template <class F>
  void run(F&& body) {
    value.emplace(body());
  }
  [[nodiscard]] R take() { return std::move(*value); }
};
template <>
struct Kept<void> {
  template <class F>
  void run(F&& body) {
    body();
  }
  void take() const noexcept {}
};

/// Returns whether this rank is one of the first ranks.
[[nodiscard]] CROSSRANK_EXPORT bool goes_first(Collective const& world, FirstRank first);

/// Runs `body` as the caller's code: ranks that wait for this rank meanwhile use the user limit as their timeout.
CROSSRANK_EXPORT void run_user_code(Collective const& world, std::function<void()> const& body);

template <class R>
[[nodiscard]] std::vector<R> decode_results(Collective const& world, char const* operation,
                                            std::vector<Bytes> const& all) {
  std::vector<R> out;
  for (auto const& bytes : all) out.push_back(decode_in<R>(world, operation, bytes));
  return out;
}

/// Gathers the encoded results of `fn`, which `decode_results` decodes.
template <class R, class F>
[[nodiscard]] std::vector<Bytes> gather_encoded(Collective const& world, char const* operation, F& fn, Root root) {
  return gather_bytes(world, operation, root.root, [&] { return encode_object(static_cast<R>(fn())); });
}

template <class R, class F>
[[nodiscard]] std::vector<R> gather_results(Collective const& world, char const* operation, F& fn, Root root) {
  return decode_results<R>(world, operation, gather_encoded<R>(world, operation, fn, root));
}

template <class R, class F>
R broadcast_result(Collective const& world, char const* operation, F&& fn, Root root) {
  Kept<R> kept;
  auto const bytes = broadcast_bytes(world, operation, root.root, [&] {
    kept.run(fn);
    if constexpr (std::is_void_v<R>) {
      return Bytes();
    } else {
      return encode_object(*kept.value);
    }
  });
  if constexpr (!std::is_void_v<R>) {
    if (world.rank() != root.root) return decode_in<R>(world, operation, bytes);
  }
  return kept.take();
}

}  // namespace detail

/// Runs `body` on the first rank (of the job, or of each node), then on all others. Returns each rank's own result.
///
/// Collective; two barrier rounds. When `body` throws on the first rank, the others do not run it.
template <class F>
auto zero_first(Collective const& world, F&& body, FirstRank first = FirstRank::of_job) -> detail::ResultOf<F> {
  detail::Kept<detail::ResultOf<F>> kept;
  bool const early = detail::goes_first(world, first);
  for (bool const turn : {true, false}) {
    static_cast<void>(detail::all_gather_bytes(world, "zero_first", [&] {
      if (early == turn) kept.run(body);
      return detail::Bytes();
    }));
  }
  return kept.take();
}

/// Runs `body` only on rank 0. Returns its result there and nothing elsewhere; for a `body` without a result, returns
/// whether it ran here.
///
/// Local: no rank waits for another, and the other ranks need not call it. An exception reaches only its own caller.
/// `zero_only_and_broadcast` delivers the result or the failure to all ranks. Follows `zero_only` of axolotl.
template <class F>
auto zero_only(Collective const& world, F&& body) {
  using R = detail::ResultOf<F>;
  detail::Kept<R> kept;
  bool const here = world.rank() == 0;
  if (here) detail::run_user_code(world, [&] { kept.run(body); });
  if constexpr (std::is_void_v<R>) {
    return here;
  } else {
    return std::move(kept.value);
  }
}

/// Runs `body` only on rank 0 and returns its result on all ranks. Collective; one broadcast.
template <class F>
auto zero_only_and_broadcast(Collective const& world, F&& body) -> detail::ResultOf<F> {
  return detail::broadcast_result<detail::ResultOf<F>>(world, "zero_only_and_broadcast", body, {});
}

/// Runs `fn` on the root and returns its result on all ranks. Collective; one broadcast.
template <class F>
auto compute_and_broadcast(Collective const& world, F&& fn, Root root = {}) -> detail::ResultOf<F> {
  return detail::broadcast_result<detail::ResultOf<F>>(world, "compute_and_broadcast", fn, root);
}

/// Runs `fn` on every rank. Returns all results in rank order on the root, an empty list elsewhere. Collective; one
/// gather.
template <class F>
[[nodiscard]] auto gather_from_all_ranks(Collective const& world, F&& fn, Root root = {}) {
  return detail::gather_results<detail::ResultOf<F>>(world, "gather_from_all_ranks", fn, root);
}

/// Runs `fn`, which returns a number, on every rank. Returns all numbers in rank order on the root, an empty list
/// elsewhere. Collective; one gather.
template <class F>
requires std::is_arithmetic_v<detail::ResultOf<F>>
[[nodiscard]] auto gather_scalar_from_all_ranks(Collective const& world, F&& fn, Root root = {}) {
  return detail::gather_results<detail::ResultOf<F>>(world, "gather_scalar_from_all_ranks", fn, root);
}

/// Runs `fn` on every rank, then `reduce` on the root, with the results in rank order. Returns the result of `reduce`
/// on all ranks. Collective; one gather, one broadcast.
template <class F, class Reduce>
auto reduce_and_broadcast(Collective const& world, F&& fn, Reduce&& reduce, Root root = {}) {
  constexpr char const* operation = "reduce_and_broadcast";
  using Each = detail::ResultOf<F>;
  auto const all = detail::gather_encoded<Each>(world, operation, fn, root);
  using R = detail::ResultOf<Reduce, std::vector<Each> const&>;
  // A result that cannot be decoded is an error of the root's part. It reaches all ranks.
  return detail::broadcast_result<R>(
      world, operation, [&] { return reduce(detail::decode_results<Each>(world, operation, all)); }, root);
}

/// Returns the root's dictionary on all ranks. It may be `Json`, or any map or struct that is an object. Collective;
/// one broadcast.
template <class T>
[[nodiscard]] T broadcast_dict(Collective const& world, T dict, Root root = {}) {
  return world.broadcast_object(std::move(dict), root);
}

/// Runs `body` on this rank. When it throws, kills the group and rethrows, so that no rank waits for this one: the
/// others get a `PeerLostError` with the text. Local.
template <class F>
decltype(auto) abort_on_throw(Collective const& group, F&& body) {
  try {
    return std::forward<F>(body)();
  } catch (std::exception const& e) {
    group.abort(e.what());
    throw;
  } catch (...) {
    group.abort("an exception of an unknown type");
    throw;
  }
}

}  // namespace crossrank
