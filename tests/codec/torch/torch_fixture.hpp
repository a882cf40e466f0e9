#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/codec/checksum/crc32.hpp"
#include "lib/codec/torch/torch_load.hpp"
#include "tests/codec/safetensors/image_fixture.hpp"

namespace crossrank::codec {

template <class Number>
std::string little(Number value) {
  return {reinterpret_cast<char const*>(&value), sizeof(value)};
}

/// Records of an archive that a test makes by hand.
using Records = std::vector<std::pair<std::string, std::string>>;

/// Returns an uncompressed zip archive, without ZIP64.
inline std::string zip_of(Records const& records) {
  std::string file;
  std::string directory;
  for (auto const& [name, data] : records) {
    auto const crc = crc32(0, to_bytes(data));
    auto const size = static_cast<std::uint32_t>(data.size());
    auto const head = little<std::uint16_t>(0x800) + little<std::uint16_t>(0) + little<std::uint32_t>(0) + little(crc) +
                      little(size) + little(size) + little(static_cast<std::uint16_t>(name.size())) +
                      little<std::uint16_t>(0);
    directory += little<std::uint32_t>(0x02014b50) + little<std::uint16_t>(20) + little<std::uint16_t>(20) + head +
                 std::string(10, '\0') + little(static_cast<std::uint32_t>(file.size())) + name;
    file += little<std::uint32_t>(0x04034b50) + little<std::uint16_t>(20) + head + name + data;
  }
  auto const count = static_cast<std::uint16_t>(records.size());
  auto const end = little<std::uint32_t>(0x06054b50) + std::string(4, '\0') + little(count) + little(count) +
                   little(static_cast<std::uint32_t>(directory.size())) +
                   little(static_cast<std::uint32_t>(file.size())) + little<std::uint16_t>(0);
  return file + directory + end;
}

/// Returns an archive of torch with this pickle and the storages "0", "1", ...
inline std::string torch_of(std::string_view pickle, std::vector<std::string> const& storages = {}) {
  Records records{{"archive/data.pkl", std::string(pickle)}, {"archive/byteorder", "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i)
    records.emplace_back("archive/data/" + std::to_string(i), storages[i]);
  records.emplace_back("archive/version", "3\n");
  return zip_of(records);
}

inline std::shared_ptr<TorchArchive const> open_torch(Bytes bytes, TorchReadOptions options = {}) {
  return TorchArchive::open(std::make_shared<BytesSource>(std::move(bytes)), std::move(options));
}

inline StateDict load_torch(Bytes bytes, TorchReadOptions options = {}) {
  auto const archive = open_torch(std::move(bytes), std::move(options));
  auto const contents = split_contents(*archive, archive->root());
  return load_tensors(*archive, contents.tensors);
}

/// Functions for parts of pickles, as torch writes them.
inline std::string pickled(std::string_view text) {
  return "X" + little(static_cast<std::uint32_t>(text.size())) + std::string(text);
}
inline std::string pickled(std::int64_t value) {
  std::string bytes = little(value);
  return "\x8a\x08" + bytes;
}
inline std::string pickled(std::vector<std::int64_t> const& values) {
  std::string out = "(";
  for (auto const value : values) out += pickled(value);
  return out + "t";
}
inline std::string pickled_storage(std::string_view cls, std::string_view key, std::int64_t numel) {
  return "(" + pickled("storage") + "ctorch\n" + std::string(cls) + "\n" + pickled(key) + pickled("cpu") +
         pickled(numel) + "tQ";
}
inline std::string pickled_tensor(std::string const& storage, std::int64_t offset,
                                  std::vector<std::int64_t> const& lengths, std::vector<std::int64_t> const& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + pickled(offset) + pickled(lengths) + pickled(strides) +
         "\x89" + "ccollections\nOrderedDict\n)RtR";
}
/// Returns a pickle of a dict with one entry.
inline std::string pickled_dict(std::string_view key, std::string const& value) {
  return "\x80\x02}" + pickled(key) + value + "s.";
}

}  // namespace crossrank::codec
