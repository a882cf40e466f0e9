#include "lib/codec/safetensors/header_parser.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "lib/codec/io/checked_size.hpp"
#include "lib/codec/json/counting_input.hpp"
#include "lib/codec/safetensors/header_schema.hpp"
#include "lib/core/text/name_hash.hpp"

namespace crossrank::codec {
namespace {

constexpr std::uint64_t length_bytes = 8;

/// Refuses repeated names (strict), or keeps the last entry of each (lenient).
template <class List, class NameOf, class Refuse>
void drop_repeats(List& list, Strictness strictness, NameOf name_of, Refuse refuse) {
  std::unordered_map<std::string_view, std::size_t, NameHash> last;
  std::vector<bool> dropped(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto const [found, fresh] = last.emplace(name_of(list[i]), i);
    if (fresh) continue;
    if (strictness == Strictness::strict) refuse(list[i]);
    dropped[found->second] = true;
    found->second = i;
  }
  if (last.size() == list.size()) return;
  List kept;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!dropped[i]) kept.push_back(std::move(list[i]));
  }
  list = std::move(kept);
}

void drop_all_repeats(Header& header, ParseOptions const& options) {
  drop_repeats(
      header.entries, options.strictness, [](auto const& entry) -> std::string_view { return entry.name; },
      [&](auto const& entry) {
        refuse_header(options, "header", entry.at, "two tensors have the same name", entry.name);
      });
  drop_repeats(
      header.metadata, options.strictness, [](auto const& pair) -> std::string_view { return pair.first; },
      [&](auto const& pair) {
        refuse_header(options, "header", length_bytes, "the metadata repeats a key", pair.first);
      });
}

void check_size(HeaderEntry const& entry, ParseOptions const& options) {
  std::uint64_t bytes = 0;
  switch (checked_byte_size(entry.shape, bits_of(entry.dtype), bytes)) {
    case SizeStatus::overflows:
      refuse_header(options, "header", entry.at, "the size of a tensor overflows", entry.name);
    case SizeStatus::splits_a_byte:
      refuse_header(options, "header", entry.at, "the elements of a tensor do not fill the last byte", entry.name);
    case SizeStatus::fits: break;
  }
  if (bytes != entry.nbytes()) {
    refuse_header(options, "header", entry.at,
                  std::string(name_of(entry.dtype)) + " " + to_string(entry.shape) + " has " + std::to_string(bytes) +
                      " bytes, its data offsets enclose " + std::to_string(entry.nbytes()),
                  entry.name);
  }
}

/// Sorts by offset. Checks that the tensors follow each other without gap or overlap, and that each has the size of its
/// shape and dtype.
void check_layout(Header& header, ParseOptions const& options) {
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](auto const& a, auto const& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::uint64_t cursor = 0;
  for (auto const& entry : header.entries) {
    if (entry.begin != cursor || entry.end < entry.begin) {
      refuse_header(options, "header", entry.at,
                    "data offsets " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                        " do not follow byte " + std::to_string(cursor),
                    entry.name);
    }
    check_size(entry, options);
    cursor = entry.end;
  }
  header.data_bytes = cursor;
}

/// Returns a hint if the first bytes are those of another kind of file that is often found under this name.
char const* hint_for_other_file(std::span<std::byte const> first) {
  std::string_view const text(reinterpret_cast<char const*>(first.data()), std::min(first.size(), length_bytes));
  if (text == "version ") return "the file is a Git LFS pointer, not the weights: run `git lfs pull`";
  if (text.starts_with("<!") || text.starts_with("<html")) return "the file is a web page: download the weights again";
  if (text.starts_with("PK")) return "the file is an archive of torch: name it .pt or .bin";
  if (text.starts_with('{'))
    return "the file is JSON: if it is an index, give its directory; if it is a plan of parts, give it as `plan`";
  return "";
}

}  // namespace

std::string const* Header::find_metadata(std::string_view key) const noexcept {
  auto const found =
      std::find_if(metadata.begin(), metadata.end(), [&](auto const& pair) { return pair.first == key; });
  return found == metadata.end() ? nullptr : &found->second;
}

std::uint64_t header_extent(std::span<std::byte const> first, std::uint64_t file_size, ParseOptions const& options) {
  if (file_size < length_bytes || first.size() < length_bytes) {
    refuse_header(options, "length", 0,
                  "the file has " + std::to_string(file_size) + " bytes, fewer than a header's length needs");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, first.data(), sizeof(length));
  auto const limit = std::min(options.header_limit, max_header_bytes);
  if (length > limit) {
    // A length beyond the end of the file shows that this is not a header.
    bool const fits = length <= file_size - length_bytes;
    refuse_header(options, "length", 0,
                  "a header of " + std::to_string(length) + " bytes is larger than " + std::to_string(limit), {}, {},
                  fits ? limit_hint : hint_for_other_file(first));
  }
  if (length > file_size - length_bytes) {
    refuse_header(
        options, "length", 0,
        "a header of " + std::to_string(length) + " bytes does not fit in a file of " + std::to_string(file_size), {},
        {}, hint_for_other_file(first));
  }
  return length_bytes + length;
}

Header parse_header(std::span<std::byte const> prefix, std::uint64_t file_size, ParseOptions const& options) {
  auto const extent = header_extent(prefix, file_size, options);
  if (prefix.size() < extent) refuse_header(options, "length", 0, "the header was not read completely");
  std::string_view const text(reinterpret_cast<char const*>(prefix.data()) + length_bytes, extent - length_bytes);
  // nlohmann's parser treats NUL as the end of input and skips a byte order mark; the format allows neither.
  if (auto const nul = text.find('\0'); nul != std::string_view::npos) {
    refuse_header(options, "header", length_bytes + nul, "the header contains NUL");
  }
  if (text.starts_with("\xef\xbb\xbf"))
    refuse_header(options, "header", length_bytes, "the header begins with a byte order mark");

  Header header;
  char const* cursor = text.data();
  HeaderSchema schema(options, text, cursor, header);
  Json::sax_parse(CountingInput(text.data(), &cursor), CountingInput(text.data() + text.size(), nullptr), &schema);
  drop_all_repeats(header, options);
  check_layout(header, options);
  header.data_start = extent;
  if (header.data_bytes != file_size - extent) {
    refuse_header(options, "data", extent + std::min(header.data_bytes, file_size - extent),
                  "the tensors have " + std::to_string(header.data_bytes) + " bytes, the file has " +
                      std::to_string(file_size - extent));
  }
  return header;
}

}  // namespace crossrank::codec
