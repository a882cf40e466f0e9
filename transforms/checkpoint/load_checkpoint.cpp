#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/transforms/checkpoint.hpp>

#include "lib/core/as_size.hpp"
#include "transforms/checkpoint/trained_state.hpp"
#include "transforms/model/reals.hpp"
#include "workspace/checkpoint/discovery/interrupted_commit.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/safetensors_source.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/job/dead_jobs.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::ShardSource;

constexpr char const* load_operation = "load_checkpoint";
constexpr std::int64_t max_elements = std::int64_t{1} << 20;  // of a block that is converted

[[noreturn]] void refuse(std::string message, std::string expected, std::string got, std::string resource,
                         std::string hint = {}) {
  throw FormatError({.operation = load_operation,
                     .message = std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = std::move(resource),
                     .hint = std::move(hint),
                     .section = "tensors"});
}

/// Rows to read: where they are in the file, and where they go.
struct Rows {
  std::size_t tensor = 0;
  TensorShard to{};
};

/// Reads rows of the tensors of a checkpoint.
class RowReader {
 public:
  /// Reads the tensors whose names begin with `prefix`. Their names begin with `as` instead.
  explicit RowReader(std::shared_ptr<ShardSource const> source, std::string_view prefix = {}, std::string_view as = {})
      : source_(std::move(source)) {
    auto const tensors = source_->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto const& name = tensors[i].name;
      if (name.starts_with(prefix)) places_.emplace(std::string(as) + name.substr(prefix.size()), i);
    }
  }

  [[nodiscard]] bool has(std::string const& name) const { return places_.contains(name); }

  /// Notes rows for `read`. Throws `FormatError` if the checkpoint does not have the tensor as expected.
  void want(TensorShard to) {
    auto const found = places_.find(to.name);
    if (found == places_.end())
      refuse("the checkpoint lacks a tensor", to_string(to.shape), "no such tensor", to.name,
             "load it into the model that was saved");
    auto const& tensor = source_->tensors()[found->second];
    if (tensor.shape != to.shape)
      refuse("the tensor has another shape", to_string(to.shape), to_string(tensor.shape), to.name);
    auto const dtype = to.value.dtype();
    bool const converts = transforms::is_real(tensor.dtype) && transforms::is_real(dtype);
    if (tensor.dtype != dtype && !converts)
      refuse("the tensor has another dtype", std::string(name_of(dtype)), std::string(name_of(tensor.dtype)), to.name);
    wanted_.push_back({found->second, std::move(to)});
  }

  /// Throws `FormatError` if the checkpoint has a tensor that was not wanted.
  void require_all_wanted(char const* owner) const {
    std::vector<bool> wanted(source_->tensors().size());
    for (auto const& rows : wanted_) wanted[rows.tensor] = true;
    for (auto const& [name, tensor] : places_) {
      if (!wanted[tensor])
        refuse(std::string("the ") + owner + " has no such tensor", "no such tensor", "a tensor in the checkpoint",
               name);
    }
  }

  void read() const {
    for (auto const& rows : wanted_) read(rows);
  }

 private:
  void read(Rows const& rows) const {
    if (rows.to.value.device() != Device::cpu()) return read_to_gpu(rows);
    auto value = rows.to.value.reshape({rows.to.value.numel()});
    auto const dtype = source_->tensors()[rows.tensor].dtype;
    auto const first = transforms::first_element(rows.to);
    auto const bytes_of = [&](std::int64_t elements) { return as_size(elements) * bits_of(dtype) / 8; };
    if (dtype == value.dtype()) {
      if (value.numel() != 0) source_->read(rows.tensor, bytes_of(first), value.mutable_bytes());
      return;
    }
    for (std::int64_t at = 0; at < value.numel(); at += max_elements) {
      auto const count = std::min(max_elements, value.numel() - at);
      auto block = Tensor::empty({count}, dtype);
      source_->read(rows.tensor, bytes_of(first + at), block.mutable_bytes());
      auto part = value.narrow(0, at, count);
      transforms::convert(block, part);
    }
  }

  void read_to_gpu(Rows const& rows) const {
    auto on_gpu = rows.to.value;
    auto host = rows;
    host.to.value = Tensor::empty(on_gpu.shape(), on_gpu.dtype());
    read(host);
    on_gpu.copy_from(host.to.value);
  }

  std::shared_ptr<ShardSource const> source_;
  std::map<std::string, std::size_t, std::less<>> places_{};
  std::vector<Rows> wanted_{};
};

/// A checkpoint that is opened and compared with the model.
class Loading {
 public:
  Loading(TrainableModel& model, fs::path const& from, Optimizer* optimizer)
      : optimizer_(optimizer), from_(from), is_dcp_(checkpoint::find_dcp(from) == checkpoint::DcpFlavour::torch) {
    transforms::require_optimizer_of(model, optimizer, load_operation);
    auto const shards = model.sharded_state_dict();
    open_model(shards);  // throws if the directory has only a part of its checkpoint
    saved_ = checkpoint::read_json_object(from / transforms::training_state_name, transforms::training_state_limits)
                 .value_or(Json::object());
    if (optimizer_ != nullptr) open_optimizer(shards);
  }

