#include <crossrank/checkpoint.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/platform/files/io_error.hpp"
#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"
#include "workspace/checkpoint/discovery/inventory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/model_names.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"
#include "workspace/checkpoint/plan/checks/check_layers.hpp"
#include "workspace/checkpoint/plan/checks/check_model.hpp"
#include "workspace/checkpoint/plan/checks/missing_scales.hpp"
#include "workspace/checkpoint/plan/checks/single_shard.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/plan/plan_shard_set.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/rules/scales/weight_shape.hpp"
#include "workspace/checkpoint/source/model_key.hpp"
#include "workspace/checkpoint/source/safetensors_source.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"
#include "workspace/checkpoint/verify/beside_the_model.hpp"
#include "workspace/checkpoint/verify/checksum_check.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"
#include "workspace/checkpoint/verify/scan_numbers.hpp"
#include "workspace/checkpoint/verify/scan_scales.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* verify_operation = "verify";

DefectKind kind_of(ErrorSection section) {
  switch (section) {
    case ErrorSection::index: return DefectKind::index;
    case ErrorSection::coverage:
    case ErrorSection::files:
    case ErrorSection::missing_ranks: return DefectKind::coverage;
    case ErrorSection::scales: return DefectKind::scales;
    case ErrorSection::lengths:
    case ErrorSection::keys:
    case ErrorSection::shape:
    case ErrorSection::shards:
    case ErrorSection::rules:
    case ErrorSection::config:
    case ErrorSection::chunks:
    case ErrorSection::pattern:
    case ErrorSection::name:
    case ErrorSection::dtype:
    case ErrorSection::group_ids: break;
  }
  return DefectKind::shape;
}

/// Returns the kind of a defect by the section of its error. A section that names a place in a file is of that file.
DefectKind kind_of(Error const& error) {
  if (error.code() == ErrorCode::io) return DefectKind::file;
  if (error.info().section.empty()) return DefectKind::shape;
  auto const section = section_of(error);
  return section ? kind_of(*section) : DefectKind::file;
}

Defect defect_of(Error const& error, std::string resource) {
  auto const& info = error.info();
  auto text = info.message.empty() ? std::string(error.what()) : info.message;
  if (!info.expected.empty()) text += ": expected " + info.expected;
  if (!info.got.empty()) text += (info.expected.empty() ? ": " : ", got ") + info.got;
  if (!info.system.empty()) text += ": " + info.system;
  if (resource.empty()) resource = info.resource;
  return {kind_of(error), std::move(resource), std::move(text), info.hint};
}

/// Runs all checks of one path.
class Verification {
 public:
  Verification(Collective const& world, std::filesystem::path const& path, PlanOptions const& plan,
               VerifyOptions const& options)
      : world_(world), path_(path), plan_(plan), options_(options) {}

  VerifyReport run() {
    agree(world_, verify_operation, [&] {
      require_thread_count(verify_operation, options_.threads);
      read_headers();
    });
    require_same_files();
    if (layout_) check_replicas();
    if (options_.checksums) compare_checksums();
    append(scan_scales(world_, sources(), options_.numbers ? ScaleScope::all : ScaleScope::small, pool_options()));
    if (options_.numbers) scan_values();
    drop_unreadable_after_checksums();
    // A file and its set may report the same defect.
    auto& defects = report_.defects;
    auto const key = [](Defect const& defect) { return std::tie(defect.resource, defect.kind, defect.text); };
    std::sort(defects.begin(), defects.end(), [&](auto const& a, auto const& b) { return key(a) < key(b); });
    defects.erase(
        std::unique(defects.begin(), defects.end(), [&](auto const& a, auto const& b) { return key(a) == key(b); }),
        defects.end());
    return std::move(report_);
  }

 private:
  /// Returns what to do with checksums. A difference that causes a warning elsewhere is a defect here.
  [[nodiscard]] codec::CrcPolicy strict_crc() const noexcept {
    return plan_.crc == ArchiveCrc::ignore ? codec::CrcPolicy::ignore : codec::CrcPolicy::require;
  }

