#include "workspace/checkpoint/verify/scan_numbers.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

// A multiple of the bytes that hold whole elements of every dtype (F6: four elements in three bytes).
constexpr std::uint64_t part_bytes = std::uint64_t{3} << 21;
// Many small tensors are read at once.
constexpr std::uint64_t scan_unit_bytes = std::uint64_t{16} << 20;

/// The codes of NaN and infinity in a format: all bits of `mask` are set; infinities have zeros in `rest`.
template <class Code>
struct NonFiniteFinding {
  Code mask;
  Code rest;
};

template <class Code>
NonFinite count(std::span<std::byte const> bytes, NonFiniteFinding<Code> odd) {
  NonFinite found;
  auto const size = bytes.size() / sizeof(Code);
  for (std::size_t i = 0; i < size; ++i) {
    Code code;
    std::memcpy(&code, bytes.data() + i * sizeof(Code), sizeof code);
    if ((code & odd.mask) != odd.mask) continue;
    if (!found.any()) found.first = i;
    bool const infinite = odd.rest != 0 && (code & odd.rest) == 0;
    ++(infinite ? found.infinities : found.nans);
  }
  return found;
}

/// A format with a single code for NaN.
NonFinite count_code(std::span<std::byte const> bytes, std::byte code) {
  NonFinite found;
  found.nans = static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), code));
  if (found.any())
    found.first = static_cast<std::uint64_t>(std::find(bytes.begin(), bytes.end(), code) - bytes.begin());
  return found;
}

bool can_be_non_finite(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
    case Dtype::f32:
    case Dtype::c64:
    case Dtype::f16:
    case Dtype::bf16:
    case Dtype::f8_e4m3:
    case Dtype::f8_e5m2:
    case Dtype::f8_e4m3fnuz:
    case Dtype::f8_e5m2fnuz:
    case Dtype::f8_e8m0: return true;
    default: return false;
  }
}

struct ScanItem {
  std::size_t source = 0;
  std::size_t tensor = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

class ScanWork final : public PoolWork {
  using Place = std::pair<std::size_t, std::size_t>;  ///< numbers of a source and of its tensor

 public:
  ScanWork(Collective const& world, std::span<std::shared_ptr<ShardSource const> const> sources) : sources_(sources) {
    std::uint64_t at = 0;
    auto const ranks = static_cast<std::uint64_t>(world.world_size());
    for (std::size_t s = 0; s < sources.size(); ++s) {
      for (std::size_t t = 0; t < sources[s]->tensors().size(); ++t) {
        auto const& tensor = sources[s]->tensors()[t];
        auto const bytes = dense_bytes(tensor.shape, tensor.dtype);
        for (std::uint64_t begin = 0; can_be_non_finite(tensor.dtype) && begin < bytes; begin += part_bytes) {
          auto const unit = at / scan_unit_bytes;
          auto const size = std::min(part_bytes, bytes - begin);
          at += size;
          if (unit % ranks != static_cast<std::uint64_t>(world.rank())) continue;
          parts_.push_back({s, t, begin, size});
          total_ += size;
        }
      }
    }
  }

  bool step() override {
    auto const number = next_.fetch_add(1, std::memory_order_relaxed);
    if (number >= parts_.size()) return false;
    auto const& part = parts_[number];
    auto const& source = *sources_[part.source];
    auto const buffer = std::make_unique_for_overwrite<std::byte[]>(part.bytes);
    std::span<std::byte> const bytes(buffer.get(), part.bytes);
    try {
      source.read(part.tensor, part.begin, bytes);
    } catch (Error const& error) {
      std::lock_guard const lock(mutex_);
      unreadable_.emplace(unreadable_file(error, source), error.what());
      return true;
    }
    auto odd = count_non_finite(source.tensors()[part.tensor].dtype, bytes);
    done_.fetch_add(part.bytes, std::memory_order_relaxed);
    if (odd.any()) note(part, odd);
    return true;
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(std::memory_order_relaxed); }

  /// Returns the findings about all ranks' parts on the first rank, and about unreadable files on each. Collective.
  [[nodiscard]] std::vector<Defect> findings(Collective const& world) {
    join_counts(world);
    std::vector<Defect> defects;
    for (auto const& [file, text] : unreadable_) defects.push_back({DefectKind::file, file, text, {}});
    if (world.rank() != 0) return defects;
    for (auto const& [place, odd] : non_finite_) {
      auto const& source = *sources_[place.first];
      std::string text;
      if (odd.nans > 0) text += std::to_string(odd.nans) + " NaN";
      if (odd.infinities > 0) text += (text.empty() ? "" : " and ") + std::to_string(odd.infinities) + " infinities";
      text += " in " + source.name() + ", the first at element " + std::to_string(odd.first);
      defects.push_back({DefectKind::numbers, source.tensors()[place.second].name, text, {}});
    }
    return defects;
  }

