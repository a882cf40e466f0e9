#include "workspace/checkpoint/source/torch/deepspeed_source.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/checked_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/duplicate_files.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/torch/segmented_source.hpp"

namespace crossrank::checkpoint {
namespace {

using codec::PickleKind;
using codec::PickleValue;
using codec::TorchArchive;
using codec::TorchTensor;
using Archive = std::shared_ptr<TorchArchive const>;

constexpr std::uint64_t element_bytes = 4;  // in bytes; flat groups are F32

/// One rank's flat group.
struct Flat {
  Archive archive{};
  TorchTensor const* tensor = nullptr;
  [[nodiscard]] std::uint64_t numel() const noexcept { return tensor->nbytes / element_bytes; }
};

/// A parameter and its shape, from the list in the model states.
struct Parameter {
  std::string name{};
  std::vector<std::int64_t> lengths{};
  std::uint64_t numel = 0;
};

class Assembly {
 public:
  Assembly(DeepSpeedFiles const& files, TorchSourceOptions const& options) {
    auto const pool = options.pool ? options.pool : std::make_shared<FilePool>();
    codec::TorchReadOptions const read{
        .crc = options.crc, .allowlist = codec::training_allowlist(), .extra_globals = options.extra_globals};
    for (auto const& path : files.model_states) models_.push_back(TorchArchive::open(pool->open(path), read));
    for (auto const& path : files.optim_states) optimizers_.push_back(TorchArchive::open(pool->open(path), read));
    name_ = files.model_states.front().string();
    for (auto const& archive : models_) bytes_ += archive->bytes_on_disk();
    for (auto const& archive : optimizers_) bytes_ += archive->bytes_on_disk();
  }

  std::shared_ptr<ShardSource const> assemble() {
    read_stage();
    require_no_copies();
    auto const groups = read_parameters();
    if (stage_ == 3) {
      assemble_stage_3(groups);
    } else {
      assemble_stage_2(groups);
    }
    add_frozen();
    add_buffers();
    add_shared();
    auto attributes = Json{{"zero_stage", stage_}, {"world_size", optimizers_.size()}};
    if (auto const args = models_.front()->root().find("args"))
      attributes["args"] = codec::split_contents(*models_.front(), *args).values;
    return std::make_shared<SegmentedSource>(name_, std::move(tensors_), std::move(attributes), bytes_);
  }

 private:
  [[nodiscard]] static PickleValue field(TorchArchive const& archive, PickleValue value, char const* key) {
    auto const found = value.find(key);
    if (!found) archive.refuse(value, std::string("the key \"") + key + "\" is missing");
    return *found;
  }
  [[nodiscard]] static std::optional<std::int64_t> integer_of(PickleValue value) {
    if (value.is(PickleKind::integer)) return value.integer();
    // An enumeration is pickled as a call with its number.
    if (value.is(PickleKind::call) && value[1].size() == 1 && value[1][0].is(PickleKind::integer))
      return value[1][0].integer();
    return std::nullopt;
  }
  [[nodiscard]] static std::optional<std::int64_t> stage_of(PickleValue value) {
    // Python 3.11.0 to 3.11.3 pickle an enumeration as the look-up of its name.
    if (value.is(PickleKind::call) && value[1].size() == 2 && value[1][1].is(PickleKind::text)) {
      constexpr std::string_view names[] = {"disabled", "optimizer_states", "gradients", "weights"};
      auto const* const found = std::ranges::find(names, value[1][1].text());
      if (found == std::end(names)) return std::nullopt;
      return found - std::begin(names);
    }
    return integer_of(value);
  }

