#include "workspace/checkpoint/source/duplicate_files.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

// Size of the widest element in bytes.
constexpr std::size_t element = 8;

using Signature = std::vector<std::tuple<std::string, std::uint64_t, std::uint32_t>>;
using Samples = std::vector<FileSample const*>;

Signature signature_of(Samples const& samples) {
  Signature signature;
  for (auto const* const sample : samples) signature.emplace_back(sample->tensor, sample->bytes, sample->crc);
  std::sort(signature.begin(), signature.end());
  return signature;
}

bool are_copies(Samples const& samples) {
  return std::any_of(samples.begin(), samples.end(),
                     [](FileSample const* sample) { return is_distinctive(sample->beginning()); });
}

std::vector<std::string> names_of(Samples const& samples) {
  std::vector<std::string> names;
  for (auto const* const sample : samples) names.push_back(sample->tensor);
  return names;
}

}  // namespace

bool is_distinctive(std::vector<std::byte> const& bytes) {
  return bytes.size() > element && std::memcmp(bytes.data(), bytes.data() + element, bytes.size() - element) != 0;
}

void require_no_duplicate_files(std::vector<FileSample> const& samples, std::string const& where) {
  std::map<std::string, Samples> files;
  for (auto const& sample : samples) {
    if (sample.crc != 0 && sample.bytes > 0) files[sample.file].push_back(&sample);
  }
  std::map<Signature, std::string> seen;
  for (auto const& [file, own] : files) {
    auto const [at, fresh] = seen.emplace(signature_of(own), file);
    if (fresh || !are_copies(own)) continue;
    throw FormatError({.operation = open_operation,
                       .message = at->second + " and " + file +
                                  " hold the same bytes of every sharded tensor: one file is a copy of the other",
                       .expected = "a different piece on each rank",
                       .got = "equal checksums of " + list_text(names_of(own), 1),
                       .resource = where,
                       .hint = "copy the files of both ranks again",
                       .section = to_string(ErrorSection::files)});
  }
}

}  // namespace crossrank::checkpoint