 private:
  void note(ScanItem const& part, NonFinite odd) {
    auto const& tensor = sources_[part.source]->tensors()[part.tensor];
    odd.first += part.begin * 8 / bits_of(tensor.dtype);
    std::lock_guard const lock(mutex_);
    add({part.source, part.tensor}, odd);
  }

  void add(Place const& place, NonFinite const& odd) {
    auto& all = non_finite_[place];
    all.first = all.any() ? std::min(all.first, odd.first) : odd.first;
    all.nans += odd.nans;
    all.infinities += odd.infinities;
  }

  /// Adds up the counts of all ranks: a long tensor has parts on several.
  void join_counts(Collective const& world) {
    struct Counted {
      std::uint64_t source = 0;
      std::uint64_t tensor = 0;
      NonFinite odd{};
    };
    std::vector<Counted> mine;
    for (auto const& [place, odd] : non_finite_) mine.push_back({place.first, place.second, odd});
    auto const all = world.all_gatherv(std::as_bytes(std::span(mine)));
    non_finite_.clear();
    for (auto const& bytes : all) {
      for (std::size_t at = 0; at + sizeof(Counted) <= bytes.size(); at += sizeof(Counted)) {
        Counted counted;
        std::memcpy(&counted, bytes.data() + at, sizeof counted);
        add({counted.source, counted.tensor}, counted.odd);
      }
    }
  }

  std::span<std::shared_ptr<ShardSource const> const> sources_;
  std::vector<ScanItem> parts_{};
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_{0};  ///< for progress only: orders nothing
  std::atomic<std::size_t> next_{0};    ///< hands each part to one thread; the parts themselves do not change
  std::mutex mutex_{};
  std::map<Place, NonFinite> non_finite_{};
  std::map<std::string, std::string> unreadable_{};
};

}  // namespace

NonFinite count_non_finite(Dtype dtype, std::span<std::byte const> bytes) {
  using U8 = std::uint8_t;
  using U16 = std::uint16_t;
  using U64 = std::uint64_t;
  switch (dtype) {
    case Dtype::f64: return count<U64>(bytes, {U64{0x7ff} << 52U, (U64{1} << 52U) - 1});
    case Dtype::f32: return count<std::uint32_t>(bytes, {0x7f80'0000U, 0x007f'ffffU});
    case Dtype::c64: {
      auto odd = count<std::uint32_t>(bytes, {0x7f80'0000U, 0x007f'ffffU});
      odd.first /= 2;
      return odd;
    }
    case Dtype::f16: return count<U16>(bytes, {0x7c00, 0x03ff});
    case Dtype::bf16: return count<U16>(bytes, {0x7f80, 0x007f});
    case Dtype::f8_e5m2: return count<U8>(bytes, {0x7c, 0x03});
    case Dtype::f8_e4m3: return count<U8>(bytes, {0x7f, 0});
    case Dtype::f8_e8m0: return count_code(bytes, std::byte{0xff});
    case Dtype::f8_e4m3fnuz:
    case Dtype::f8_e5m2fnuz: return count_code(bytes, std::byte{0x80});
    default: return {};
  }
}

std::string unreadable_file(Error const& error, ShardSource const& source) {
  return error.info().resource.empty() ? source.name() : error.info().resource;
}

std::vector<Defect> gather_defects(Collective const& world, std::vector<Defect> const& mine) {
  Json list = Json::array();
  for (auto const& defect : mine)
    list.push_back({static_cast<int>(defect.kind), defect.resource, defect.text, defect.hint});
  auto const text = list.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<Defect> all;
  for (auto const& bytes : world.all_gatherv(std::as_bytes(std::span(text)))) {
    for (auto const& defect :
         Json::parse(std::string_view(reinterpret_cast<char const*>(bytes.data()), bytes.size()))) {
      all.push_back({static_cast<DefectKind>(defect[0].get<int>()), defect[1].get<std::string>(),
                     defect[2].get<std::string>(), defect[3].get<std::string>()});
    }
  }
  std::sort(all.begin(), all.end(), [](auto const& a, auto const& b) {
    return std::tie(a.resource, a.kind, a.text) < std::tie(b.resource, b.kind, b.text);
  });
  return all;
}

ScanResult scan_numbers(Collective const& world, std::span<std::shared_ptr<ShardSource const> const> sources,
                        WorkerPoolOptions const& options) {
  ScanWork work(world, sources);
  auto stage_options = options;
  stage_options.stage = "looking at numbers";
  run_worker_pool(world, work, stage_options);
  ScanResult result{.defects = gather_defects(world, work.findings(world)), .bytes_read = 0};
  std::uint64_t read = work.bytes_done();
  if (world.world_size() > 1) world.all_reduce(std::span<std::uint64_t>(&read, 1), ReduceOp::sum);
  result.bytes_read = read;
  return result;
}

}  // namespace crossrank::checkpoint
