#include <crossrank/parallel.hpp>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/stream.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "lib/tensor/transfer/tensor_mover.hpp"
#include "workspace/gather/range_session.hpp"
#include "workspace/shared_memory/rank_state_collector.hpp"

namespace crossrank {
namespace {

using workspace::Contribution;
using workspace::ItemKind;
using workspace::NamedTensor;
using workspace::RangeSession;

/// Blocks the host until the GPU of a tensor has done what this thread has enqueued.
void wait_for_gpu(Tensor const& tensor) {
  if (!tensor.defined() || tensor.device().kind == Device::Kind::cpu) return;
  if (auto const stream = current_stream(tensor.device()); !stream.is_capturing()) stream.synchronize();
}

void wait_for_gpus(StateDict const& weights) {
  for (auto const& [name, tensor] : weights) wait_for_gpu(tensor);
}

/// How to receive and copy one kind of item.
template <class Item>
struct Kind;

template <>
struct Kind<Tensor> {
  static constexpr auto number = ItemKind::tensor;
  static constexpr auto operation = "get_tensors_parallel";
  struct Collector final : workspace::Collector {
    Tensor item{};
    void expect(std::size_t) override {}
    void config(Json) override {}
    void tensor(std::string_view, Tensor value) override { item = std::move(value); }
  };
  static Tensor finish(Collector&& collector, int) { return std::move(collector.item); }
  static Tensor own(Tensor const& mine, int) { return mine; }
  static void move(Tensor& item, TensorMover& mover) { item = mover.move(item); }
  static void wait(Tensor const& item) { wait_for_gpu(item); }
};

template <>
struct Kind<StateDict> {
  static constexpr auto number = ItemKind::state_dict;
  static constexpr auto operation = "get_tensors_parallel";
  struct Collector final : workspace::Collector {
    StateDict item{};
    void expect(std::size_t tensors) override { item.reserve(tensors); }
    void config(Json) override {}
    void tensor(std::string_view name, Tensor value) override {
      item.insert_or_assign(std::string(name), std::move(value));
    }
  };
  static StateDict finish(Collector&& collector, int) { return std::move(collector.item); }
  static StateDict own(StateDict const& mine, int) { return mine; }
  static void move(StateDict& item, TensorMover& mover) { mover.move_all(item); }
  static void wait(StateDict const& item) { wait_for_gpus(item); }
};

template <>
struct Kind<RankedState> {
  static constexpr auto number = ItemKind::ranked_state;
  static constexpr auto operation = "get_configs_parallel";
  using Collector = workspace::RankStateCollector;
  static RankedState finish(Collector&& collector, int rank) { return {rank, std::move(collector).take()}; }
  static RankedState own(RankState const& mine, int rank) { return {rank, mine}; }
  static void move(RankedState& item, TensorMover& mover) { mover.move_all(item.state.weights); }
  static void wait(RankedState const& item) { wait_for_gpus(item.state.weights); }
};

template <class Item, class Mine>
class Items final : public detail::RangeItems<Item> {
 public:
  Items(Mine const& mine, Contribution const& contribution, RankSpan ranks, Collective const& group,
        GatherOptions const& options)
      : session_(Kind<Item>::operation, Kind<Item>::number, contribution, ranks, group, options),
        items_(session_.size()),
        to_(options.to),
        in_place_(options.in_place) {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (session_.is_own(i)) items_[i].item = Kind<Item>::own(mine, session_.rank_of(i));
    }
  }

  [[nodiscard]] bool is_receiver() const noexcept override { return session_.is_receiver(); }
  [[nodiscard]] std::size_t size() const noexcept override { return items_.size(); }
  /// Releases the tensors before the second round, so that their memory is free for the other ranks' next call.
  /// Destroys configs after the round, because large ones take long and no rank should wait for that.
  void close() override {
    std::vector<Json> configs;
    if constexpr (std::is_same_v<Item, RankedState>) {
      configs.reserve(items_.size());
      for (auto& [item, moved] : items_)
        if (item) configs.push_back(std::move(item->state.config));
    }
    if (in_place_) wait_for_reads();
    items_.clear();
    session_.close();
  }
  void abort(std::string_view why) noexcept override { session_.abort(why); }
  void abort_unwinding() noexcept override {
    if (failed_) return session_.abort("an exception left the range after this error: " + std::string(failed_->what()));
    session_.abort("an exception left the range; loop inside CollectiveRange::consume to report its text");
  }

