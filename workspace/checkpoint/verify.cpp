#include <crossrank/checkpoint.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/check_model.hpp"
#include "workspace/checkpoint/inventory.hpp"
#include "workspace/checkpoint/merge_model.hpp"
#include "workspace/checkpoint/missing_ranks.hpp"
#include "workspace/checkpoint/model_names.hpp"
#include "workspace/checkpoint/rule_book.hpp"
#include "workspace/checkpoint/safetensors_source.hpp"
#include "workspace/checkpoint/scan_numbers.hpp"
#include "workspace/checkpoint/team.hpp"
#include "workspace/checkpoint/torch_source.hpp"
#include "workspace/checkpoint/twins.hpp"
#include "workspace/checkpoint/unpacked_shape.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* operation = "verify";

DefectKind kind_of(Error const& error) {
  if (error.code() == ErrorCode::io) return DefectKind::file;
  auto const& section = error.info().section;
  if (section == "coverage" || section == "files" || section == missing_ranks_section) return DefectKind::coverage;
  if (section == "scales") return DefectKind::scales;
  return section == "header" || section == "length" || section == "json" ? DefectKind::file : DefectKind::shape;
}

Defect defect_of(Error const& error, std::string resource) {
  auto const& info = error.info();
  auto text = info.message.empty() ? std::string(error.what()) : info.message;
  if (!info.expected.empty()) text += ": expected " + info.expected;
  if (!info.got.empty()) text += (info.expected.empty() ? ": " : ", got ") + info.got;
  if (resource.empty()) resource = info.resource;
  return {kind_of(error), std::move(resource), std::move(text), info.remedy};
}

/// Compares the data of files that carry checksums: each tensor of ours, each storage of torch archives.
class ChecksumWork final : public TeamWork {
 public:
  ChecksumWork(Collective const& world, std::vector<Inventory::File> const& files) {
    for (auto const& file : files) {
      if (auto const source = std::dynamic_pointer_cast<SafetensorsSource const>(file.source)) add_images(*source);
      if (auto const source = std::dynamic_pointer_cast<TorchSource const>(file.source)) add_archive(*source);
    }
    // Each rank takes its share; what a file holds lies side by side.
    auto const ranks = static_cast<std::size_t>(world.world_size());
    auto const rank = static_cast<std::size_t>(world.rank());
    std::size_t kept = 0;
    for (std::size_t i = rank; i < parts_.size(); i += ranks) std::swap(parts_[kept++], parts_[i]);
    parts_.resize(kept);
    for (auto const& part : parts_) total_ += part.bytes;
  }

  bool step() override {
    auto const number = next_.fetch_add(1, std::memory_order_relaxed);
    if (number >= parts_.size()) return false;
    auto const& part = parts_[number];
    try {
      part.verify();
    } catch (Error const& error) {
      std::lock_guard const lock(mutex_);
      defects_.push_back({DefectKind::checksum, part.file, part.name + error.info().message, error.info().remedy});
    }
    done_.fetch_add(part.bytes, std::memory_order_relaxed);
    return true;
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<Defect> const& defects() const noexcept { return defects_; }

 private:
  struct Part {
    std::string file{};
    std::string name{};  ///< what the error does not say
    std::uint64_t bytes = 0;
    std::function<void()> verify{};
  };

  // The sources stay in the inventory for as long as this works.
  void add_images(SafetensorsSource const& source) {
    auto const& image = source.images().front();
    if (!image.checked()) return;
    for (auto const& entry : image.entries()) {
      auto const verify = [&image, &entry] { image.verify(entry.name); };
      parts_.push_back({source.name(), "\"" + entry.name + "\": ", entry.nbytes(), verify});
    }
  }

  void add_archive(TorchSource const& source) {
    auto const& archive = source.archive();
    for (std::uint32_t i = 0; archive.reads_checksums() && i < archive.storages().size(); ++i) {
      auto const verify = [&archive, i] { archive.verify(i); };
      parts_.push_back({source.name(), {}, archive.storages()[i].bytes, verify});
    }
  }

  std::vector<Part> parts_{};
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_{0};  ///< for progress only: orders nothing
  std::atomic<std::size_t> next_{0};    ///< hands each part to one thread; the parts themselves do not change
  std::mutex mutex_{};
  std::vector<Defect> defects_{};
};

/// All checks of one path, one after another.
class Verification {
 public:
  Verification(Collective const& world, std::filesystem::path const& path, PlanOptions const& plan,
               VerifyOptions const& options)
      : world_(world), path_(path), plan_(plan), options_(options) {}