  void read() {
    for (auto const& reader : readers_) reader.read();
    if (optimizer_ == nullptr) return;
    auto const steps = steps_.value_or(counted_steps());
    optimizer_->load_state(std::move(state_), steps);
  }

  [[nodiscard]] Json training_state() const {
    auto const found = saved_.find("training_state");
    return found == saved_.end() ? Json(nullptr) : *found;
  }

 private:
  void open_model(std::vector<TensorShard> const& shards) {
    auto const set = checkpoint::open_shard_set(from_);
    if (set.sources.size() != 1) {
      refuse("the checkpoint consists of the shards of several ranks", "one model",
             std::to_string(set.sources.size()) + " shards", from_.string(), "merge it with crossrank consolidate");
    }
    auto& reader = readers_.emplace_back(set.sources.front());
    for (auto const& shard : shards) reader.want(shard);
    reader.require_all_wanted("model");
  }

  void open_optimizer(std::vector<TensorShard> const& shards) {
    std::vector<fs::path> files;
    // A distributed checkpoint that torch saved has no file of ours, and its steps are a tensor.
    if (!is_dcp_ || !saved_.empty()) files = read_optimizer_facts();
    auto& reader = readers_.emplace_back(open_state(files));
    for (auto const& kinds : transforms::optimizer_tensors(*optimizer_, shards)) {
      auto const is_saved = [&](auto const& tensor) { return reader.has(tensor.shard.name); };
      // A parameter that never had a gradient has no state of any kind.
      if (std::none_of(kinds.begin(), kinds.end(), is_saved)) continue;
      for (auto const& tensor : kinds) {
        reader.want(tensor.shard);
        state_.insert(tensor.key, tensor.shard.value);
      }
    }
    reader.require_all_wanted("optimizer");
  }

  /// Takes name and steps of the optimizer from the file beside the tensors. Returns the files with its tensors.
  std::vector<fs::path> read_optimizer_facts() {
    std::vector<fs::path> files;
    try {
      auto const& saved = saved_.at("optimizer");
      auto const name = saved.at("name").get<std::string>();
      if (name != optimizer_->name())
        refuse("the checkpoint has the state of another optimizer", std::string(optimizer_->name()), name,
               from_.string());
      steps_ = saved.at("steps").get<std::int64_t>();
      for (auto const& file : saved.at("files")) files.push_back(from_ / fs::path(file.get<std::string>()).filename());
    } catch (Json::exception const&) {
      refuse("the checkpoint has no state of an optimizer", "a state of " + std::string(optimizer_->name()), "none",
             (from_ / transforms::training_state_name).string(), "load without an optimizer");
    }
    return files;
  }

  /// Returns the steps that the optimizer counts in its state; 0 if it does not.
  [[nodiscard]] std::int64_t counted_steps() const {
    double max = 0;
    for (auto const& [name, tensor] : state_) {
      if (name.ends_with(".step")) max = std::max(max, tensor.item<double>());
    }
    return static_cast<std::int64_t>(max);
  }

  /// Returns the tensors of the optimizer, under the names of `transforms::optimizer_tensors`.
  [[nodiscard]] RowReader open_state(std::vector<fs::path> const& files) const {
    if (is_dcp_) {
      return RowReader(checkpoint::open_dcp(from_, {.model_key = "."}), transforms::dcp_state_prefix,
                       transforms::optimizer_prefix);
    }
    return RowReader(std::make_shared<checkpoint::SafetensorsSource>(from_.string(), files,
                                                                     std::make_shared<checkpoint::FilePool>()));
  }

  Optimizer* optimizer_;
  fs::path const& from_;
  bool is_dcp_;
  Json saved_{};
  std::vector<RowReader> readers_{};
  StateDict state_{};
  std::optional<std::int64_t> steps_{};
};

}  // namespace

bool has_checkpoint(Collective const& group, fs::path const& path) {
  bool found = false;
  checkpoint::agree(group, "has_checkpoint", [&] {
    if (group.rank() != 0) return;
    checkpoint::complete_interrupted_commits(path);
    if (!checkpoint::has_directory(path)) return;
    auto const listing = checkpoint::list_directory(path);
    checkpoint::require_no_interrupted_commit(listing);
    found = listing.has(transforms::training_state_name);
    if (std::ranges::binary_search(listing.unreachable, transforms::training_state_name))
      checkpoint::refuse_unreachable(path / transforms::training_state_name);
  });
  return group.all_reduce_value(found ? 1 : 0, ReduceOp::max) != 0;
}

Json load_checkpoint(Collective const& group, TrainableModel& model, fs::path const& from,
                     LoadCheckpointOptions const& options) {
  checkpoint::agree(group, load_operation, [&] {
    if (group.rank() == 0) checkpoint::complete_interrupted_commits(from);
  });
  std::unique_ptr<Loading> loading;
  checkpoint::agree(group, load_operation,
                    [&] { loading = std::make_unique<Loading>(model, from, options.optimizer); });
  checkpoint::agree(group, load_operation, [&] { loading->read(); });
  return loading->training_state();
}

}  // namespace crossrank