  void read_stage() {
    auto const& archive = *optimizers_.front();
    auto const state = field(archive, archive.root(), "optimizer_state_dict");
    auto const stage = stage_of(field(archive, state, "zero_stage"));
    if (!stage || *stage < 1 || *stage > 3) archive.refuse(state, "the ZeRO stage is not 1, 2 or 3");
    stage_ = static_cast<int>(*stage);
    auto count = state.find("partition_count");
    if (count && (count->is(PickleKind::list) || count->is(PickleKind::tuple)) && count->size() > 0)
      count = (*count)[0];
    auto const world = count ? integer_of(*count) : std::nullopt;
    if (world && *world != static_cast<std::int64_t>(optimizers_.size())) {
      throw FormatError({.operation = open_operation,
                         .message = "the number of optimizer state files does not match the data-parallel size",
                         .expected = std::to_string(*world) + " files",
                         .got = std::to_string(optimizers_.size()),
                         .resource = archive.name(),
                         .hint = "copy all files of the save into one directory",
                         .section = to_string(ErrorSection::files)});
    }
  }

  [[nodiscard]] static Parameter parameter(TorchArchive const& archive, PickleValue key, PickleValue size) {
    if (!key.is(PickleKind::text) || !(size.is(PickleKind::tuple) || size.is(PickleKind::list)) ||
        size.size() > Shape::max_rank)
      archive.refuse(size, "expected the name and the shape of a parameter");
    Parameter out{.name = std::string(key.text())};
    for (std::size_t i = 0; i < size.size(); ++i) {
      if (!size[i].is(PickleKind::integer) || size[i].integer() < 0) archive.refuse(size, "expected a shape");
      out.lengths.push_back(size[i].integer());
    }
    if (codec::checked_byte_size(out.lengths, 8, out.numel) != codec::SizeStatus::fits || out.numel >> 58U != 0)
      archive.refuse(size, "a parameter is larger than the address space");
    return out;
  }
  [[nodiscard]] static std::vector<Parameter> parameters(TorchArchive const& archive, PickleValue shapes) {
    std::vector<Parameter> out;
    if (!shapes.is(PickleKind::dict)) archive.refuse(shapes, "the shapes of the parameters are not a dict");
    for (std::size_t i = 0; i < shapes.size(); i += 2) out.push_back(parameter(archive, shapes[i], shapes[i + 1]));
    return out;
  }
  [[nodiscard]] std::vector<std::vector<Parameter>> read_parameters() const {
    auto const& archive = *models_.front();
    auto const shapes = field(archive, archive.root(), "param_shapes");
    if (!shapes.is(PickleKind::list)) return {parameters(archive, shapes)};
    std::vector<std::vector<Parameter>> groups;
    for (std::size_t i = 0; i < shapes.size(); ++i) groups.push_back(parameters(archive, shapes[i]));
    return groups;
  }

  /// Returns the flat groups of one rank.
  [[nodiscard]] std::vector<Flat> flats(std::size_t rank) const {
    auto const& archive = optimizers_[rank];
    auto const state = field(*archive, archive->root(), "optimizer_state_dict");
    auto const list = field(*archive, state, stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    if (!list.is(PickleKind::list)) archive->refuse(list, "the flat groups are not a list");
    std::vector<Flat> out;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Flat const flat{archive, archive->tensor(list[i])};
      if (flat.tensor == nullptr || !flat.tensor->unsupported.empty() || flat.tensor->dtype != Dtype::f32)
        archive->refuse(list[i], "a flat group is not a tensor of 32-bit floats");
      out.push_back(flat);
    }
    return out;
  }

  /// Throws `FormatError` if two ranks have the same slices of the flat groups.
  void require_no_copies() const {
    std::vector<FileSample> samples;
    for (std::size_t rank = 0; rank < optimizers_.size(); ++rank) {
      auto const groups = flats(rank);
      for (std::size_t group = 0; group < groups.size(); ++group) {
        auto const flat = groups[group];
        auto const beginning = [flat] {
          std::vector<std::byte> bytes(std::min(duplicate_sample_bytes, flat.tensor->nbytes));
          flat.archive->read(*flat.tensor, 0, bytes);
          return bytes;
        };
        samples.push_back({.file = flat.archive->name(),
                           .tensor = "flat group " + std::to_string(group),
                           .bytes = flat.tensor->nbytes,
                           .crc = flat.archive->recorded_crc(flat.tensor->storage),
                           .beginning = beginning});
      }
    }
    require_no_duplicate_files(samples, name_);
  }

