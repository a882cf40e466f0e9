#include "workspace/checkpoint/write/dcp_output.hpp"

#include <array>

#include "lib/codec/checksum/crc32.hpp"
#include "lib/codec/io/byte_source.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns the archive of a plain value.
std::string archive_of_value(Json const& value) {
  codec::TorchArchivePlan const plan({}, codec::TorchRoot::value, value);
  std::string bytes(plan.file_bytes(), '\0');
  codec::MemorySink sink(std::as_writable_bytes(std::span(bytes)));
  codec::TorchArchiveWriter(plan, sink).finish();
  return bytes;
}

}  // namespace

std::shared_ptr<DcpLayout::Archive const> DcpLayout::archive_of(SourceTensor const& tensor) {
  auto& known = archives_[{tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}}];
  if (known) return known;
  std::array<codec::TorchOutput, 1> const output{{{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape}}};
  codec::TorchArchivePlan plan(output, codec::TorchRoot::tensor);
  codec::ZipLayout zip(plan.entries());
  Archive archive{.plan = std::move(plan), .zip = std::move(zip)};
  for (auto const part : archive.plan.constants())
    archive.crcs.push_back(codec::crc32(0, std::as_bytes(std::span(part))));
  known = std::make_shared<Archive const>(std::move(archive));
  return known;
}

void DcpLayout::add_texts(OutputFile& file, std::uint64_t begin, Archive const& archive) {
  auto const& zip = archive.zip;
  auto const constants = archive.plan.constants();
  for (std::size_t i = 0; i < zip.entries().size(); ++i) {
    auto const header = zip.header_at(i);
    file.texts.push_back({begin + header, codec::zip_local_header(header, zip.entries()[i])});
    if (i < constants.size()) file.texts.push_back({begin + zip.data_at(i), std::string(constants[i])});
  }
}

std::vector<OutputText> DcpLayout::seal(Archives const& archives, UnsealedFile const& written) {
  std::vector<OutputText> texts;
  for (std::size_t number = 0; number < archives.size(); ++number) {
    auto const& [begin, archive] = archives[number];
    auto crcs = archive->crcs;
    crcs.push_back(written.crcs[number]);
    auto const& zip = archive->zip;
    for (std::size_t i = 0; i < zip.entries().size(); ++i) {
      auto const& entry = zip.entries()[i];
      texts.push_back({begin + zip.data_at(i) + entry.size, codec::zip_descriptor(entry, crcs[i])});
    }
    texts.push_back({begin + zip.directory_at(), zip.directory(crcs)});
  }
  return texts;
}

DcpOutput DcpLayout::lay_out(int rank, std::shared_ptr<ShardSource const> const& source,
                             std::span<Json const> objects) {
  DcpOutput out;
  auto& file = out.file;
  file.name = "__" + std::to_string(rank) + "_0.distcp";
  file.source = source;
  file.owner = rank;
  Archives archives;
  auto const tensors = source->tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto const archive = archive_of(tensors[i]);
    auto const bytes = archive->zip.file_bytes();
    auto const data = archive->zip.data_at(archive->zip.entries().size() - 1);
    file.tensors.push_back(
        {.tensor = i, .begin = file.bytes + data, .bytes = dense_bytes(tensors[i].shape, tensors[i].dtype)});
    out.tensors.push_back({file.name, file.bytes, bytes});
    if (rank == own_) {
      add_texts(file, file.bytes, *archive);
      archives.emplace_back(file.bytes, archive);
    }
    file.bytes += bytes;
  }
  for (auto const& object : objects) {
    auto archive = archive_of_value(object);
    auto const bytes = archive.size();
    out.objects.push_back({file.name, file.bytes, bytes});
    if (rank == own_) file.texts.push_back({file.bytes, std::move(archive)});
    file.bytes += bytes;
  }
  file.takes_crcs = true;
  file.seal = [archives = std::move(archives)](UnsealedFile const& written) { return seal(archives, written); };
  return out;
}

}  // namespace crossrank::checkpoint
