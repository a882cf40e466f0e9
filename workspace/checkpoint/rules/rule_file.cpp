#include "workspace/checkpoint/rules/rule_file.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include <fcntl.h>

#include <crossrank/error.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/json/json_document.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/platform/files/fd.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 20;
constexpr std::size_t max_depth = 8;
constexpr std::size_t max_rules = 10'000;
constexpr std::size_t max_fused_parts = 64;
constexpr std::int64_t largest_number = std::int64_t{1} << 40;
constexpr std::int64_t max_replicas = std::int64_t{1} << 20;
constexpr auto max_axis = static_cast<std::int64_t>(Shape::max_rank) - 1;

[[noreturn]] void refuse(std::string const& source, std::string const& where, std::string const& problem,
                         std::uint64_t offset = 0) {
  throw FormatError({.operation = "rule file",
                     .message = where + ": " + problem,
                     .resource = source,
                     .hint = "see RULES.md for what a rule may say",
                     .section = to_string(ErrorSection::rules),
                     .offset = offset});
}

/// Parses the text as JSON without duplicate keys and of bounded depth.
Json parse_strictly(std::string_view text, std::string const& source) {
  if (text.size() > max_file_bytes) refuse(source, "the file", "more than 1 MiB");
  if (auto const bad = codec::find_bad_utf8(text); bad != std::string_view::npos) {
    refuse(source, "the file", "malformed UTF-8", bad);
  }
  return codec::parse_json(text, {.limits = {.bytes = max_file_bytes, .values = max_file_bytes, .depth = max_depth},
                                  .repeated_key = codec::RepeatedKey::refuse,
                                  .about = {.operation = "rule file",
                                            .resource = source,
                                            .hint = "see RULES.md for what a rule may say",
                                            .section = to_string(ErrorSection::rules)}});
}

/// The numbers that a key may have.
struct NumberLimits {
  std::int64_t least = 0;
  std::int64_t most = largest_number;
};

/// Reads one rule. A key that no member function asks for is an error.
class RuleReader {
 public:
  RuleReader(Json const& rule, std::size_t number, std::string const& source)
      : rule_(rule), source_(source), where_("rule " + std::to_string(number)) {
    if (!rule.is_object()) fail("not an object");
  }

  LayerRule read() {
    LayerRule result;
    result.from_file = true;
    bool const by_layer = has("layer");
    if (by_layer == has("tensor")) fail("a rule has either \"layer\" or \"tensor\"");
    result.whole_name = !by_layer;
    result.pattern = pattern(by_layer ? "layer" : "tensor");
    result.kind = by_layer ? kind_of_layer() : kind_of_tensor();
    if (rule_.contains("rename") && rule_.at("rename").is_array()) {
      result.part_names = part_names(result.kind);
    } else {
      result.rename = string("rename");
    }
    result.models = models();
    for (auto const& [key, value] : rule_.items()) {
      if (!asked_.contains(key)) fail("unknown key \"" + codec::printable(key) + "\"");
    }
    return result;
  }

 private:
  [[noreturn]] void fail(std::string const& problem) const { refuse(source_, where_, problem); }

  bool has(std::string const& key) const { return rule_.contains(key); }

  Json const* ask(std::string const& key) {
    asked_.insert(key);
    auto const found = rule_.find(key);
    return found == rule_.end() ? nullptr : &*found;
  }

  std::string string(std::string const& key) {
    auto const* value = ask(key);
    if (value == nullptr) return {};
    if (!value->is_string() || value->get_ref<std::string const&>().empty())
      fail("\"" + key + "\" must be a non-empty string");
    return value->get<std::string>();
  }

  std::int64_t number(Json const& value, std::string const& key, NumberLimits limits) const {
    bool const fits =
        value.is_number_integer() &&
        !(value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(limits.most));
    if (!fits || value.get<std::int64_t>() < limits.least || value.get<std::int64_t>() > limits.most) {
      fail("\"" + key + "\" must be a whole number from " + std::to_string(limits.least) + " to " +
           std::to_string(limits.most));
    }
    return value.get<std::int64_t>();
  }

  std::int64_t number(std::string const& key, NumberLimits limits, std::int64_t otherwise) {
    auto const* value = ask(key);
    return value == nullptr ? otherwise : number(*value, key, limits);
  }

  bool flag(std::string const& key) {
    auto const* value = ask(key);
    if (value != nullptr && !value->is_boolean()) fail("\"" + key + "\" must be true or false");
    return value != nullptr && value->get<bool>();
  }

