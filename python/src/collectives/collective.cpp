#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <crossrank/collective.hpp>
#include <crossrank/spi/connect_mpi.hpp>
#include <crossrank/spi/resolve_options.hpp>
#include <crossrank/statistics.hpp>

#include "errors.hpp"
#include "module.hpp"
#include "options.hpp"
#include "collectives/group_handles.hpp"
#include "collectives/pending_call.hpp"
#include "collectives/reduce_ops.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

std::uint32_t tag_from(std::int64_t tag) {
  constexpr auto last = std::numeric_limits<std::uint32_t>::max();
  if (tag < 0 || tag > last)
    refuse("tag", "a tag is out of range", "0 to " + std::to_string(last), std::to_string(tag));
  return static_cast<std::uint32_t>(tag);
}

using Lengths = std::vector<std::int64_t>;

constexpr std::pair<char const*, CheckLevel> check_levels[] = {
    {"off", CheckLevel::off}, {"local", CheckLevel::local}, {"collective", CheckLevel::collective}};

constexpr std::pair<char const*, RankKind> rank_kinds[] = {{"process", RankKind::process},
                                                           {"thread", RankKind::thread}};

constexpr std::pair<char const*, ProgressMode> progress_kinds[] = {{"caller", ProgressMode::caller},
                                                                   {"thread", ProgressMode::thread}};

/// Joins the job of the launcher, or the ranks of an MPI communicator that is given by its Fortran handle.
Collective connect_with(std::optional<int> communicator, std::string backend, std::optional<double> timeout,
                        std::optional<double> connect_timeout, std::optional<double> user_limit,
                        std::optional<int> rank, std::optional<int> world_size, std::string job_id,
                        std::string_view rank_kind, std::optional<std::uint64_t> arena_cap,
                        std::optional<std::string> check, std::optional<double> linger, std::string_view progress) {
  ConnectOptions options;
  options.backend = std::move(backend);
  if (timeout) options.timeout = milliseconds_of(*timeout);
  options.connect_timeout = milliseconds_of(connect_timeout, "connect_timeout");
  if (user_limit) options.user_limit = milliseconds_of(*user_limit, "user_limit");
  options.rank = rank;
  options.world_size = world_size;
  options.job_id = std::move(job_id);
  options.rank_kind = named(rank_kinds, "rank_kind", rank_kind);
  options.arena_cap = arena_cap;
  if (check) options.check = named(check_levels, "check", *check);
  options.linger = milliseconds_of(linger, "linger");
  options.progress = named(progress_kinds, "progress", progress);
  return run_waiting([] {}, [&] { return communicator ? spi::connect_mpi(*communicator, options) : connect(options); });
}

/// Runs a blocking call, or starts a call that returns a request.
template <class Call>
auto run_or_start(Collective const& group, Call&& call) {
  if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
    run_waiting(group, std::forward<Call>(call));
  } else {
    return PendingCall{group, run_waiting(group, std::forward<Call>(call))};
  }
}

// Python's calls of one shape. `Call` is a member of Collective, in its blocking or its non-blocking form.

/// Returns a tensor that the call writes on all ranks, or on all but this one.
Tensor tensor_of_call(nb::handle object, bool writes) {
  return writes ? writable_tensor_from(object) : tensor_from(object);
}

template <auto Call>
auto one_tensor(Collective const& group, nb::handle object, int root) {
  auto tensor = tensor_of_call(object, group.rank() != root);
  return run_or_start(group, [&] { return (group.*Call)(tensor, Root{root}); });
}

template <auto Call>
auto two_tensors(Collective const& group, nb::handle to, nb::handle from) {
  auto out = writable_tensor_from(to);
  auto const in = tensor_from(from);
  return run_or_start(group, [&] { return (group.*Call)(out, in); });
}

template <auto Call>
auto rooted(Collective const& group, nb::handle to, nb::handle from, int root) {
  auto out = writable_tensor_from(to);
  auto const in = tensor_from(from);
  return run_or_start(group, [&] { return (group.*Call)(out, in, Root{root}); });
}

template <auto Call>
auto with_rows(Collective const& group, nb::handle to, nb::handle from, Lengths const& rows, int root) {
  auto out = writable_tensor_from(to);
  auto const in = tensor_from(from);
  return run_or_start(group, [&] { return (group.*Call)(out, in, Rows{.rows = rows, .root = root}); });
}