  void add(std::string name, Dtype dtype, Shape const& shape, std::vector<Segment> segments) {
    if (!names_.emplace(name, tensors_.size()).second) {
      throw FormatError({.operation = open_operation,
                         .message = "two parameters have the name \"" + name + "\"",
                         .resource = name_,
                         .section = "param_shapes"});
    }
    tensors_.push_back({{std::move(name), dtype, shape}, std::move(segments)});
  }

  [[noreturn]] void refuse_sizes(std::uint64_t wanted, std::uint64_t found) const {
    throw FormatError({.operation = open_operation,
                       .message = "the parameters and the flat groups differ in size",
                       .expected = std::to_string(wanted) + " elements",
                       .got = std::to_string(found),
                       .resource = name_,
                       .hint = "the directory may hold a file of another save",
                       .section = "param_shapes"});
  }

  /// Appends the segments of elements `[first, first + count)` of concatenated flat groups to `out`.
  static void append_segments(std::vector<Flat> const& flats, std::uint64_t first, std::uint64_t count,
                              std::vector<Segment>& out) {
    for (auto const& flat : flats) {
      if (count == 0) return;
      if (first >= flat.numel()) {
        first -= flat.numel();
        continue;
      }
      auto const taken = std::min(count, flat.numel() - first);
      out.push_back({flat.archive, flat.tensor, first * element_bytes, taken * element_bytes});
      count -= taken;
      first = 0;
    }
  }
  static std::uint64_t total(std::vector<Flat> const& flats) {
    std::uint64_t count = 0;
    for (auto const& flat : flats) count += flat.numel();
    return count;
  }

  /// Assembles stages 1 and 2: a flat group is the concatenation of its parameters, and each rank holds one slice of
  /// it.
  void assemble_stage_2(std::vector<std::vector<Parameter>> const& groups) {
    std::vector<std::vector<Flat>> by_rank;
    for (std::size_t rank = 0; rank < optimizers_.size(); ++rank) by_rank.push_back(flats(rank));
    // The group is padded so that all slices have the same size.
    auto const padding = 2 * static_cast<std::uint64_t>(optimizers_.size());
    for (std::size_t group = 0; group < groups.size(); ++group) {
      std::vector<Flat> whole;
      for (auto const& rank : by_rank) {
        if (rank.size() != groups.size()) refuse_sizes(groups.size(), rank.size());
        whole.push_back(rank[group]);
      }
      auto const available = total(whole);
      std::uint64_t at = 0;
      for (auto const& parameter : groups[group]) {
        if (parameter.numel > available - at) refuse_sizes(at + parameter.numel, available);
        std::vector<Segment> segments;
        append_segments(whole, at, parameter.numel, segments);
        add(parameter.name, Dtype::f32, Shape(parameter.lengths), std::move(segments));
        at += parameter.numel;
      }
      if ((at + padding - 1) / padding != (available + padding - 1) / padding) refuse_sizes(at, available);
    }
  }

  /// Assembles stage 3: each parameter is split over all ranks.
  void assemble_stage_3(std::vector<std::vector<Parameter>> const& groups) {
    std::vector<std::vector<Flat>> by_rank;
    for (std::size_t rank = 0; rank < optimizers_.size(); ++rank) by_rank.push_back(flats(rank));
    auto const world = static_cast<std::uint64_t>(by_rank.size());
    auto const available = total(by_rank.front());
    for (auto const& rank : by_rank) {
      if (total(rank) != available) refuse_sizes(available, total(rank));
    }
    std::uint64_t at = 0;
    for (auto const& group : groups) {
      for (auto const& parameter : group) {
        auto const part = (parameter.numel + world - 1) / world;
        if (part > available - at) refuse_sizes(at + part, available);
        std::vector<Segment> segments;
        auto left = parameter.numel;
        for (auto const& rank : by_rank) {
          append_segments(rank, at, std::min(part, left), segments);
          left -= std::min(part, left);
        }
        add(parameter.name, Dtype::f32, Shape(parameter.lengths), std::move(segments));
        at += part;
      }
    }
    if (at != available) refuse_sizes(at, available);
  }