  /// The ranks divide the data among themselves by the numbers of sources and tensors.
  void require_same_files() const {
    codec::StreamingChecksum sum;
    auto const add = [&sum](std::string const& text) { sum.update(std::as_bytes(std::span(text))); };
    add(layout_ ? "layout" : "files");
    for (auto const& source : sources()) {
      for (auto const& tensor : source->tensors())
        add(tensor.name + std::string(name_of(tensor.dtype)) + crossrank::to_string(tensor.shape));
      add("/");
    }
    require_equal(sum.digest());
  }

  /// Throws `MismatchError` on all ranks unless all have the same digest of what they see.
  void require_equal(std::uint64_t own) const {
    auto const all = world_.all_gatherv(std::as_bytes(std::span(&own, 1)));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      throw MismatchError({.operation = verify_operation,
                           .message = "ranks 0 and " + std::to_string(rank) + " see different files",
                           .resource = path_.string(),
                           .hint = "give all ranks the same files on a shared file system",
                           .rank = world_.rank(),
                           .world_size = world_.world_size(),
                           .failed_ranks = {static_cast<int>(rank)}});
    }
  }

  /// Runs the checks of headers and indexes. Every rank gets the same result.
  void read_headers() {
    inventory_ = take_inventory(
        path_, {.crc = strict_crc(), .extra_globals = plan_.extra_globals, .model_key = plan_.model_key});
    report_.defects = inventory_.defects;
    try {
      set_ = open_shard_set(path_, shard_set_options(plan_));
    } catch (FormatError const& error) {
      add_unless_known(error);
    } catch (UsageError const& error) {
      add_unless_known(error);
    } catch (IoError const& error) {
      if (platform::is_own_limit(error)) throw;
      add_unless_known(error);
    }
    std::error_code ignored;
    if (std::filesystem::is_directory(path_, ignored)) {
      append(check_training_state(path_));
      if (set_ && set_->sources.size() == 1) append(check_index_exists(path_));
    }
    report_.files = count_files();
    set_ ? check_set() : count_tensors();
  }

  /// Runs the checks of the set: its links, and the names, shapes and scales of its tensors.
  void check_set() {
    std::vector<std::string> names;
    for (auto const& path : set_->unreachable)
      report_.defects.push_back({DefectKind::file, path, "this is a link that leads to no file, a device or a pipe",
                                 "copy the file that it points to, or remove the link"});
    plan_model(names);
    for (auto const& source : set_->sources) {
      append(check_scales(*source, set_->config, set_->quantization));
      append(check_missing_scales(source->tensors(), source->name(), set_->config, set_->quantization));
    }
    if (set_->sources.size() == 1) {
      QuantizationHints const hints(set_->config, set_->quantization);
      append(check_weight_shapes(set_->sources.front(), hints));
    }
    append(check_coverage(names, set_->config, path_.string()));
    append(check_missing_tensors(names));
    append(check_stacked_layers(names));
    if (layout_) {
      append(check_vocabulary(layout_->tensors, ModelSizes(set_->config)));
      append(check_layer_names(names, set_->config, path_.string()));
    }
  }

  /// Counts the files of the inventory and of the set.
  std::size_t count_files() const {
    std::set<std::string> files;
    for (auto const& file : inventory_.files) files.insert(file.path.string());
    if (set_) {
      for (auto const& path : beside_inventory()) files.insert(path);
    }
    return files.size();
  }

  /// Returns the files of the set that hold data and are not in the inventory.
  std::vector<std::string> beside_inventory() const {
    std::set<std::string> known;
    for (auto const& file : inventory_.files) known.insert(file.path.string());
    std::vector<std::string> others;
    for (auto const& file : set_->files) {
      bool const hidden = std::filesystem::path(file.path).filename().string().starts_with('.');
      if (!hidden && known.insert(file.path).second) others.push_back(file.path);
    }
    return others;
  }

  void append(std::vector<Defect> defects) {
    report_.defects.insert(report_.defects.end(), defects.begin(), defects.end());
  }

  /// Reports an error of the set unless the inventory has reported the same file or index.
  void add_unless_known(Error const& error) {
    auto const& resource = error.info().resource;
    bool const known = std::any_of(report_.defects.begin(), report_.defects.end(),
                                   [&](auto const& defect) { return defect.resource == resource; });
    if (!known) report_.defects.push_back(defect_of(error, {}));
  }

  void plan_model(std::vector<std::string>& names) {
    std::vector<std::pair<std::string, Error>> refusals;
    auto const refused = [&](std::string_view name, Error const& error) { refusals.emplace_back(name, error); };
    RuleFor rule_for;
    try {
      if (set_->sources.size() > 1 || !plan_.rules.empty() || RuleSet::changes_single_source(*set_)) {
        std::optional<std::filesystem::path> rule_file;
        if (!plan_.rules.empty()) rule_file = plan_.rules;
        rule_for = rules_of(RuleSet::make(*set_, rule_file, plan_.policy), *set_);
      }
      layout_ = lay_out_merge(*set_, rule_for, refused);
      report_refusals(refusals);
      if (auto const error = check_single_shard(*set_)) report_.defects.push_back(defect_of(*error, {}));
    } catch (FormatError const& error) {
      report_.defects.push_back(defect_of(error, {}));
      return count_tensors();
    }
    for (auto const& tensor : layout_->tensors) names.push_back(tensor.name);
    for (auto const& [name, error] : refusals) names.push_back(name);  // these are defective, not missing
    report_.tensors = layout_->tensors.size();
    report_.bytes = layout_->bytes;
  }

  /// Reports the errors of the rules. Missing ranks explain every layer whose pieces do not add up.
  void report_refusals(std::vector<std::pair<std::string, Error>> const& refusals) {
    Error const* missing = nullptr;
    for (auto const& [name, error] : refusals) {
      bool const says_more = missing == nullptr || error.failed_ranks().size() > missing->failed_ranks().size();
      if (section_of(error) == ErrorSection::missing_ranks && says_more) missing = &error;
    }
    if (missing != nullptr) report_.defects.push_back(defect_of(missing_ranks(*set_, *missing), {}));
    for (auto const& [name, error] : refusals) {
      auto const section = section_of(error);
      bool const explained = section == ErrorSection::missing_ranks || section == ErrorSection::lengths;
      // The tensors of a layer without its weight are all refused because of the weight.
      auto resource = section == ErrorSection::coverage ? std::string() : name;
      if (missing == nullptr || !explained) report_.defects.push_back(defect_of(error, std::move(resource)));
    }
  }

  void count_tensors() {
    for (auto const& file : inventory_.files) {
      if (!file.source) continue;
      report_.tensors += file.source->tensors().size();
      for (auto const& tensor : file.source->tensors()) report_.bytes += dense_bytes(tensor.shape, tensor.dtype);
    }
  }

  void check_replicas() {
    for (auto const& finding : compare_replicas(world_, *layout_, pool_options(), Unreadable::tell)) {
      auto const role = parse_tensor_name(finding.tensor).role;
      bool const scale = finding.kind == ReplicaProblem::differ && (is_scale(role) || role == TensorRole::pre_quant);
      auto const kind = finding.kind == ReplicaProblem::unreadable ? DefectKind::file
                        : scale                                    ? DefectKind::scales
                                                                   : DefectKind::replicas;
      auto const& resource = finding.file.empty() ? finding.tensor : finding.file;
      report_.defects.push_back({kind, resource, finding.text, hint_for(finding.kind)});
    }
  }

  /// Removes the reports of files that cannot be read and whose checksums do not match. Both have the same cause.
  void drop_unreadable_after_checksums() {
    std::set<std::string> damaged;
    for (auto const& defect : report_.defects) {
      if (defect.kind == DefectKind::checksum) damaged.insert(defect.resource);
    }
    std::erase_if(report_.defects, [&](Defect const& defect) {
      return defect.kind == DefectKind::file && damaged.contains(defect.resource);
    });
  }

  void compare_checksums() {
    ChecksumCheck work;
    for (auto const& file : inventory_.files) {
      if (file.source) work.add(*file.source);
    }
    std::vector<Defect> unopened;
    agree(world_, verify_operation, [&] {
      if (set_) unopened = add_beside_inventory(work);
    });
    // A file that one rank cannot open is left out on all ranks: they take shares of one list. Hosts may mount the
    // files at different places.
    auto const root = path_.lexically_normal();
    for (auto& defect : unopened)
      defect.resource = std::filesystem::path(defect.resource).lexically_normal().lexically_relative(root).string();
    unopened = gather_defects(world_, unopened);
    for (auto& defect : unopened) {
      auto const file = root / defect.resource;
      work.remove(file);
      defect.resource = file.string();
    }
    append(std::move(unopened));
    require_equal(work.digest());
    work.take_share(world_.rank(), world_.world_size());
    auto stage_options = pool_options();
    stage_options.stage = "comparing checksums";
    run_worker_pool(world_, work, stage_options);
    append(gather_defects(world_, work.defects()));
  }

  /// Adds the files that only the set knows: chunks of a distributed checkpoint, training states, folders of ranks.
  /// Returns a defect for each file that this rank cannot open.
  std::vector<Defect> add_beside_inventory(ChecksumCheck& work) {
    std::vector<Defect> unopened;
    auto const crc = strict_crc();
    add_chunks(work, crc);
    auto const pool = std::make_shared<FilePool>();
    for (auto const& path : beside_inventory()) {
      try {
        if (path.ends_with(".distcp") || path.ends_with(".json")) continue;
        if (is_torch_archive(path)) {
          work.add(codec::TorchArchive::open(
              pool->open(path),
              {.crc = crc, .allowlist = codec::training_allowlist(), .extra_globals = plan_.extra_globals}));
        } else {
          unmerged_.push_back(
              std::make_shared<SafetensorsSource>(path, std::vector<std::filesystem::path>{path}, pool));
          work.add(*unmerged_.back());
        }
      } catch (Error const& error) {
        if (platform::is_own_limit(error)) throw;
        unopened.push_back(defect_of(error, path));
      }
    }
    return unopened;
  }

  /// Adds the chunks of a distributed checkpoint: all of them, also those of the optimizer, unless the caller has named
  /// the model's key.
  void add_chunks(ChecksumCheck& work, codec::CrcPolicy crc) {
    auto const chunked = [](auto const& source) {
      return std::dynamic_pointer_cast<ChunkedSource const>(source) != nullptr;
    };
    if (std::none_of(set_->sources.begin(), set_->sources.end(), chunked)) return;
    if (plan_.model_key.empty() && find_dcp(path_) == DcpFlavour::torch) {
      try {
        unmerged_.push_back(open_dcp(path_, {.crc = crc, .model_key = ".", .extra_globals = plan_.extra_globals}));
        return work.add(*unmerged_.back());
      } catch (FormatError const& error) {  // all ranks see it
        report_.defects.push_back(defect_of(error, path_));
      }
    }
    for (auto const& source : set_->sources) {
      if (chunked(source)) work.add(*source);
    }
  }

  [[nodiscard]] std::vector<std::shared_ptr<ShardSource const>> sources() const {
    if (set_) return set_->sources;
    std::vector<std::shared_ptr<ShardSource const>> opened;
    for (auto const& file : inventory_.files) {
      if (file.source) opened.push_back(file.source);
    }
    return opened;
  }

  void scan_values() {
    auto result = scan_numbers(world_, sources(), pool_options());
    report_.bytes_read += result.bytes_read;
    append(std::move(result.defects));
  }

  [[nodiscard]] WorkerPoolOptions pool_options() const {
    return {.operation = verify_operation,
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
  std::optional<MergeLayout> layout_{};
  std::vector<std::shared_ptr<ShardSource const>> unmerged_{};  ///< opened for their checksums
};

}  // namespace

char const* to_string(DefectKind kind) noexcept {
  switch (kind) {
    case DefectKind::file: return "file";
    case DefectKind::index: return "index";
    case DefectKind::coverage: return "coverage";
    case DefectKind::shape: return "shape";
    case DefectKind::replicas: return "replicas";
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
