#include "workspace/checkpoint/memory/exchange/memory_fill.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/crash_point.hpp"
#include "workspace/checkpoint/memory/exchange/exported_source.hpp"
#include "workspace/checkpoint/memory/exchange/weight_exchange.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::uint64_t unit_bytes = std::uint64_t{8} << 20;

/// Throws `UnavailableError` if the host has less free memory. The system grants more, and ends the process later.
void require_free_memory(std::string const& operation, std::uint64_t bytes) {
  auto const free = platform::free_memory();
  if (bytes <= free) return;
  throw UnavailableError({.operation = operation,
                          .message = "this rank lacks memory for the tensors that it would receive",
                          .expected = "at most " + std::to_string(free) + " bytes, which are free",
                          .got = std::to_string(bytes),
                          .hint = "run fewer ranks on this host, or raise its limit of memory"});
}

std::vector<WorkUnit> units_of(FillTarget const& target) {
  std::vector<WorkUnit> units;
  if (!target.source) return units;
  auto const tensors = target.source->tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto const bytes = dense_bytes(tensors[i].shape, tensors[i].dtype);
    for (std::uint64_t at = 0; at < bytes; at += unit_bytes)
      units.push_back({static_cast<std::uint32_t>(i), at, std::min<std::uint64_t>(unit_bytes, bytes - at)});
  }
  return units;
}

/// Reads the units of one rank in their order, with any number of threads.
class MemoryFill final : public PoolWork {
 public:
  MemoryFill(std::string const& operation, std::shared_ptr<ShardSource const> source, std::vector<WorkUnit> units)
      : source_(std::move(source)), units_(std::move(units)) {
    for (auto const& unit : units_) total_ += unit.bytes;
    if (!source_) return;
    require_free_memory(operation, total_);
    for (auto const& tensor : source_->tensors()) {
      tensors_.push_back(Tensor::empty(tensor.shape, tensor.dtype));
      memory_.push_back(tensors_.back().mutable_bytes());
    }
  }

  bool step() override {
    auto const number = next_.fetch_add(1, std::memory_order_relaxed);
    if (number >= units_.size()) return false;
    auto const& unit = units_[number];
    source_->read(unit.tensor, unit.offset, memory_[unit.tensor].subspan(unit.offset, unit.bytes));
    done_.fetch_add(unit.bytes, std::memory_order_relaxed);
    return true;
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(std::memory_order_relaxed); }

  [[nodiscard]] StateDict take() {
    StateDict weights;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      weights.insert_or_assign(source_->tensors()[i].name, std::move(tensors_[i]));
    return weights;
  }

 private:
  std::shared_ptr<ShardSource const> source_;
  std::vector<WorkUnit> units_;
  std::vector<Tensor> tensors_{};
  std::vector<std::span<std::byte>> memory_{};
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_{0};  ///< for progress only
  std::atomic<std::size_t> next_{0};    ///< hands each unit to one thread
};

}  // namespace

StateDict fill_memory(Collective const& world, ExportPlan const& plan, std::vector<FillTarget> const& targets,
                      FillOptions const& options) {
  std::unique_ptr<WeightExchange> exchange;
  std::unique_ptr<MemoryFill> fill;
  agree(world, options.operation, [&] {
    require_thread_count(options.operation, options.threads);
    std::vector<std::vector<WorkUnit>> units;
    for (auto const& target : targets) units.push_back(units_of(target));
    auto const own = as_size(world.rank());
    auto mine = units[own];
    exchange = std::make_unique<WeightExchange>(plan.cells, std::move(units), [&](int rank, WorkUnit const& unit) {
      return at_rank(targets, rank).inputs_of(unit);
    });
    for (auto const& cell : plan.cells.cells) cell->read_from(exchange->received());
    std::shared_ptr<ExportedSource> source;
    if (targets[own].source) {
      source = std::make_shared<ExportedSource>(targets[own].source);
      source->start(mine, exchange->received());
    }
    fill = std::make_unique<MemoryFill>(options.operation, std::move(source), std::move(mine));
  });
  CROSSRANK_CRASH_POINT("export.fill.prepared");
  run_worker_pool(world, *fill,
                  {.operation = options.operation,
                   .threads = options.threads,
                   .stop = options.stop,
                   .stage = "receiving",
                   .exchange = exchange.get()});
  CROSSRANK_CRASH_POINT("export.fill.received");
  return fill->take();
}

}  // namespace crossrank::checkpoint