template <auto Call>
auto with_lengths(Collective const& group, nb::handle to, nb::handle from, Lengths const& send,
                  Lengths const& receive) {
  auto out = writable_tensor_from(to);
  auto const in = tensor_from(from);
  return run_or_start(group, [&] { return (group.*Call)(out, in, {.send = send, .receive = receive}); });
}

template <auto Call>
auto reducing(Collective const& group, nb::handle object, std::string_view op, std::string_view order) {
  auto tensor = writable_tensor_from(object);
  auto const how = op_named(op);
  auto const by = order_named(order);
  return run_or_start(group, [&] { return (group.*Call)(tensor, how, by); });
}

template <auto Call>
auto reducing_to_root(Collective const& group, nb::handle object, std::string_view op, int root,
                      std::string_view order) {
  auto tensor = tensor_of_call(object, group.rank() == root);
  auto const how = op_named(op);
  auto const by = order_named(order);
  return run_or_start(group, [&] { return (group.*Call)(tensor, how, Root{root}, by); });
}

template <auto Call>
auto reducing_slices(Collective const& group, nb::handle to, nb::handle from, std::string_view op,
                     std::string_view order) {
  auto out = writable_tensor_from(to);
  auto const in = tensor_from(from);
  auto const how = op_named(op);
  auto const by = order_named(order);
  return run_or_start(group, [&] { return (group.*Call)(out, in, how, by); });
}

template <auto Call>
auto reducing_rows(Collective const& group, nb::handle to, nb::handle from, Lengths const& rows, std::string_view op,
                   std::string_view order) {
  auto out = writable_tensor_from(to);
  auto const in = tensor_from(from);
  auto const how = op_named(op);
  auto const by = order_named(order);
  return run_or_start(group, [&] { return (group.*Call)(out, in, Rows{.rows = rows}, how, by); });
}

using OneTensor = void (Collective::*)(Tensor&, Root) const;
using StartOneTensor = Request (Collective::*)(Tensor&, Root) const;
using TwoTensors = void (Collective::*)(Tensor&, Tensor const&) const;
using StartTwoTensors = Request (Collective::*)(Tensor&, Tensor const&) const;
using Rooted = void (Collective::*)(Tensor&, Tensor const&, Root) const;
using StartRooted = Request (Collective::*)(Tensor&, Tensor const&, Root) const;
using WithRows = void (Collective::*)(Tensor&, Tensor const&, Rows) const;
using StartWithRows = Request (Collective::*)(Tensor&, Tensor const&, Rows) const;
using WithLengths = void (Collective::*)(Tensor&, Tensor const&, ExchangedRows) const;
using StartWithLengths = Request (Collective::*)(Tensor&, Tensor const&, ExchangedRows) const;
using Reducing = void (Collective::*)(Tensor&, ReduceOp, ReduceOrder) const;
using StartReducing = Request (Collective::*)(Tensor&, ReduceOp, ReduceOrder) const;
using ReducingToRoot = void (Collective::*)(Tensor&, ReduceOp, Root, ReduceOrder) const;
using StartReducingToRoot = Request (Collective::*)(Tensor&, ReduceOp, Root, ReduceOrder) const;
using ReducingSlices = void (Collective::*)(Tensor&, Tensor const&, ReduceOp, ReduceOrder) const;
using StartReducingSlices = Request (Collective::*)(Tensor&, Tensor const&, ReduceOp, ReduceOrder) const;
using ReducingRows = void (Collective::*)(Tensor&, Tensor const&, Rows, ReduceOp, ReduceOrder) const;
using StartReducingRows = Request (Collective::*)(Tensor&, Tensor const&, Rows, ReduceOp, ReduceOrder) const;

void bind_identity(nb::class_<Collective>& collective) {
  collective.def("connected", &Collective::connected)
      .def("rank", &Collective::rank)
      .def("world_size", &Collective::world_size)
      .def("global_rank", &Collective::global_rank)
      .def("ranks",
           [](Collective const& group) {
             auto const ranks = group.ranks();
             return std::vector<int>(ranks.begin(), ranks.end());
           })
      .def("local_rank", &Collective::local_rank)
      .def("local_world_size", &Collective::local_world_size)
      .def("local_rank_in_group", &Collective::local_rank_in_group)
      .def("local_size_in_group", &Collective::local_size_in_group)
      .def("is_master", &Collective::is_master)
      .def("is_local_master", &Collective::is_local_master)
      .def("backend", [](Collective const& group) { return std::string(group.backend()); })
      .def("device_backend",
           [](Collective const& group) { return run_without_gil([&] { return std::string(group.device_backend()); }); })
      .def("name", [](Collective const& group) { return group.name(); });
}

