#include "workspace/checkpoint/torch_source.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/opened_file.hpp"

namespace crossrank::checkpoint {
namespace {

using codec::PickleKind;
using codec::PickleValue;

constexpr char const* operation = "checkpoint read";

/// The dict that holds all tensors, when it is one that saving scripts put around the weights.
std::optional<PickleValue> wrapped_model(PickleValue root) {
  for (auto const* key : {"state_dict", "model_state_dict", "model", "module"}) {
    auto const inside = root.find(key);
    if (inside && inside->is(PickleKind::dict)) return inside;
  }
  return std::nullopt;
}

/// Takes the archive apart; names lose the way to the model where everything else is plain values.
codec::TorchContents contents_of(codec::TorchArchive const& archive) {
  auto const root = archive.root();
  if (auto const config = root.find("config"), weight = root.find("weight"); config && weight && root.size() == 4) {
    if (weight->is(PickleKind::dict) && !archive.tensor(*config)) {
      auto contents = codec::take_apart(archive, *weight);
      contents.values = Json::object();
      contents.values["config"] = codec::plain_value(archive, *config);
      return contents;
    }
  }
  auto whole = codec::take_apart(archive, root);
  auto const model = wrapped_model(root);
  if (!model) return whole;
  auto inner = codec::take_apart(archive, *model);
  if (inner.tensors.size() != whole.tensors.size() || inner.tensors.empty()) return whole;
  inner.values = std::move(whole.values);
  return inner;
}

}  // namespace

TorchSource::TorchSource(std::string name, std::shared_ptr<codec::TorchArchive const> archive,
                         codec::TorchContents contents)
    : DescribedSource(std::move(name), std::move(contents.values), archive->bytes_on_disk()),
      archive_(std::move(archive)) {
  for (auto& [path, tensor] : contents.tensors) {
    tensors_.push_back({std::move(path), tensor->dtype, tensor->shape});
    views_.push_back(tensor);
  }
  if (!attributes_.is_object()) attributes_ = Json{{"value", std::move(attributes_)}};
}

void TorchSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const size = tensor < views_.size() ? views_[tensor]->nbytes : 0;
  if (offset > size || out.size() > size - offset) {
    throw UsageError(
        {.operation = operation,
         .message = "there are no such bytes",
         .got = std::to_string(out.size()) + " from " + std::to_string(offset) + " of tensor " + std::to_string(tensor),
         .resource = name_});
  }
  archive_->read(*views_[tensor], offset, out);
}

std::shared_ptr<TorchSource const> open_torch_archive(std::filesystem::path const& path,
                                                      TorchSourceOptions const& options) {
  auto const pool = options.pool ? options.pool : std::make_shared<FilePool>();
  auto archive =
      codec::TorchArchive::open(pool->open(path), {.crc = options.crc, .extra_globals = options.extra_globals});
  auto contents = contents_of(*archive);
  return std::make_shared<TorchSource const>(path.string(), std::move(archive), std::move(contents));
}

bool is_torch_archive(std::filesystem::path const& path) {
  codec::OpenedFile const file(path, operation);
  std::array<char, 9> head{};
  if (file.size() < 2) return false;
  auto const known = std::min<std::uint64_t>(file.size(), head.size());
  file.read_at(0, std::as_writable_bytes(std::span(head)).first(static_cast<std::size_t>(known)));
  // A safetensors file begins with the length of its header, whose lowest bytes may be any.
  std::string_view const begins(head.data(), head.size());
  bool const is_length = begins.substr(4, 4) == std::string_view("\0\0\0\0", 4);
  if (is_length && std::string_view("{ \t\r\n").find(begins[8]) != std::string_view::npos) return false;
  return begins.starts_with("PK") || begins.starts_with("\x80\x02");
}

}  // namespace crossrank::checkpoint