  [[nodiscard]] Item const& at(std::size_t index) override {
    try {
      return received(index);
    } catch (UsageError const& e) {
      failed_ = e;
      throw;
    } catch (Error const& e) {
      failed_ = e;
      if (!session_.has_group()) throw;
      auto info = e.info();
      info.group_usable = false;  // the group ends when the error leaves the range
      throw_error(e.code(), std::move(info));
    }
  }

  [[nodiscard]] std::vector<Item> take() override {
    std::vector<Item> all;
    all.reserve(items_.size());
    try {
      for (std::size_t i = 0; i < items_.size(); ++i) static_cast<void>(at(i));
    } catch (Error const& e) {
      session_.abort(e.what());
      throw;
    }
    for (auto& entry : items_) all.push_back(std::move(*entry.item));
    close();
    return all;
  }

 private:
  /// Views of other ranks' GPUs end with the work that uses them. Waits for it, so that the owners can write again
  /// after the second round.
  void wait_for_reads() noexcept {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      try {
        if (items_[i].item && !session_.is_own(i)) Kind<Item>::wait(*items_[i].item);
      } catch (Error const&) {  // the GPU has failed: its next use says so
      }
    }
  }

  Item const& received(std::size_t index) {
    if (index >= items_.size())
      session_.fail_usage("the item does not exist", std::to_string(index) + " of " + std::to_string(items_.size()));
    auto& [item, moved] = items_[index];
    if (!item) {
      typename Kind<Item>::Collector collector;
      session_.receive(index, collector);
      item = Kind<Item>::finish(std::move(collector), session_.rank_of(index));
    }
    if (!moved) {
      TensorMover mover(to_, in_place_ ? TensorMover::GpuTensors::keep : TensorMover::GpuTensors::move);
      Kind<Item>::move(*item, mover);
      moved = true;
    }
    session_.progress();
    return *item;
  }

  RangeSession session_;
  struct Entry {
    std::optional<Item> item{};  ///< empty: not received yet
    bool moved = false;          ///< whether its tensors are on `to_`
  };

  std::vector<Entry> items_;
  Device to_;
  bool in_place_;
  std::optional<Error> failed_{};  ///< the error of the last item that could not be received
};

std::vector<NamedTensor> named(StateDict const& weights) {
  std::vector<NamedTensor> tensors;
  tensors.reserve(weights.size());
  for (auto const& [name, tensor] : weights) tensors.push_back({name, &tensor});
  return tensors;
}

RankSpan all_ranks(Collective const& group, char const* operation) {
  require_open(group, operation);
  return group.ranks();
}

template <class Item, class Mine>
CollectiveRange<Item> gather(Mine const& mine, Contribution const& contribution, RankSpan ranks,
                             Collective const& group, GatherOptions const& options) {
  require_open(group, Kind<Item>::operation);
  return CollectiveRange<Item>(std::make_unique<Items<Item, Mine>>(mine, contribution, ranks, group, options));
}

}  // namespace

void detail::refuse_moved_range() {
  throw UsageError({.operation = "CollectiveRange",
                    .message = "the range has no items, because it was moved from",
                    .hint = "use the range that it was moved to"});
}

CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor, Collective const& group,
                                             GatherOptions const& options) {
  return get_tensors_parallel(tensor, all_ranks(group, Kind<Tensor>::operation), group, options);
}

CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor, RankSpan ranks, Collective const& group,
                                             GatherOptions const& options) {
  NamedTensor const only{"tensor", &tensor};
  return gather<Tensor>(tensor, {.tensors = {&only, 1}}, ranks, group, options);
}

CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights, Collective const& group,
                                                GatherOptions const& options) {
  return get_tensors_parallel(weights, all_ranks(group, Kind<StateDict>::operation), group, options);
}

CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights, RankSpan ranks, Collective const& group,
                                                GatherOptions const& options) {
  auto const tensors = named(weights);
  return gather<StateDict>(weights, {.tensors = tensors}, ranks, group, options);
}

CollectiveRange<RankedState> get_configs_parallel(RankState const& state, Collective const& group,
                                                  GatherOptions const& options) {
  return get_configs_parallel(state, all_ranks(group, Kind<RankedState>::operation), group, options);
}

CollectiveRange<RankedState> get_configs_parallel(RankState const& state, RankSpan ranks, Collective const& group,
                                                  GatherOptions const& options) {
  auto const tensors = named(state.weights);
  return gather<RankedState>(state, {.config = &state.config, .tensors = tensors}, ranks, group, options);
}

}  // namespace crossrank