void bind_reductions(nb::class_<Collective>& collective) {
  collective.def("all_reduce", &reducing<static_cast<Reducing>(&Collective::all_reduce)>)
      .def("iall_reduce", &reducing<static_cast<StartReducing>(&Collective::iall_reduce)>)
      .def("reduce", &reducing_to_root<static_cast<ReducingToRoot>(&Collective::reduce)>)
      .def("ireduce", &reducing_to_root<static_cast<StartReducingToRoot>(&Collective::ireduce)>)
      .def("reduce_scatter", &reducing_slices<static_cast<ReducingSlices>(&Collective::reduce_scatter)>)
      .def("ireduce_scatter", &reducing_slices<static_cast<StartReducingSlices>(&Collective::ireduce_scatter)>)
      .def("reduce_scatterv", &reducing_rows<static_cast<ReducingRows>(&Collective::reduce_scatterv)>)
      .def("ireduce_scatterv", &reducing_rows<static_cast<StartReducingRows>(&Collective::ireduce_scatterv)>);
}

void bind_movement(nb::class_<Collective>& collective) {
  collective.def("broadcast", &one_tensor<static_cast<OneTensor>(&Collective::broadcast)>)
      .def("ibroadcast", &one_tensor<static_cast<StartOneTensor>(&Collective::ibroadcast)>)
      .def("all_gather", &two_tensors<static_cast<TwoTensors>(&Collective::all_gather)>)
      .def("iall_gather", &two_tensors<static_cast<StartTwoTensors>(&Collective::iall_gather)>)
      .def("all_gatherv", &with_rows<static_cast<WithRows>(&Collective::all_gatherv)>)
      .def("iall_gatherv", &with_rows<static_cast<StartWithRows>(&Collective::iall_gatherv)>)
      .def("gather", &rooted<static_cast<Rooted>(&Collective::gather)>, nb::arg().none(), nb::arg().none(), nb::arg())
      .def("igather", &rooted<static_cast<StartRooted>(&Collective::igather)>, nb::arg().none(), nb::arg().none(),
           nb::arg())
      .def("gatherv", &with_rows<static_cast<WithRows>(&Collective::gatherv)>, nb::arg().none(), nb::arg().none(),
           nb::arg(), nb::arg())
      .def("igatherv", &with_rows<static_cast<StartWithRows>(&Collective::igatherv)>, nb::arg().none(),
           nb::arg().none(), nb::arg(), nb::arg())
      .def("scatter", &rooted<static_cast<Rooted>(&Collective::scatter)>, nb::arg().none(), nb::arg().none(), nb::arg())
      .def("iscatter", &rooted<static_cast<StartRooted>(&Collective::iscatter)>, nb::arg().none(), nb::arg().none(),
           nb::arg())
      .def("scatterv", &with_rows<static_cast<WithRows>(&Collective::scatterv)>, nb::arg().none(), nb::arg().none(),
           nb::arg(), nb::arg())
      .def("iscatterv", &with_rows<static_cast<StartWithRows>(&Collective::iscatterv)>, nb::arg().none(),
           nb::arg().none(), nb::arg(), nb::arg())
      .def("all_to_all", &two_tensors<static_cast<TwoTensors>(&Collective::all_to_all)>)
      .def("iall_to_all", &two_tensors<static_cast<StartTwoTensors>(&Collective::iall_to_all)>)
      .def("all_to_allv", &with_lengths<static_cast<WithLengths>(&Collective::all_to_allv)>)
      .def("iall_to_allv", &with_lengths<static_cast<StartWithLengths>(&Collective::iall_to_allv)>);
}

