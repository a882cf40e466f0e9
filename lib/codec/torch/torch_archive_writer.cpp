#include "lib/codec/torch/torch_archive_writer.hpp"

#include <map>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/json/json_text.hpp"
#include "lib/codec/torch/pickle/pickle_writer.hpp"
#include "lib/codec/torch/pickle/torch_dtype.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/staged_read.hpp"

namespace crossrank::codec {
namespace {

constexpr std::string_view folder = "archive/";
constexpr std::string_view byte_order = "little";
// Version of the format that torch.save has always written in zip archives.
constexpr std::string_view format_version = "3\n";

constexpr char const* archive_write = "torch archive write";

std::string record_label(std::string_view name) { return "\"" + printable(name.substr(0, 200)) + "\": "; }

[[noreturn]] void refuse_record(std::string_view name, std::string message) {
  throw UsageError({.operation = archive_write, .message = record_label(name) + std::move(message)});
}

TorchDtype const& dtype_for(TorchOutput const& tensor) {
  auto const* const dtype = torch_dtype_of(tensor.dtype);
  if (dtype == nullptr) refuse_record(tensor.name, "torch has no dtype for " + std::string(name_of(tensor.dtype)));
  if (dtype->pairs && (tensor.shape.empty() || tensor.shape[tensor.shape.size() - 1] % 2 != 0))
    refuse_record(tensor.name, "torch stores the elements in pairs, but the last dimension is odd");
  return *dtype;
}

std::vector<std::int64_t> lengths_for(TorchOutput const& tensor, TorchDtype const& dtype) {
  std::vector<std::int64_t> lengths(tensor.shape.begin(), tensor.shape.end());
  if (dtype.pairs) lengths.back() /= 2;
  return lengths;
}

void check_output(std::span<TorchOutput const> tensors, std::size_t i) {
  auto const& tensor = tensors[i];
  if (find_bad_utf8(tensor.name) != std::string_view::npos) refuse_record(tensor.name, "the name is not UTF-8");
  if (tensor.same_as == TorchOutput::own) return;
  if (tensor.same_as >= i || tensors[tensor.same_as].same_as != TorchOutput::own ||
      tensors[tensor.same_as].dtype != tensor.dtype || tensors[tensor.same_as].shape.numel() != tensor.shape.numel())
    refuse_record(tensor.name, "`same_as` names a tensor that does not have the same bytes");
}

}  // namespace

TorchArchivePlan::TorchArchivePlan(std::span<TorchOutput const> tensors, TorchRoot root, Json const& config) {
  bool const is_named = root == TorchRoot::state_dict || root == TorchRoot::modelopt;
  if (!is_named && tensors.size() != (root == TorchRoot::tensor ? 1U : 0U))
    refuse_record(tensors.empty() ? std::string_view() : tensors.front().name,
                  "the root of the archive does not have " + std::to_string(tensors.size()) + " tensors");
  PickleWriter pickle;
  if (root == TorchRoot::modelopt) {
    pickle.begin_dict();
    pickle.text("config");
    pickle.value(config);
    pickle.text("weight");
  }
  if (root == TorchRoot::value) pickle.value(config);
  if (is_named) pickle.begin_dict();
  std::vector<std::string> keys(tensors.size());
  std::vector<ZipEntry> data;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_output(tensors, i);
    auto const& tensor = tensors[i];
    auto const& dtype = dtype_for(tensor);
    auto const own = tensor.same_as == TorchOutput::own;
    keys[i] = own ? std::to_string(data.size()) : keys[tensor.same_as];
    if (own) data.push_back({std::string(folder) + "data/" + keys[i], dense_bytes(tensor.shape, tensor.dtype)});
    if (is_named) pickle.text(tensor.name);
    pickle.tensor(dtype, keys[i], lengths_for(tensor, dtype));
  }
  if (is_named) pickle.end_dict();
  if (root == TorchRoot::modelopt) pickle.end_dict();
  pickle_ = std::move(pickle).finish();
  entries_.push_back({std::string(folder) + "data.pkl", pickle_.size()});
  entries_.push_back({std::string(folder) + "byteorder", byte_order.size()});
  entries_.push_back({std::string(folder) + "version", format_version.size()});
  entries_.insert(entries_.end(), data.begin(), data.end());
}

std::array<std::string_view, 3> TorchArchivePlan::constants() const noexcept {
  return {pickle_, byte_order, format_version};
}

TorchArchiveWriter::TorchArchiveWriter(TorchArchivePlan const& plan, ByteSink& sink) : zip_(plan.entries(), sink) {
  for (auto const part : plan.constants()) zip_.write(std::as_bytes(std::span(part)));
}

void TorchArchiveWriter::finish() { zip_.finish(); }

std::vector<TorchOutput> torch_outputs(StateDict const& weights) {
  std::vector<TorchOutput> outputs;
  std::map<std::tuple<std::byte const*, std::size_t, Dtype>, std::size_t> known;
  for (auto const& [name, tensor] : weights) {
    if (!tensor.defined()) throw_undefined({.operation = archive_write, .message = record_label(name)});
    require_readable(tensor, "archive write");
    TorchOutput output{name, tensor.dtype(), tensor.shape()};
    auto const [before, is_new] = known.try_emplace({tensor.data(), tensor.nbytes(), tensor.dtype()}, outputs.size());
    if (!is_new && tensor.nbytes() != 0) output.same_as = before->second;
    outputs.push_back(std::move(output));
  }
  return outputs;
}

void write_torch_archive(TorchArchivePlan const& plan, std::span<TorchOutput const> outputs, StateDict const& weights,
                         ByteSink& sink) {
  TorchArchiveWriter writer(plan, sink);
  for (auto const& output : outputs) {
    if (output.same_as != TorchOutput::own) continue;
    read_in_pieces(weights.at(output.name), [&](std::span<std::byte const> piece) { writer.write(piece); });
  }
  writer.finish();
}

}  // namespace crossrank::codec
