#include "workspace/checkpoint/verify/scan_scales.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/small_float.hpp"
#include "workspace/checkpoint/verify/scan_numbers.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns whether a scale of the dtype can be invalid. Programs that write MXFP4 store powers of two, E8M0, as bytes.
bool can_be_invalid(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::f64 || dtype == Dtype::u8 ||
         (is_small_float(dtype) && bits_of(dtype) >= 8);
}

float number_at(Dtype dtype, std::span<std::byte const> bytes, std::size_t i) {
  if (dtype == Dtype::f64) {
    double value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    // Only the sign counts: a value that a float rounds to zero is positive.
    if (!std::isfinite(value)) return static_cast<float>(value);
    return value > 0 ? 1.F : value < 0 ? -1.F : 0.F;
  }
  if (dtype == Dtype::f32) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    return value;
  }
  std::uint16_t code = 0;
  std::memcpy(&code, bytes.data() + i * (bits_of(dtype) / 8), bits_of(dtype) / 8);
  return decode_small_float(dtype == Dtype::u8 ? Dtype::f8_e8m0 : dtype, code);
}

struct Count {
  std::size_t values = 0;
  std::size_t zeros = 0;
  std::size_t below = 0;
  std::size_t first_below = 0;
  std::size_t non_finite = 0;
  std::size_t first_non_finite = 0;
};

Count count_invalid(Dtype dtype, std::span<std::byte const> bytes) {
  Count count{.values = bytes.size() * 8 / bits_of(dtype)};
  for (std::size_t i = 0; i < count.values; ++i) {
    auto const value = number_at(dtype, bytes, i);
    if (value == 0) ++count.zeros;
    if (!std::isfinite(value)) {
      if (count.non_finite++ == 0) count.first_non_finite = i;
    } else if (value < 0 && count.below++ == 0) {
      count.first_below = i;
    }
  }
  return count;
}

/// Returns the defect, or nothing. Some integer quantizers use negative scales, one per group, and a group of zeros may
/// have a scale of zero.
std::optional<std::string> finding_of(Count const& count, bool may_be_negative) {
  if (count.values == 0) return std::nullopt;
  if (count.non_finite > 0) {
    if (count.values == 1) return "the scale is NaN or infinite";
    return std::to_string(count.non_finite) + " of " + std::to_string(count.values) +
           " scales are NaN or infinite, the first at element " + std::to_string(count.first_non_finite);
  }
  if (count.values == 1 && count.zeros + count.below > 0)
    return count.zeros > 0 ? "the scale is zero" : "the scale is below zero";
  if (count.zeros == count.values) return "all " + std::to_string(count.values) + " scales are zero";
  if (count.below == 0 || may_be_negative) return std::nullopt;
  return std::to_string(count.below) + " of " + std::to_string(count.values) +
         " scales are below zero, the first at element " + std::to_string(count.first_below);
}

class ScaleWork final : public PoolWork {
 public:
  ScaleWork(Collective const& world, std::span<std::shared_ptr<ShardSource const> const> sources, ScaleScope reach)
      : sources_(sources), reach_(reach) {
    for (std::size_t s = 0; s < sources.size(); ++s) {
      auto const integers = integer_layers(*sources[s]);
      for (std::size_t t = 0; t < sources[s]->tensors().size(); ++t) {
        auto const& tensor = sources[s]->tensors()[t];
        auto const name = parse_tensor_name(tensor.name);
        if (!is_scale(name.role) || !can_be_invalid(tensor.dtype)) continue;
        if (tensor.dtype == Dtype::u8 && !integers.bytes.contains(name.module)) continue;
        auto const bytes = dense_bytes(tensor.shape, tensor.dtype);
        if (reach == ScaleScope::small && bytes > small_scale_bytes) continue;
        if (found_++ % as_size(world.world_size()) != as_size(world.rank())) continue;
        parts_.push_back({s, t, bytes, tensor.dtype != Dtype::f8_e4m3 && integers.all.contains(name.module)});
        total_ += bytes;
      }
    }
  }

  /// Returns whether any rank has data to read, on all ranks.
  [[nodiscard]] bool any() const noexcept { return found_ > 0; }
  bool step() override {
    auto const number = next_.fetch_add(1, std::memory_order_relaxed);
    if (number >= parts_.size()) return false;
    auto const& part = parts_[number];
    auto const& source = *sources_[part.source];
    auto const& tensor = source.tensors()[part.tensor];
    std::vector<std::byte> bytes(part.bytes);
    try {
      source.read(part.tensor, 0, bytes);
    } catch (Error const& error) {
      std::lock_guard const lock(mutex_);
      unreadable_.try_emplace(unreadable_file(error, source), error.what());
      return true;
    }
    done_.fetch_add(part.bytes, std::memory_order_relaxed);
    auto count = count_invalid(tensor.dtype, bytes);
    // `scan_numbers` reports them too, except those in bytes.
    if (reach_ == ScaleScope::all && tensor.dtype != Dtype::u8) count.non_finite = 0;
    if (auto const text = finding_of(count, part.may_be_negative)) {
      std::lock_guard const lock(mutex_);
      defects_.push_back({DefectKind::scales, tensor.name, *text + ", in " + source.name(), "calibrate or save again"});
    }
    return true;
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<Defect> findings() const {
    auto all = defects_;
    for (auto const& [file, text] : unreadable_) all.push_back({DefectKind::file, file, text, {}});
    return all;
  }

 private:
  struct ScanItem {
    std::size_t source = 0;
    std::size_t tensor = 0;
    std::uint64_t bytes = 0;
    bool may_be_negative = false;
  };

  /// The modules whose weights are words or integers, and those of them whose weights are bytes.
  struct IntegerLayers {
    std::unordered_set<std::string_view> all{};
    std::unordered_set<std::string_view> bytes{};
  };

  static IntegerLayers integer_layers(ShardSource const& source) {
    IntegerLayers modules;
    for (auto const& tensor : source.tensors()) {
      auto const name = parse_tensor_name(tensor.name);
      bool const integers = tensor.dtype == Dtype::i32 || tensor.dtype == Dtype::i8 || tensor.dtype == Dtype::u8;
      if (name.role != TensorRole::weight || !integers) continue;
      modules.all.insert(name.module);
      if (tensor.dtype == Dtype::u8) modules.bytes.insert(name.module);
    }
    return modules;
  }

  std::span<std::shared_ptr<ShardSource const> const> sources_;
  ScaleScope reach_;
  std::size_t found_ = 0;  ///< on all ranks together
  std::vector<ScanItem> parts_{};
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_{0};  ///< for progress only: orders nothing
  std::atomic<std::size_t> next_{0};    ///< hands each part to one thread; the parts themselves do not change
  std::mutex mutex_{};
  std::vector<Defect> defects_{};
  std::map<std::string, std::string> unreadable_{};
};

}  // namespace

std::vector<Defect> scan_scales(Collective const& world, std::span<std::shared_ptr<ShardSource const> const> sources,
                                ScaleScope reach, WorkerPoolOptions const& options) {
  ScaleWork work(world, sources, reach);
  if (!work.any()) return {};
  auto stage_options = options;
  stage_options.stage = "looking at scales";
  run_worker_pool(world, work, stage_options);
  return gather_defects(world, work.findings());
}

}  // namespace crossrank::checkpoint