void bind_messages(nb::class_<Collective>& collective) {
  collective
      .def("send",
           [](Collective const& group, nb::handle object, int dst, std::int64_t tag) {
             auto const tensor = tensor_from(object);
             run_waiting(group, [&] { group.send(tensor, dst, {tag_from(tag)}); });
           })
      .def("isend",
           [](Collective const& group, nb::handle object, int dst, std::int64_t tag) {
             auto const tensor = tensor_from(object);
             return PendingCall{group, run_waiting(group, [&] { return group.isend(tensor, dst, {tag_from(tag)}); })};
           })
      .def("recv",
           [](Collective const& group, nb::handle object, int src, std::int64_t tag) {
             auto tensor = writable_tensor_from(object);
             run_waiting(group, [&] { group.recv(tensor, src, {tag_from(tag)}); });
           })
      .def("irecv",
           [](Collective const& group, nb::handle object, int src, std::int64_t tag) {
             auto tensor = writable_tensor_from(object);
             return PendingCall{group, run_waiting(group, [&] { return group.irecv(tensor, src, {tag_from(tag)}); })};
           })
      .def("recv_any",
           [](Collective const& group, nb::handle object, std::int64_t tag) {
             auto tensor = writable_tensor_from(object);
             return run_waiting(group, [&] { return group.recv_any(tensor, {tag_from(tag)}); });
           })
      .def("irecv_any",
           [](Collective const& group, nb::handle object, std::int64_t tag) {
             auto tensor = writable_tensor_from(object);
             return PendingCall{group, run_waiting(group, [&] { return group.irecv_any(tensor, {tag_from(tag)}); })};
           })
      .def("sendrecv", [](Collective const& group, nb::handle to, nb::handle from, int dst, int src, std::int64_t tag) {
        auto in = writable_tensor_from(to);
        auto const out = tensor_from(from);
        run_waiting(group, [&] { group.sendrecv(in, out, {.dst = dst, .src = src, .tag = tag_from(tag)}); });
      });
}

void bind_groups(nb::class_<Collective>& collective) {
  collective.def("barrier", [](Collective const& group) { run_waiting(group, [&] { group.barrier(); }); })
      .def("ibarrier",
           [](Collective const& group) {
             return PendingCall{group, run_waiting(group, [&] { return group.ibarrier(); })};
           })
      .def("split",
           [](Collective const& group, std::vector<std::vector<int>> const& groups, std::string const& name) {
             return run_waiting(group, [&] { return group.split(groups, name); });
           })
      .def("split_by", [](Collective const& group, int color,
                          int key) { return run_waiting(group, [&] { return group.split_by(color, key); }); })
      .def("abort",
           [](Collective const& group, nb::handle why) {
             auto const text = reason_text(why);
             run_without_gil([&] { group.abort(text); });
           })
      .def("failed_ranks", &Collective::failed_ranks)
      .def("keep_alive", &Collective::keep_alive)
      .def("close", [](Collective& group) {
        auto const same = group;
        run_waiting(same, [&] { group.close(); });
      });
}

void bind_requests(nb::module_& module) {
  nb::class_<PendingCall>(module, "Request")
      .def("test",
           [](PendingCall& call) {
             return call.has_ended = run_waiting(call.group, [&] { return call.request.test(); });
           })
      .def("wait",
           [](PendingCall& call) {
             run_waiting(call.group, [&] { call.request.wait(); });
             call.has_ended = true;
           })
      .def("wait_for",
           [](PendingCall& call, double seconds) {
             auto const limit = milliseconds_of(seconds);
             return call.has_ended = run_waiting(call.group, [&] { return call.request.wait_for(limit); });
           })
      .def("set_timeout", [](PendingCall& call, double seconds) { call.request.set_timeout(milliseconds_of(seconds)); })
      .def("cancel", [](PendingCall& call) { run_without_gil([&] { call.request.cancel(); }); })
      .def("source", [](PendingCall const& call) { return call.request.source(); });
}

}  // namespace

void bind_collective(nb::module_& module) {
  nb::class_<Collective> collective(module, "Collective");
  bind_requests(module);
  bind_identity(collective);
  bind_groups(collective);
  bind_reductions(collective);
  bind_movement(collective);
  bind_messages(collective);
  bind_fused_calls(collective);
  module.def("connect", &connect_with, nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(),
             nb::arg().none(), nb::arg().none(), nb::arg());
  module.def(
      "connect_timeout",
      [](std::optional<double> limit) {
        ConnectOptions options;
        options.connect_timeout = milliseconds_of(limit, "connect_timeout");
        return std::chrono::duration<double>(*spi::resolve_options(std::move(options), "connect").connect_timeout)
            .count();
      },
      nb::arg().none());
  module.def("reason_text", &reason_text);
  module.def("statistics", [] {
    auto const now = statistics();
    nb::dict counters;
    counters["bytes_copied"] = now.bytes_copied;
    counters["futex_waits"] = now.futex_waits;
    counters["futex_wakes"] = now.futex_wakes;
    counters["yields"] = now.yields;
    counters["arena_growths"] = now.arena_growths;
    return counters;
  });
}

}  // namespace crossrank::python