  [[nodiscard]] static TorchTensor const* readable(Archive const& archive, PickleValue value) {
    auto const* const tensor = archive->tensor(value);
    if (tensor == nullptr || !tensor->unsupported.empty()) archive->refuse(value, "expected a tensor");
    return tensor;
  }

  /// Adds parameters that were not trained. They are whole in stages 1 and 2 and split over the ranks in stage 3.
  void add_frozen() {
    auto const& first = *models_.front();
    auto const shapes = first.root().find("frozen_param_shapes");
    if (!shapes || !shapes->is(PickleKind::dict)) return;
    for (auto const& parameter : parameters(first, *shapes)) {
      std::vector<Segment> segments;
      std::optional<Dtype> dtype;
      auto left = parameter.numel;
      for (auto const& archive : models_) {
        auto const fragments = field(*archive, archive->root(), "frozen_param_fragments");
        auto const* const tensor = readable(archive, field(*archive, fragments, parameter.name.c_str()));
        auto const size = bits_of(tensor->dtype) / 8;
        if (size == 0 || (dtype && *dtype != tensor->dtype))
          archive->refuse(fragments, "fragments have different dtypes");
        dtype = tensor->dtype;
        auto const count = std::min<std::uint64_t>(left, tensor->nbytes / size);
        if (count > 0) segments.push_back({archive, tensor, 0, count * size});
        left -= count;
        if (stage_ != 3) break;
      }
      if (left != 0 || !dtype) refuse_sizes(parameter.numel, parameter.numel - left);
      add(parameter.name, *dtype, Shape(parameter.lengths), std::move(segments));
    }
  }

  void add_buffers() {
    auto const& archive = models_.front();
    auto const names = archive->root().find("buffer_names");
    auto const module = archive->root().find("module");
    if (!names || !module || !names->is(PickleKind::list)) return;
    for (std::size_t i = 0; i < names->size(); ++i) {
      auto const name = std::string((*names)[i].text());
      auto const value = module->find(name);
      if (!value) continue;  // a buffer that the module does not save
      auto const* const tensor = readable(archive, *value);
      std::vector<Segment> segments;
      if (tensor->nbytes > 0) segments.push_back({archive, tensor, 0, tensor->nbytes});
      add(name, tensor->dtype, tensor->shape, std::move(segments));
    }
  }

  /// Adds tied parameters, which are a dict or a list of pairs: the name and the name that holds the data.
  void add_shared() {
    auto const& archive = *models_.front();
    auto const shared = archive.root().find("shared_params");
    if (!shared) return;
    std::vector<std::pair<PickleValue, PickleValue>> pairs;
    if (shared->is(PickleKind::dict)) {
      for (std::size_t i = 0; i < shared->size(); i += 2) pairs.emplace_back((*shared)[i], (*shared)[i + 1]);
    } else {
      for (std::size_t i = 0; i < shared->size(); ++i) {
        if ((*shared)[i].size() != 2) archive.refuse((*shared)[i], "expected a pair of tied parameters");
        pairs.emplace_back((*shared)[i][0], (*shared)[i][1]);
      }
    }
    for (auto const& [name, saved] : pairs) {
      auto const found = names_.find(std::string(saved.text()));
      if (found == names_.end() || names_.contains(std::string(name.text()))) continue;
      auto const copy = tensors_[found->second];
      add(std::string(name.text()), copy.tensor.dtype, copy.tensor.shape, copy.segments);
    }
  }

  std::string name_{};
  std::vector<Archive> models_{};
  std::vector<Archive> optimizers_{};
  std::uint64_t bytes_ = 0;
  int stage_ = 0;
  std::vector<SegmentedTensor> tensors_{};
  std::map<std::string, std::size_t> names_{};
};

}  // namespace

std::shared_ptr<ShardSource const> open_deepspeed(DeepSpeedFiles const& files, TorchSourceOptions const& options) {
  if (files.model_states.empty() || files.optim_states.empty()) {
    throw UsageError({.operation = open_operation, .message = "there are no files of model or optimizer states"});
  }
  return Assembly(files, options).assemble();
}

}  // namespace crossrank::checkpoint
