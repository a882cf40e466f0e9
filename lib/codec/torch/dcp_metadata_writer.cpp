#include "lib/codec/torch/dcp_metadata_writer.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/torch/pickle/pickle_writer.hpp"
#include "lib/codec/torch/pickle/torch_dtype.hpp"

namespace crossrank::codec {
namespace {

constexpr std::string_view metadata_module = "torch.distributed.checkpoint.metadata.";

class MetadataWriter {
 public:
  explicit MetadataWriter(DcpMetadata const& metadata) : metadata_(metadata) {}

  std::string write() && {
    begin_metadata_object("Metadata");
    field("state_dict_metadata");
    write_descriptions();
    field("planner_data");
    write_paths();
    field("storage_data");
    write_places();
    field("storage_meta");
    out_.none();
    out_.end_object();
    return std::move(out_).finish();
  }

 private:
  void field(std::string_view name) { out_.shared_text(name); }
  void begin_metadata_object(std::string_view type) { out_.begin_object(std::string(metadata_module).append(type)); }

  void size(std::span<std::int64_t const> values) {
    out_.begin_call("torch.Size");
    out_.numbers(values);
    out_.end_call();
  }

  void properties(DcpTensor const& tensor) {
    auto const* const dtype = torch_dtype_of(tensor.dtype);
    if (dtype == nullptr || dtype->pairs) {
      throw UsageError({.operation = "torch metadata write",
                        .message = "a distributed checkpoint has no dtype for this tensor",
                        .got = std::string(name_of(tensor.dtype)),
                        .resource = tensor.name,
                        .hint = "convert the tensor to a dtype of torch, or write safetensors files"});
    }
    // The class restores itself from: dtype, layout, requires_grad, memory format, pin_memory.
    out_.begin_state(std::string(metadata_module) + "TensorProperties");
    out_.begin_tuple();
    out_.shared_global(dtype->name);
    out_.begin_call("torch.serialization._get_layout");
    out_.shared_text("torch.strided");
    out_.end_call();
    out_.boolean(false);
    out_.begin_call(std::string(metadata_module) + "_MEM_FORMAT_ENCODING");
    out_.integer(0);
    out_.end_call();
    out_.boolean(false);
    out_.end_tuple();
    out_.end_state();
  }

  void write_descriptions() {
    out_.begin_dict();
    for (auto const& tensor : metadata_.tensors) {
      out_.shared_text(tensor.name);
      begin_metadata_object("TensorStorageMetadata");
      field("properties");
      properties(tensor);
      field("size");
      size({tensor.shape.begin(), tensor.shape.end()});
      field("chunks");
      out_.begin_list();
      for (auto const& box : tensor.boxes) {
        begin_metadata_object("ChunkStorageMetadata");
        field("offsets");
        size(box.begin);
        field("sizes");
        size(box.size);
        out_.end_object();
      }
      out_.end_list();
      out_.end_object();
    }
    for (auto const& object : metadata_.objects) {
      out_.shared_text(object.name);
      begin_metadata_object("BytesStorageMetadata");
      out_.end_object();
    }
    out_.end_dict();
  }

  void write_paths() {
    out_.begin_dict();
    for (auto const& tensor : metadata_.tensors) {
      out_.shared_text(tensor.name);
      out_.begin_tuple();
      for (auto const& key : tensor.path) out_.shared_text(key);
      out_.end_tuple();
    }
    for (auto const& object : metadata_.objects) {
      out_.shared_text(object.name);
      out_.begin_tuple();
      for (auto const& key : object.path) place_or_key(key);
      out_.end_tuple();
    }
    out_.end_dict();
  }

  void place_or_key(std::string const& key) {
    auto const is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (!key.empty() && key.size() < 10 && std::all_of(key.begin(), key.end(), is_digit)) {
      out_.integer(std::stoll(key));
    } else {
      out_.shared_text(key);
    }
  }

  void begin_index(std::string const& name) {
    begin_metadata_object("MetadataIndex");
    field("fqn");
    out_.shared_text(name);
    field("offset");
  }

  void place(DcpItem const& item) {
    out_.begin_object("torch.distributed.checkpoint.filesystem._StorageInfo");
    field("relative_path");
    out_.shared_text(item.file);
    field("offset");
    out_.integer(static_cast<std::int64_t>(item.offset));
    field("length");
    out_.integer(static_cast<std::int64_t>(item.length));
    out_.end_object();
  }

  void write_places() {
    out_.begin_dict();
    for (auto const& tensor : metadata_.tensors) {
      for (std::size_t i = 0; i < tensor.boxes.size(); ++i) {
        begin_index(tensor.name);
        size(tensor.boxes[i].begin);
        field("index");
        out_.integer(static_cast<std::int64_t>(i));
        out_.end_object();
        place(tensor.items.at(i));
      }
    }
    for (auto const& object : metadata_.objects) {
      begin_index(object.name);
      out_.none();
      field("index");
      out_.none();
      out_.end_object();
      place(object.item);
    }
    out_.end_dict();
  }

  DcpMetadata const& metadata_;
  PickleWriter out_{};
};

}  // namespace

std::string write_dcp_metadata(DcpMetadata const& metadata) { return MetadataWriter(metadata).write(); }

}  // namespace crossrank::codec
