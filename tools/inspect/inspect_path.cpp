#include "tools/inspect/inspect_path.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "tools/cli/option_flags.hpp"
#include "tools/cli/session.hpp"
#include "tools/cli/size_text.hpp"
#include "workspace/checkpoint/discovery/inventory.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/model_key.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::tools {
namespace {

using checkpoint::ShardSet;
using checkpoint::ShardSource;

constexpr std::size_t max_listed = 200;
constexpr std::size_t longest_value = 120;

/// The content to show: a complete checkpoint, or the files that could be read.
struct View {
  std::optional<ShardSet> set{};
  std::vector<std::shared_ptr<ShardSource const>> sources{};
  std::vector<checkpoint::Defect> defects{};
  std::string problem{};  ///< why it is not a complete checkpoint
};

/// Opens the whole folder when it is not clear which files belong to the model.
ShardSet open_set(InspectPathOptions const& options) {
  try {
    return checkpoint::open_shard_set(options.path, {.extra_globals = options.extra_globals});
  } catch (FormatError const& error) {
    if (checkpoint::section_of(error) != checkpoint::ErrorSection::keys) throw;
    return checkpoint::open_shard_set(options.path, {.model_key = ".", .extra_globals = options.extra_globals});
  }
}

View open_view(InspectPathOptions const& options) {
  View view;
  try {
    view.set = open_set(options);
    view.sources = view.set->sources;
    return view;
  } catch (FormatError const& error) {
    view.problem = message_for_user(error);
  } catch (UsageError const& error) {
    view.problem = message_for_user(error);
  }
  auto inventory = checkpoint::take_inventory(options.path, {.extra_globals = options.extra_globals, .model_key = "."});
  view.defects = std::move(inventory.defects);
  for (auto& file : inventory.files) {
    if (file.source) view.sources.push_back(std::move(file.source));
  }
  return view;
}

/// Returns the name of the number format in the config.
std::string quantization_text(Json const& quantization) {
  if (!quantization.is_object() || quantization.empty()) return {};
  auto const inner = quantization.find("quantization");
  auto const& object = inner != quantization.end() && inner->is_object() ? *inner : quantization;
  std::string text;
  for (auto const* key : {"quant_algo", "quant_method", "format", "kv_cache_quant_algo", "group_size", "bits"}) {
    auto const found = object.find(key);
    if (found == object.end() || found->is_null() || found->is_structured()) continue;
    text += (text.empty() ? "" : ", ") + std::string(key) + " " +
            (found->is_string() ? found->get<std::string>() : found->dump());
  }
  return text.empty() ? "present, in an unknown format" : text;
}

std::string value_text(Json const& value) {
  auto text = value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  auto const bytes = text.size();
  text = terminal_text(std::string_view(text).substr(0, longest_value));
  return bytes > longest_value ? text + "... (" + size_text(bytes) + ")" : text;
}

struct Total {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
};

std::map<std::string, Total> by_dtype(View const& view) {
  std::map<std::string, Total> totals;
  for (auto const& source : view.sources) {
    for (auto const& tensor : source->tensors()) {
      auto& total = totals[std::string(name_of(tensor.dtype))];
      ++total.tensors;
      total.bytes += dense_bytes(tensor.shape, tensor.dtype);
    }
  }
  return totals;
}

void print_head(View const& view, std::filesystem::path const& path) {
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  for (auto const& source : view.sources) {
    bytes += source->bytes_on_disk();
    tensors += source->tensors().size();
  }
  std::printf("%s: %zu source%s, %zu tensors, %s on disk\n", terminal_text(path.string()).c_str(), view.sources.size(),
              view.sources.size() == 1 ? "" : "s", tensors, size_text(bytes).c_str());
  for (auto const& [dtype, total] : by_dtype(view))
    std::printf("  %-8s %6zu tensors, %s\n", dtype.c_str(), total.tensors, size_text(total.bytes).c_str());
  if (!view.set) return;
  auto const& set = *view.set;
  if (set.sources.size() > 1)
    std::printf("grid: tensor parallel %d, pipeline %d, expert parallel %d\n", set.tp, set.pp, set.ep);
  if (auto const model = set.config.find("architectures"); model != set.config.end())
    std::printf("model: %s\n", value_text(*model).c_str());
  if (auto const text = quantization_text(set.quantization); !text.empty())
    std::printf("quantization: %s\n", terminal_text(text).c_str());
}

void print_tensors(View const& view, InspectPathOptions const& options) {
  std::size_t listed = 0;
  std::size_t left = 0;
  for (auto const& source : view.sources) {
    bool const several = view.sources.size() > 1;
    if (several && (options.all || listed < max_listed))
      std::printf("%s, %s\n", terminal_text(source->name()).c_str(), size_text(source->bytes_on_disk()).c_str());
    for (auto const& [key, value] : source->attributes().items())
      std::printf("  %s: %s\n", terminal_text(key).c_str(), value_text(value).c_str());
    for (auto const& tensor : source->tensors()) {
      if (!options.match.empty() && !fits_pattern(tensor.name, options.match)) continue;
      if (!options.all && listed >= max_listed) {
        ++left;
        continue;
      }
      ++listed;
      std::printf("  %s  %s %s, %s\n", terminal_text(tensor.name).c_str(), std::string(name_of(tensor.dtype)).c_str(),
                  to_string(tensor.shape).c_str(), size_text(dense_bytes(tensor.shape, tensor.dtype)).c_str());
    }
  }
  if (left > 0) std::printf("  and %zu more; --all lists them, --match picks some\n", left);
}

Json json_of(View const& view, InspectPathOptions const& options) {
  Json sources = Json::array();
  Json tensors = Json::array();
  for (std::size_t s = 0; s < view.sources.size(); ++s) {
    auto const& source = *view.sources[s];
    Json entry{{"name", source.name()}, {"bytes", source.bytes_on_disk()}, {"attributes", source.attributes()}};
    if (view.set) {
      auto const& place = view.set->places[s];
      entry.update({{"tp", place.tp}, {"pp", place.pp}, {"ep", place.ep}});
    }
    sources.push_back(std::move(entry));
    for (auto const& tensor : source.tensors()) {
      if (!options.match.empty() && !fits_pattern(tensor.name, options.match)) continue;
      Json shape = Json::array();
      for (auto const length : tensor.shape) shape.push_back(length);
      tensors.push_back({{"name", tensor.name},
                         {"dtype", name_of(tensor.dtype)},
                         {"shape", std::move(shape)},
                         {"bytes", dense_bytes(tensor.shape, tensor.dtype)},
                         {"source", s}});
    }
  }
  Json defects = Json::array();
  for (auto const& defect : view.defects)
    defects.push_back({{"resource", defect.resource}, {"text", defect.text}, {"hint", with_flags(defect.hint)}});
  int const exit_code = view.problem.empty() ? 0 : 1;
  Json out{{"command", "inspect"},          {"ok", exit_code == 0},          {"exit_code", exit_code},
           {"path", options.path.string()}, {"sources", std::move(sources)}, {"tensors", std::move(tensors)},
           {"defects", std::move(defects)}};
  if (!view.problem.empty()) out["problem"] = view.problem;
  if (view.set) {
    out["grid"] = {{"tp", view.set->tp}, {"pp", view.set->pp}, {"ep", view.set->ep}};
    out["config"] = view.set->config;
    out["quantization"] = view.set->quantization;
  }
  return out;
}

}  // namespace

