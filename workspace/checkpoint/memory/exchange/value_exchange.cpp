#include "workspace/checkpoint/memory/exchange/value_exchange.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/memory/exchange/combine_values.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/source/sampled_comparison.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::uint64_t max_value_bytes = std::uint64_t{64} << 20;

/// Returns the last element of a dotted name.
std::string_view last_element(std::string_view name) {
  auto const dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

/// Returns whether two names differ at most in numbers, such as those of layers.
bool differ_only_in_numbers(std::string_view a, std::string_view b) {
  auto const left = split_name(a);
  auto const right = split_name(b);
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](auto x, auto y) { return x == y || (is_number(x) && is_number(y)); });
}

/// A range of a tensor of a cell, in units of the tensor.
struct WantedRange {
  CellSource* cell = nullptr;
  std::size_t tensor = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;

  [[nodiscard]] HeldTensor const& held() const { return cell->held(tensor); }
  [[nodiscard]] std::size_t bytes() const { return as_size(last - first) * held().unit; }
};

/// The values of some tensors, in a fixed order: for each box the tensors of the ranks of its first copy.
class ValueExchange {
 public:
  explicit ValueExchange(WeightCells& cells) : cells_(cells) {}

  /// Adds ranges of all tensors for which `matches(name)` is true. `add_ranges(tensor, add)` calls `add(begin, end)`.
  template <class Matches, class AddRanges>
  void add(Matches const& matches, AddRanges const& add_ranges) {
    for (auto const& cell : cells_.cells) {
      for (std::size_t i = 0; i < cell->tensors().size(); ++i) {
        auto const& tensor = cell->tensors()[i];
        if (!matches(tensor.name)) continue;
        add_ranges(dense_bytes(tensor.shape, tensor.dtype), [&](std::uint64_t begin, std::uint64_t end) {
          auto const unit = cell->held(i).unit;
          ranges_.push_back({cell.get(), i, static_cast<std::int64_t>(begin / unit),
                             static_cast<std::int64_t>((end + unit - 1) / unit)});
        });
      }
    }
  }

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (auto const& range : ranges_) sum += range.bytes();
    return sum;
  }

  /// Returns the bytes of this rank.
  [[nodiscard]] std::vector<std::byte> own() const {
    std::vector<std::byte> bytes;
    for (auto const& range : ranges_) {
      auto const& held = range.held();
      auto const tensor = range.cell->own(range.tensor);
      for (auto const& box : held.boxes) {
        auto const& holders = box.copies.front();
        if (std::find(holders.begin(), holders.end(), cells_.rank) == holders.end()) continue;
        read_own_units(cells_, tensor, held, box, range.first, range.last,
                       [&](auto piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); });
      }
    }
    return bytes;
  }

  /// Puts the bytes of all ranks together.
  void take(std::vector<std::vector<std::byte>> const& all) {
    std::vector<std::size_t> at(all.size());
    for (auto const& range : ranges_) {
      std::vector<std::byte> value(range.bytes());
      for (auto const& box : range.held().boxes) take_box(range, box, all, at, value);
      range.cell->set_value(range.tensor, static_cast<std::uint64_t>(range.first) * range.held().unit,
                            std::move(value));
    }
  }

 private:
  static void take_box(WantedRange const& range, HeldBox const& box, std::vector<std::vector<std::byte>> const& all,
                       std::vector<std::size_t>& at, std::vector<std::byte>& value) {
    auto const& held = range.held();
    std::size_t bytes = 0;
    held.for_each_run(box, range.first, range.last,
                      [&](auto, auto, auto count) { bytes += as_size(count) * held.unit; });
    if (bytes == 0) return;
    std::vector<std::byte const*> parts;
    for (auto const holder : box.copies.front()) {
      auto const rank = as_size(holder);
      parts.push_back(all[rank].data() + at[rank]);
      at[rank] += bytes;
    }
    std::vector<std::byte> combined(bytes);
    combine_values(range.cell->tensors()[range.tensor].dtype, held.combine, parts, combined);
    std::size_t from = 0;
    held.for_each_run(box, range.first, range.last, [&](auto, auto to, auto count) {
      auto const size = as_size(count) * held.unit;
      copy_memory(value.data() + as_size(to - range.first) * held.unit, combined.data() + from, size);
      from += size;
    });
  }

  WeightCells& cells_;
  std::vector<WantedRange> ranges_{};
};

/// Chooses the values to exchange: as many as are small enough.
ValueExchange choose_values(WeightCells& cells, NeedsValues const& needed, std::string const& operation) {
  auto const& name = cells.cells[needed.cell]->tensors()[needed.tensor].name;
  auto const whole = [](std::uint64_t bytes, auto const& add) { add(std::uint64_t{0}, bytes); };
  auto const samples = [&](std::uint64_t bytes, auto const& add) {
    for (auto const begin : sample_places(bytes)) add(begin, std::min(bytes, begin + sample_bytes));
    if (needed.offset < bytes) add(needed.offset, std::min(bytes, needed.offset + needed.bytes));
  };
  ValueExchange all_alike(cells);
  all_alike.add([&](std::string const& other) { return last_element(other) == last_element(name); }, whole);
  if (all_alike.bytes() <= max_value_bytes) return all_alike;
  ValueExchange of_layers(cells);
  of_layers.add([&](std::string const& other) { return differ_only_in_numbers(other, name); }, samples);
  if (of_layers.bytes() <= max_value_bytes) return of_layers;
  ValueExchange of_name(cells);
  of_name.add([&](std::string const& other) { return other == name; }, samples);
  if (of_name.bytes() <= max_value_bytes) return of_name;
  throw UsageError({.operation = operation,
                    .message = "the rules depend on values that are too large to send to all ranks",
                    .expected = "at most " + std::to_string(max_value_bytes) + " bytes",
                    .got = std::to_string(of_name.bytes()),
                    .resource = name,
                    .hint = "save shards, and merge their files"});
}

}  // namespace

void exchange_values(Collective const& world, WeightCells& cells, NeedsValues const& needed,
                     std::string const& operation) {
  auto exchange = choose_values(cells, needed, operation);
  std::vector<std::byte> own;
  agree(world, operation, [&] { own = exchange.own(); });  // it reads tensors, also of GPUs
  exchange.take(world.all_gatherv(own));
}

}  // namespace crossrank::checkpoint
