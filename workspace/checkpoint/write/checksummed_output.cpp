#include "workspace/checkpoint/write/checksummed_output.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/checksum/crc32.hpp"
#include "lib/codec/safetensors/image_layout.hpp"
#include "lib/codec/torch/torch_archive_writer.hpp"
#include "lib/codec/torch/zip/zip_layout.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;

/// Calls `take` with bytes `[begin, begin + bytes)` of a written file, block by block.
template <class Take>
void read_blocks(UnsealedFile const& file, std::uint64_t begin, std::uint64_t bytes, Take const& take) {
  auto const block = std::make_unique_for_overwrite<std::byte[]>(block_bytes);
  for (std::uint64_t at = 0; at < bytes; at += block_bytes) {
    std::span<std::byte> const part(block.get(), std::min<std::uint64_t>(block_bytes, bytes - at));
    file.read(begin + at, part);
    take(std::span<std::byte const>(part));
  }
}

/// Returns the checksums of an archive. `crcs` has the CRCs of the entries before the tensors.
std::vector<OutputText> seal_archive(codec::ZipLayout const& zip, std::vector<std::uint32_t> crcs,
                                     UnsealedFile const& file) {
  crcs.insert(crcs.end(), file.crcs.begin(), file.crcs.end());
  std::vector<OutputText> texts;
  for (std::size_t i = 0; i < zip.entries().size(); ++i) {
    auto const& entry = zip.entries()[i];
    texts.push_back({zip.data_at(i) + entry.size, codec::zip_descriptor(entry, crcs[i])});
  }
  texts.push_back({zip.directory_at(), zip.directory(crcs)});
  return texts;
}

std::vector<OutputText> seal_image(codec::ImageLayout const& image, UnsealedFile const& file) {
  std::vector<std::uint64_t> digests;
  codec::StreamingChecksum running;
  for (auto const& piece : image.extents()) {
    running.restart();
    read_blocks(file, piece.offset, piece.bytes, [&](auto bytes) { running.update(bytes); });
    digests.push_back(running.digest());
  }
  return {{0, image.sealed_header(digests)}};
}

}  // namespace

void arrange_torch(OutputFile& file) {
  auto const tensors = file.source->tensors();
  std::vector<codec::TorchOutput> outputs;
  for (auto const& placed : file.tensors) {
    auto const& tensor = tensors[placed.tensor];
    outputs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  codec::TorchArchivePlan const plan(outputs, codec::TorchRoot::state_dict);
  auto const zip = std::make_shared<codec::ZipLayout const>(plan.entries());
  auto const constants = plan.constants();
  std::vector<std::uint32_t> crcs;
  for (auto const& constant : constants) crcs.push_back(codec::crc32(0, std::as_bytes(std::span(constant))));
  for (std::size_t i = 0; i < zip->entries().size(); ++i) {
    file.texts.push_back({zip->header_at(i), codec::zip_local_header(zip->header_at(i), zip->entries()[i])});
    if (i < constants.size()) file.texts.push_back({zip->data_at(i), std::string(constants[i])});
  }
  for (std::size_t i = 0; i < file.tensors.size(); ++i) file.tensors[i].begin = zip->data_at(constants.size() + i);
  file.bytes = zip->file_bytes();
  file.takes_crcs = true;
  file.seal = [zip, crcs = std::move(crcs)](UnsealedFile const& written) { return seal_archive(*zip, crcs, written); };
}

void arrange_image(OutputFile& file, Json const& config, ImagePlace const& place) {
  auto const tensors = file.source->tensors();
  std::vector<codec::ImageTensor> described;
  for (auto const& placed : file.tensors) {
    auto const& tensor = tensors[placed.tensor];
    described.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  codec::ImageOptions const options{.identity = {.rank = place.rank,
                                                 .world_size = place.world_size,
                                                 .job = std::string(codec::result_job),
                                                 .writer = place.writer,
                                                 .sequence = place.counter}};
  auto const image = std::make_shared<codec::ImageLayout const>(config, described, options);
  std::vector<OutputTensor> ordered;
  for (auto const& piece : image->extents())
    ordered.push_back({file.tensors[piece.tensor].tensor, piece.offset, piece.bytes});
  file.tensors = std::move(ordered);
  file.bytes = image->file_bytes();
  file.seal = [image](UnsealedFile const& written) { return seal_image(*image, written); };
}

}  // namespace crossrank::checkpoint