  VerifyReport run() {
    agree(world_, operation, [&] { read_headers(); });
    if (model_) compare_copies();
    if (options_.checksums) compare_checksums();
    if (options_.numbers) look_at_numbers();
    // The same finding may come from a file by itself and from the set that it is a part of.
    auto& defects = report_.defects;
    auto const key = [](Defect const& defect) { return std::tie(defect.resource, defect.kind, defect.text); };
    std::sort(defects.begin(), defects.end(), [&](auto const& a, auto const& b) { return key(a) < key(b); });
    defects.erase(
        std::unique(defects.begin(), defects.end(), [&](auto const& a, auto const& b) { return key(a) == key(b); }),
        defects.end());
    return std::move(report_);
  }

 private:
  /// What headers and indexes tell; the same on every rank.
  void read_headers() {
    auto const crc = crc_policy(plan_.crc);
    // What others are warned of is told here.
    auto const told = plan_.crc == ArchiveCrc::ignore ? crc : codec::CrcPolicy::require;
    inventory_ =
        take_inventory(path_, {.crc = told, .extra_globals = plan_.extra_globals, .model_key = plan_.model_key});
    report_.files = inventory_.files.size();
    report_.defects = inventory_.defects;
    try {
      set_ = open_shard_set(path_, {.tp = plan_.tp,
                                    .pp = plan_.pp,
                                    .ep = plan_.ep,
                                    .moe_ep = plan_.moe_ep,
                                    .fused = plan_.fused_layout,
                                    .pattern = plan_.pattern,
                                    .crc = crc,
                                    .model_key = plan_.model_key,
                                    .extra_globals = plan_.extra_globals});
    } catch (FormatError const& error) {
      add_unless_known(error);
    } catch (UsageError const& error) {
      add_unless_known(error);
    }
    std::vector<std::string> names;
    if (set_) {
      plan_model(names);
      for (auto const& source : set_->sources) append(check_scales(*source, set_->config, set_->quantization));
      if (set_->sources.size() == 1) {
        QuantizationHints const hints(set_->config, set_->quantization);
        append(check_unpacked_shapes(set_->sources.front(), hints));
      }
      append(check_coverage(names, set_->config, path_.string()));
      append(check_fellows(names));
      append(check_stacked_layers(names));
      if (model_) append(ModelNames(set_->config).check(names, path_.string()));
    } else {
      count_files();
    }
  }

  void append(std::vector<Defect> defects) {
    report_.defects.insert(report_.defects.end(), defects.begin(), defects.end());
  }

  /// A file that does not open has been told of already.
  void add_unless_known(Error const& error) {
    auto const& resource = error.info().resource;
    bool const known = std::any_of(report_.defects.begin(), report_.defects.end(), [&](auto const& defect) {
      return defect.resource == resource || error.info().message.find("index") != std::string::npos;
    });
    if (!known) report_.defects.push_back(defect_of(error, {}));
  }

  void plan_model(std::vector<std::string>& names) {
    std::vector<std::pair<std::string, Error>> refusals;
    auto const refused = [&](std::string_view name, Error const& error) { refusals.emplace_back(name, error); };
    RuleFor rule_for;
    std::optional<RuleBook> book;
    try {
      bool const alone = set_->sources.size() == 1;
      if (!alone || !plan_.rules.empty() || RuleBook::changes_lone(*set_)) {
        std::optional<std::filesystem::path> rule_file;
        if (!plan_.rules.empty()) rule_file = plan_.rules;
        book = RuleBook::make(*set_, rule_file, plan_.policy);
        rule_for = [&book, alone](std::string_view name, std::span<SourceTensor const* const> tensors) {
          return alone ? book->rule_alone(*tensors.front()) : book->rule_for(name, tensors);
        };
      }
      model_ = plan_merge(*set_, rule_for, refused);
      tell_refusals(refusals);
      if (auto const error = check_lone_shard(*set_)) report_.defects.push_back(defect_of(*error, {}));
    } catch (FormatError const& error) {
      report_.defects.push_back(defect_of(error, {}));
      return count_files();
    }
    for (auto const& tensor : model_->tensors) names.push_back(tensor.name);
    report_.tensors = model_->tensors.size();
    report_.bytes = model_->bytes;
  }

