#include "workspace/checkpoint/verify/compare_replicas.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/verify/duplicate_ranks.hpp"
#include "workspace/checkpoint/source/strided_copy.hpp"
#include "workspace/checkpoint/quantization/reduce_values.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
// The unit of work; it may contain many small tensors.
constexpr std::uint64_t unit_bytes = std::uint64_t{16} << 20;
constexpr std::size_t max_listed = 100;
constexpr std::string_view comparing_stage = "comparing replicas";

struct Pair {
  std::size_t tensor = 0;
  ReplicaRuns replica{};
  std::uint64_t bytes = 0;
};

/// The part of the work that one rank does.
struct Share {
  int rank = 0;
  int world_size = 1;
};

Share share_of(Collective const& world) { return {.rank = world.rank(), .world_size = world.world_size()}; }

class ReplicaComparison final : public PoolWork {
 public:
  ReplicaComparison(MergeLayout const& layout, std::span<std::size_t const> tensors, Share share, Unreadable unreadable)
      : layout_(layout), unreadable_(unreadable) {
    std::uint64_t at = 0;
    for (auto const t : tensors) {
      for (auto const& replica : layout.tensors[t].replica_runs) {
        auto const bytes = replica.runs.bytes();
        // Neighbouring tensors are neighbours in the files, so one rank compares them.
        auto const unit = at / unit_bytes;
        at += bytes + 1;
        if (unit % as_size(share.world_size) != as_size(share.rank)) continue;
        if (units_.empty() || units_.back().first != unit) units_.emplace_back(unit, std::vector<Pair>{});
        units_.back().second.push_back({t, replica, bytes});
        total_ += bytes;
      }
    }
  }