bool fits_pattern(std::string_view name, std::string_view pattern) {
  auto const star = pattern.find('*');
  if (star == std::string_view::npos) return name == pattern;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  name.remove_prefix(star);
  pattern.remove_prefix(star + 1);
  // Each part between two stars matches at its first occurrence; the last part must match at the end.
  for (auto next = pattern.find('*'); next != std::string_view::npos; next = pattern.find('*')) {
    auto const at = name.find(pattern.substr(0, next));
    if (at == std::string_view::npos) return false;
    name.remove_prefix(at + next);
    pattern.remove_prefix(next + 1);
  }
  return name.size() >= pattern.size() && name.substr(name.size() - pattern.size()) == pattern;
}

int inspect_path(InspectPathOptions const& options) {
  try {
    auto const view = open_view(options);
    if (options.json) {
      std::printf("%s\n", json_of(view, options).dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    } else {
      print_head(view, options.path);
      print_tensors(view, options);
    }
    for (auto const& defect : view.defects) {
      std::fprintf(stderr, "crossrank inspect: %s (%s)\n", terminal_text(defect.text).c_str(),
                   terminal_text(defect.resource).c_str());
      if (!defect.hint.empty()) std::fprintf(stderr, "  %s\n", with_flags(terminal_text(defect.hint)).c_str());
    }
    // Files that cannot be read have been reported above.
    if (!view.problem.empty() && view.defects.empty())
      std::fprintf(stderr, "crossrank inspect: %s\n", view.problem.c_str());
    return view.problem.empty() ? 0 : 1;
  } catch (Error const& error) {
    int const exit_code = exit_code_of(error.code());
    print_error("inspect", options.json, error, exit_code);
    return exit_code;
  }
}

}  // namespace crossrank::tools