  NamePattern pattern(std::string const& key) {
    try {
      return NamePattern(string(key));
    } catch (FormatError const& error) {
      fail("\"" + key + "\": " + error.info().message);
    }
  }

  RuleSize size(Json const& value, std::string const& key) const {
    if (!value.is_string()) return number(value, key, {.least = 1});
    auto const name = parse_size_name(value.get_ref<std::string const&>());
    if (!name) fail("\"" + key + "\": unknown size \"" + codec::printable(value.get<std::string>()) + "\"");
    return *name;
  }

  std::vector<RuleSize> parts() {
    std::vector<RuleSize> result;
    auto const* parts = ask("parts");
    if (parts == nullptr) return result;
    if (!parts->is_array() || parts->empty() || parts->size() > max_fused_parts)
      fail("\"parts\" must be a list of 1 to 64 widths");
    for (auto const& part : *parts) result.push_back(size(part, "parts"));
    auto const names = std::count_if(parts->begin(), parts->end(), [](Json const& part) { return part.is_string(); });
    if (names != 0 && std::cmp_not_equal(names, parts->size())) fail("\"parts\" mixes numbers and names of sizes");
    return result;
  }

  /// Reads the names of the layers that the parts of a fused layer become.
  std::vector<std::string> part_names(RuleKind const& kind) {
    auto const& names = *ask("rename");
    auto const* const layer = std::get_if<ColumnLayer>(&kind);
    if (layer == nullptr || layer->parts.size() < 2 || names.size() != layer->parts.size())
      fail("\"rename\" is a list only for a fused column layer, with a name for each of its \"parts\"");
    if (layer->order.stacked || layer->order.transposed || layer->layout == PartLayout::plain)
      fail("parts that are stacked, transposed or sharded as one block do not become layers");
    std::vector<std::string> result;
    for (auto const& name : names) {
      if (!name.is_string() || name.get_ref<std::string const&>().empty()) fail("\"rename\" must be a list of names");
      auto const& text = name.get_ref<std::string const&>();
      if (std::find(result.begin(), result.end(), text) != result.end())
        fail("\"rename\" has the name \"" + codec::printable(text) + "\" twice");
      result.push_back(text);
    }
    return result;
  }

  std::vector<std::int64_t> parts_of_tensor() {
    std::vector<std::int64_t> widths;
    for (auto const& part : parts()) {
      auto const* const width = std::get_if<std::int64_t>(&part);
      if (width == nullptr) fail("\"parts\" of a tensor are numbers");
      widths.push_back(*width);
    }
    return widths;
  }

  int replicas() { return static_cast<int>(number("replicas", {.least = 1, .most = max_replicas}, 1)); }

  PartLayout layout() {
    auto const layout = string("layout");
    if (layout.empty() || layout == "per_rank") return PartLayout::per_rank;
    if (layout == "grouped") return PartLayout::grouped;
    if (layout == "plain") return PartLayout::plain;
    fail("\"layout\" must be per_rank, plain or grouped");
  }

  LayerOrder order() {
    bool const stacked = flag("stacked");
    return {.stacked = stacked, .transposed = flag("transposed")};
  }

  ReduceOp op() {
    auto const op = string("op");
    if (op.empty() || op == "max") return ReduceOp::max;
    if (op == "min") return ReduceOp::min;
    if (op == "avg") return ReduceOp::avg;
    fail("\"op\" must be max, min or avg");
  }

  ColumnLayer column() {
    ColumnLayer layer{.parts = parts()};
    layer.layout = layout();
    layer.replicas = replicas();
    layer.order = order();
    return layer;
  }

  RowLayer row() {
    RowLayer layer;
    if (auto const* inputs = ask("inputs")) layer.inputs = size(*inputs, "inputs");
    layer.order = order();
    return layer;
  }

  VocabularyLayer vocabulary() {
    if (!has("true_size")) return {};
    return {.tokens = number("true_size", {.least = 1}, 1)};
  }

  /// Reads the members of a rule with this "sharding".
  RuleKind kind_of(std::string const& sharding) {
    if (sharding == "replicate") return Replicated{};
    if (sharding == "column") return column();
    if (sharding == "row") return row();
    if (sharding == "vocabulary") return vocabulary();
    if (sharding == "reduce") return ReducedValue{.op = op()};
    if (sharding == "drop") return Dropped{.tied_to = string("tied_to")};
    fail(sharding.empty() ? "\"sharding\" is missing" : "unknown \"sharding\": \"" + codec::printable(sharding) + "\"");
  }

  RuleKind kind_of_layer() { return kind_of(string("sharding")); }