  bool step() override {
    auto const unit = next_.fetch_add(1, std::memory_order_relaxed);
    if (unit >= units_.size()) return false;
    auto const buffer = std::make_unique_for_overwrite<std::byte[]>(2 * block_bytes);
    for (auto const& pair : units_[unit].second) {
      try {
        compare(pair, buffer.get());
      } catch (Error const& error) {
        if (unreadable_ == Unreadable::fail) throw;
        note(pair, {.text = error.what(), .kind = ReplicaProblem::unreadable, .file = error.info().resource});
      }
    }
    return true;
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::map<std::size_t, ReplicaFinding> const& findings() const noexcept { return findings_; }

 private:
  void note(Pair const& pair, ReplicaFinding finding) {
    std::lock_guard const lock(mutex_);
    findings_.emplace(pair.tensor, std::move(finding));
  }

  void compare(Pair const& pair, std::byte* buffer) {
    auto const& kept = *layout_.set.sources[pair.replica.kept.source];
    auto const& other = *layout_.set.sources[pair.replica.other.source];
    for (std::uint64_t at = 0; at < pair.bytes; at += block_bytes) {
      auto const size = std::min<std::uint64_t>(block_bytes, pair.bytes - at);
      std::span<std::byte> const a(buffer, size);
      std::span<std::byte> const b(buffer + block_bytes, size);
      StridedCopy const runs{.from = pair.replica.runs, .to_stride = pair.replica.runs.run_bytes};
      require_filled(layout_.tensors[pair.tensor].name, read_strided_runs(kept, pair.replica.kept.tensor, runs, at, a),
                     size);
      require_filled(layout_.tensors[pair.tensor].name,
                     read_strided_runs(other, pair.replica.other.tensor, runs, at, b), size);
      if (std::memcmp(a.data(), b.data(), size) == 0) continue;
      if (!pair.replica.must_differ) tell(pair, at, a, b);
      done_.fetch_add(pair.bytes, std::memory_order_relaxed);  // the rest need not be read
      return;
    }
    if (pair.replica.must_differ) {
      note(pair, {.text = "should be pieces of one tensor, but " + kept.name() + " and " + other.name() +
                          " hold the same bytes",
                  .kind = ReplicaProblem::same});
    }
    done_.fetch_add(pair.bytes, std::memory_order_relaxed);
  }

  void tell(Pair const& pair, std::uint64_t at, std::span<std::byte const> a, std::span<std::byte const> b) {
    auto const& kept = *layout_.set.sources[pair.replica.kept.source];
    auto const& other = *layout_.set.sources[pair.replica.other.source];
    auto const dtype = kept.tensors()[pair.replica.kept.tensor].dtype;
    auto const differs = as_size(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
    auto const width = std::max<std::size_t>(1, bits_of(dtype) / 8);
    // The place in the tensor itself.
    auto const& runs = pair.replica.runs;
    auto const place = runs.start((at + differs) / runs.run_bytes) + (at + differs) % runs.run_bytes;
    auto text = "element " + std::to_string(place / width) + " is " + element_text(dtype, a, differs / width) + " in " +
                kept.name() + " and " + element_text(dtype, b, differs / width) + " in " + other.name();
    note(pair, {.text = std::move(text)});
  }

  MergeLayout const& layout_;
  Unreadable unreadable_;
  std::vector<std::pair<std::uint64_t, std::vector<Pair>>> units_{};
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_{0};  ///< for progress only: orders nothing
  std::atomic<std::size_t> next_{0};    ///< hands each unit to one thread; the units themselves do not change
  std::mutex mutex_{};
  std::map<std::size_t, ReplicaFinding> findings_{};  ///< by tensor, the first one of each
};

std::vector<std::size_t> all_tensors(MergeLayout const& layout) {
  std::vector<std::size_t> all(layout.tensors.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

/// Finds duplicate ranks. Files that cannot be read are reported elsewhere.
std::vector<ReplicaFinding> duplicates(MergeLayout const& layout, Unreadable unreadable) {
  try {
    return find_duplicate_ranks(layout);
  } catch (Error const&) {
    if (unreadable == Unreadable::fail) throw;
    return {};
  }
}

}  // namespace

std::vector<ReplicaFinding> compare_replicas(Collective const& world, MergeLayout const& layout,
                                             WorkerPoolOptions const& options, Unreadable unreadable) {
  ReplicaComparison work(layout, all_tensors(layout), share_of(world), unreadable);
  auto stage_options = options;
  stage_options.stage = comparing_stage;
  run_worker_pool(world, work, stage_options);
  std::vector<ReplicaFinding> duplicate_ranks;
  agree(world, options.operation, [&] {
    if (world.rank() == 0) duplicate_ranks = duplicates(layout, unreadable);
  });
  Json mine = Json::array();
  for (auto const& finding : duplicate_ranks) {
    auto const found = std::find_if(layout.tensors.begin(), layout.tensors.end(),
                                    [&](auto const& tensor) { return tensor.name == finding.tensor; });
    mine.push_back({found - layout.tensors.begin(), finding.text, static_cast<int>(finding.kind), finding.file});
  }
  for (auto const& [tensor, finding] : work.findings())
    mine.push_back({tensor, finding.text, static_cast<int>(finding.kind), finding.file});
  auto const text = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::map<std::size_t, ReplicaFinding> all;
  for (auto const& bytes : world.all_gatherv(std::as_bytes(std::span(text)))) {
    auto const parsed = Json::parse(std::string_view(reinterpret_cast<char const*>(bytes.data()), bytes.size()));
    for (auto const& finding : parsed) {
      auto const tensor = finding[0].get<std::size_t>();
      all.emplace(tensor,
                  ReplicaFinding{layout.tensors[tensor].name, finding[1].get<std::string>(),
                                 static_cast<ReplicaProblem>(finding[2].get<int>()), finding[3].get<std::string>()});
    }
  }
  std::vector<ReplicaFinding> findings;
  for (auto& [tensor, finding] : all) findings.push_back(std::move(finding));
  return findings;
}

char const* hint_for(ReplicaProblem kind) noexcept {
  switch (kind) {
    case ReplicaProblem::differ:
      return "calibrate or save again, or give a rule that merges different values; for scales, choose a `policy`";
    case ReplicaProblem::same: return "give a rule that says whether each rank holds all of it or a piece";
    case ReplicaProblem::duplicate: return "copy the original file of the overwritten rank there";
    case ReplicaProblem::unreadable: break;
  }
  return "copy the file again";
}

namespace {

/// Returns one sentence for all findings of one kind.
std::string summary_of(std::vector<ReplicaFinding> const& findings, ReplicaProblem kind) {
  auto const count = std::count_if(findings.begin(), findings.end(), [&](auto const& one) { return one.kind == kind; });
  auto const first = std::find_if(findings.begin(), findings.end(), [&](auto const& one) { return one.kind == kind; });
  if (kind == ReplicaProblem::duplicate) return "one rank's file is a copy of another's: " + first->text;
  auto const tensors = std::to_string(count) + (count == 1 ? " tensor" : " tensors");
  auto const example = (count == 1 ? ": " : ", first ") + first->tensor + ": " + first->text;
  if (kind == ReplicaProblem::same)
    return "ranks hold the same bytes of " + tensors + " that should be in pieces" + example;
  return "ranks hold different values of " + tensors + " that must agree" + example;
}

/// Throws a `FormatError` that lists the findings, if there are any.
void refuse(std::vector<ReplicaFinding> const& findings, std::string const& operation) {
  if (findings.empty()) return;
  std::vector<std::string> details;
  for (auto const& finding : findings) {
    if (details.size() < max_listed) details.push_back(finding.tensor + ": " + finding.text);
  }
  // A file that was copied over another one causes all other differences.
  auto const rank = [](ReplicaProblem kind) {
    return kind == ReplicaProblem::duplicate ? 0 : kind == ReplicaProblem::differ ? 1 : 2;
  };
  auto const worst = std::min_element(findings.begin(), findings.end(),
                                      [&](auto const& a, auto const& b) { return rank(a.kind) < rank(b.kind); });
  throw FormatError({.operation = operation,
                     .message = summary_of(findings, worst->kind),
                     .resource = worst->tensor,
                     .hint = hint_for(worst->kind),
                     .details = details,
                     .section = worst->kind == ReplicaProblem::duplicate ? to_string(ErrorSection::files) : "data"});
}

/// Throws a `FormatError` that lists the findings of this rank, if there are any.
void refuse(MergeLayout const& layout, ReplicaComparison const& work, std::string const& operation) {
  std::vector<ReplicaFinding> findings;
  for (auto const& [tensor, finding] : work.findings()) {
    findings.push_back(finding);
    findings.back().tensor = layout.tensors[tensor].name;
  }
  refuse(findings, operation);
}

}  // namespace

void require_equal_replicas(Collective const& world, MergeLayout const& layout, WorkerPoolOptions const& options) {
  refuse(compare_replicas(world, layout, options, Unreadable::fail), options.operation);
}

void require_equal_replicas_of(Collective const& world, MergeLayout const& layout, std::span<std::size_t const> tensors,
                               WorkerPoolOptions const& options) {
  ReplicaComparison work(layout, tensors, share_of(world), Unreadable::fail);
  auto stage_options = options;
  stage_options.stage = comparing_stage;
  run_worker_pool(world, work, stage_options);
  refuse(layout, work, options.operation);
}

void require_equal_replicas_of(MergeLayout const& layout, std::size_t tensor, std::string const& operation) {
  ReplicaComparison work(layout, std::span(&tensor, 1), {}, Unreadable::fail);
  while (work.step()) {
  }
  refuse(layout, work, operation);
}

void require_distinct_ranks(MergeLayout const& layout, std::string const& operation) {
  refuse(find_duplicate_ranks(layout), operation);
}

}  // namespace crossrank::checkpoint
