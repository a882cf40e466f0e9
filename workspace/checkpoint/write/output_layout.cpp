#include "workspace/checkpoint/write/output_layout.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/json/json_text.hpp"
#include "lib/codec/safetensors/header_writer.hpp"
#include "lib/codec/safetensors/tensor_name.hpp"
#include "lib/core/at_rank.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/write/checksummed_output.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::checkpoint {
namespace {

// The reference implementation pads its header to this alignment.
constexpr std::size_t header_alignment = 8;

/// Throws `UsageError` for a name that a reader of safetensors would reject.
void require_name(std::string const& name, OutputFile const& file) {
  auto const error = codec::find_name_error(name);
  if (!error) return;
  throw UsageError({.operation = write_operation,
                    .message = "a tensor \"" + codec::printable(name.substr(0, 80)) +
                               "\" cannot be written as safetensors: " + *error,
                    .resource = file.name,
                    .hint = "give it another name with \"rename\" in `rules`, or write torch archives"});
}

/// Orders tensors by element size, widest first, and then by name, like the reference implementation. Every tensor is
/// then aligned to its element.
void arrange_safetensors(OutputFile& file, FileMetadata const& metadata = {}) {
  auto const tensors = file.source->tensors();
  std::sort(file.tensors.begin(), file.tensors.end(), [&](auto const& a, auto const& b) {
    auto const& left = tensors[a.tensor];
    auto const& right = tensors[b.tensor];
    return std::tie(right.dtype, left.name) < std::tie(left.dtype, right.name);
  });
  codec::HeaderWriter writer;
  writer.add_metadata("format", "pt");
  for (auto const& [key, value] : metadata) writer.add_metadata(key, value);
  std::uint64_t cursor = 0;
  for (auto& placed : file.tensors) {
    auto const& tensor = tensors[placed.tensor];
    require_name(tensor.name, file);
    placed.begin = cursor;
    cursor += placed.bytes;
    writer.add_tensor(tensor.name, tensor.dtype, tensor.shape, placed.begin, cursor);
  }
  auto header = std::move(writer).finish(header_alignment);
  for (auto& placed : file.tensors) placed.begin += header.size();
  file.bytes = header.size() + cursor;
  file.texts.push_back({0, std::move(header)});
}

void arrange(OutputFile& file, OutputFormat format, FileMetadata const& metadata = {}) {
  if (format == OutputFormat::torch) {
    arrange_torch(file);
  } else {
    arrange_safetensors(file, metadata);
  }
}

std::string part_name(std::size_t part, std::size_t count, LayoutOptions const& options) {
  bool const torch = options.format == OutputFormat::torch;
  auto const stem = (torch ? "pytorch_" : "") + options.stem;
  auto const* const ending = torch ? ".bin" : ".safetensors";
  if (count == 1) return stem + ending;
  char text[64];
  std::snprintf(text, sizeof text, "-%05zu-of-%05zu", part, count);
  return stem + text + ending;
}

OutputTensor output_tensor(ShardSource const& source, std::size_t i) {
  auto const& tensor = source.tensors()[i];
  return {.tensor = i, .bytes = dense_bytes(tensor.shape, tensor.dtype)};
}

}  // namespace

std::vector<OutputFile> lay_out_model(std::shared_ptr<ShardSource const> const& source, LayoutOptions const& options) {
  std::vector<OutputFile> files(1);
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    if (options.wants && !options.wants(source->tensors()[i])) continue;
    auto const tensor = output_tensor(*source, i);
    bool const full = options.max_file_bytes > 0 && filled + tensor.bytes > options.max_file_bytes;
    if (full && !files.back().tensors.empty()) {
      files.emplace_back();
      filled = 0;
    }
    files.back().tensors.push_back(tensor);
    filled += tensor.bytes;
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].source = source;
    files[i].name = part_name(i + 1, files.size(), options);
    arrange(files[i], options.format);
  }
  assign_owners(files, options.ranks);
  return files;
}

namespace {

OutputFile file_of(std::shared_ptr<ShardSource const> const& source, std::string name, std::size_t first,
                   std::size_t count) {
  OutputFile file;
  file.name = std::move(name);
  file.source = source;
  for (auto i = first; i < first + count; ++i) file.tensors.push_back(output_tensor(*source, i));
  return file;
}

OutputFile whole_file(std::shared_ptr<ShardSource const> const& source, std::string name) {
  return file_of(source, std::move(name), 0, source->tensors().size());
}

}  // namespace

OutputFile lay_out_file(std::shared_ptr<ShardSource const> const& source, std::string name, OutputFormat format,
                        FileMetadata const& metadata) {
  auto file = whole_file(source, std::move(name));
  arrange(file, format, metadata);
  return file;
}

OutputFile lay_out_file_of(std::shared_ptr<ShardSource const> const& source, std::string name, std::size_t first,
                           std::size_t count, OutputFormat format) {
  auto file = file_of(source, std::move(name), first, count);
  arrange(file, format);
  return file;
}

OutputFile lay_out_image(std::shared_ptr<ShardSource const> const& source, Json const& config,
                         ImagePlace const& place) {
  workspace::StateFileName const name{.rank = place.rank, .writer = place.writer, .counter = place.counter};
  auto file = whole_file(source, name.name());
  arrange_image(file, config, place);
  return file;
}

std::string index_name(OutputFormat format) {
  return format == OutputFormat::torch ? "pytorch_model.bin.index.json" : "model.safetensors.index.json";
}

void assign_owners(std::vector<OutputFile>& files, int ranks) {
  std::vector<std::size_t> order(files.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return files[a].bytes > files[b].bytes; });
  auto load = per_rank<std::uint64_t>(ranks);
  for (auto const i : order) {
    auto const least = std::min_element(load.begin(), load.end());
    files[i].owner = static_cast<int>(least - load.begin());
    *least += files[i].bytes;
  }
}

std::string index_text(std::span<OutputFile const> files) {
  std::uint64_t total = 0;
  std::string map;
  for (auto const& file : files) {
    auto placed = file.tensors;
    std::sort(placed.begin(), placed.end(), [](auto const& a, auto const& b) { return a.tensor < b.tensor; });
    auto const file_name = Json(file.name).dump();
    for (auto const& tensor : placed) {
      // Written without a document in memory, which needs several times the space of the text.
      map += map.empty() ? "\n    " : ",\n    ";
      map += Json(file.source->tensors()[tensor.tensor].name).dump();
      map += ": " + file_name;
      total += tensor.bytes;
    }
  }
  auto const size = std::to_string(total);
  std::string text;
  text.reserve(map.size() + size.size() + 128);
  text += "{\n  \"metadata\": {\n    \"total_size\": " + size + "\n  },\n  \"weight_map\": {";
  text += map;
  text += map.empty() ? "}\n}\n" : "\n  }\n}\n";
  return text;
}

}  // namespace crossrank::checkpoint