  RuleKind kind_of_tensor() {
    auto const* axis = ask("axis");
    if (axis == nullptr) {
      auto const sharding = string("sharding");
      if (sharding == "column" || sharding == "row" || sharding == "vocabulary")
        fail("the sharding of a tensor is replicate, reduce or drop; else name its \"axis\"");
      return kind_of(sharding);
    }
    if (has("sharding")) fail("a tensor has either \"axis\" or \"sharding\"");
    ShardedTensor tensor{.axis = static_cast<int>(number(*axis, "axis", {.most = max_axis}))};
    tensor.parts = parts_of_tensor();
    tensor.replicas = replicas();
    tensor.true_size = number("true_size", {}, -1);
    tensor.add_per_rank = number("add_per_rank", {}, 0);
    return tensor;
  }

  std::vector<std::string> models() {
    std::vector<std::string> result;
    auto const* models = ask("models");
    if (models == nullptr) return result;
    if (!models->is_array() || models->empty()) fail("\"models\" must be a list of model types");
    for (auto const& model : *models) {
      if (!model.is_string()) fail("\"models\" must be a list of model types");
      result.push_back(model.get<std::string>());
    }
    return result;
  }

  Json const& rule_;
  std::string const& source_;
  std::string where_;
  std::set<std::string> asked_{};
};

Json read_sizes(Json const& sizes, std::string const& source) {
  if (!sizes.is_object()) refuse(source, "\"sizes\"", "not an object");
  for (auto const& [key, value] : sizes.items()) {
    auto const name = "\"" + codec::printable(key) + "\"";
    bool const usable = value.is_boolean() || value.is_string() || value.is_number_integer();
    if (!usable) refuse(source, "\"sizes\"", name + " must be a whole number, string or boolean");
    if (value.is_number_integer() && value < 0) refuse(source, "\"sizes\"", name + " is negative");
    if (is_quoted_number(value)) refuse(source, "\"sizes\"", name + " is a number in quotes");
  }
  return sizes;
}

}  // namespace

RuleFile RuleFile::parse(std::string_view text, std::string const& source) {
  auto const json = parse_strictly(text, source);
  if (!json.is_object()) refuse(source, "the file", "not an object");
  RuleFile file;
  for (auto const& [key, value] : json.items()) {
    if (key == "sizes") {
      file.sizes = read_sizes(value, source);
    } else if (key == "rules") {
      if (!value.is_array() || value.size() > max_rules)
        refuse(source, "\"rules\"", "not a list of at most 10000 rules");
      for (std::size_t i = 0; i < value.size(); ++i) file.rules.push_back(RuleReader(value[i], i, source).read());
    } else if (key == "otherwise") {
      if (value != "replicate") refuse(source, "\"otherwise\"", "must be \"replicate\"");
      file.otherwise = LayerRule{.pattern = NamePattern("**"), .from_file = true};
    } else if (key != "comment") {
      refuse(source, "the file", "unknown key \"" + codec::printable(key) + "\"");
    }
  }
  file.text = text;
  return file;
}

RuleFile RuleFile::read(std::filesystem::path const& path) {
  auto& system = platform::system();
  // O_NONBLOCK: a pipe must not block the open; its type is refused later.
  platform::Fd const fd(system.openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
  if (fd.get() < 0) platform::throw_io("rule file", path.string(), errno, "check the path given with `rules`");
  codec::FileSource const source(path.string(), fd.get());
  if (source.size() > max_file_bytes) refuse(path.string(), "the file", "more than 1 MiB");
  std::string text(source.size(), '\0');
  source.read_at(0, std::as_writable_bytes(std::span(text)));
  return parse(text, path.string());
}

std::string fill_numbers(std::string_view target, std::string_view name) {
  std::vector<std::string_view> numbers;
  for (auto const part : split_name(name)) {
    if (is_number(part)) numbers.push_back(part);
  }
  std::string result;
  std::size_t next = 0;
  for (char const c : target) {
    if (c != '*') {
      result += c;
    } else if (next < numbers.size()) {
      result += numbers[next++];
    } else {
      throw FormatError({.operation = "rule file",
                         .message = "\"rename\" has more * than the name has numbers: \"" + codec::printable(target) +
                                    "\" for \"" + codec::printable(name) + "\"",
                         .expected = std::to_string(std::count(target.begin(), target.end(), '*')) + " numbers",
                         .got = std::to_string(numbers.size()),
                         .hint = "each * of a rename stands for a number in the name, from left to right",
                         .section = to_string(ErrorSection::rules)});
    }
  }
  return result;
}

}  // namespace crossrank::checkpoint