  /// Where ranks are missing, that explains every layer whose pieces do not add up.
  void tell_refusals(std::vector<std::pair<std::string, Error>> const& refusals) {
    Error const* missing = nullptr;
    for (auto const& [name, error] : refusals) {
      bool const says_more = missing == nullptr || error.culprits().size() > missing->culprits().size();
      if (error.info().section == missing_ranks_section && says_more) missing = &error;
    }
    if (missing != nullptr) report_.defects.push_back(defect_of(missing_ranks(*set_, *missing), {}));
    for (auto const& [name, error] : refusals) {
      auto const& section = error.info().section;
      bool const explained = section == missing_ranks_section || section == lengths_section;
      if (missing == nullptr || !explained) report_.defects.push_back(defect_of(error, name));
    }
  }

  void count_files() {
    for (auto const& file : inventory_.files) {
      if (!file.source) continue;
      report_.tensors += file.source->tensors().size();
      for (auto const& tensor : file.source->tensors()) report_.bytes += dense_bytes(tensor.shape, tensor.dtype);
    }
  }

  void compare_copies() {
    for (auto const& finding : compare_twins(world_, *model_, team(), Unreadable::tell)) {
      if (finding.unreadable) {
        report_.defects.push_back({DefectKind::file, finding.tensor, finding.text, {}});
        continue;
      }
      bool const scale = finding.tensor.find("scale") != std::string::npos;
      report_.defects.push_back({scale ? DefectKind::scales : DefectKind::copies, finding.tensor, finding.text,
                                 "calibrate or save again, or merge with `policy` or a rule"});
    }
  }

  void compare_checksums() {
    ChecksumWork work(world_, inventory_.files);
    auto staged = team();
    staged.stage = "comparing checksums";
    run_team(world_, work, staged);
    append(gather_defects(world_, work.defects()));
  }

  void look_at_numbers() {
    std::vector<std::shared_ptr<ShardSource const>> sources;
    if (set_) sources = set_->sources;
    for (auto const& file : inventory_.files) {
      if (!set_ && file.source) sources.push_back(file.source);
    }
    auto result = scan_numbers(world_, sources, team());
    report_.bytes_read += result.bytes_read;
    append(std::move(result.defects));
  }

  [[nodiscard]] TeamOptions team() const {
    return {.operation = operation,
            .threads = options_.threads,
            .on_progress = options_.on_progress,
            .stop = options_.stop};
  }

  Collective const& world_;
  std::filesystem::path const& path_;
  PlanOptions const& plan_;
  VerifyOptions const& options_;
  VerifyReport report_{};
  Inventory inventory_{};
  std::optional<ShardSet> set_{};
  std::optional<MergeModel> model_{};
};

}  // namespace

char const* to_string(DefectKind kind) noexcept {
  switch (kind) {
    case DefectKind::file: return "file";
    case DefectKind::index: return "index";
    case DefectKind::coverage: return "coverage";
    case DefectKind::shape: return "shape";
    case DefectKind::copies: return "copies";
    case DefectKind::scales: return "scales";
    case DefectKind::checksum: return "checksum";
    case DefectKind::numbers: return "numbers";
  }
  return "unknown";
}

VerifyReport verify(Collective const& world, std::filesystem::path const& path, PlanOptions const& plan,
                    VerifyOptions const& options) {
  return Verification(world, path, plan, options).run();
}

}  // namespace crossrank::checkpoint
