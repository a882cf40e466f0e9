#include <crossrank/serialize.hpp>

#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>

#include "lib/codec/message/config_binary.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank {
namespace {

// "XRO" and the version of the envelope; FORMAT.md, "Objects".
constexpr std::uint32_t envelope_magic = 0x024f5258;
constexpr std::size_t max_tag_bytes = 1024;
// Objects travel between ranks and are as long as the sender wants. Only recursion has to be limited.
constexpr codec::JsonLimits object_limits{.bytes = std::numeric_limits<std::size_t>::max(),
                                          .values = std::numeric_limits<std::size_t>::max(),
                                          .depth = codec::max_config_depth};

/// Takes a name with its length in front, as the Itanium C++ ABI mangles it. Returns nothing for anything else.
std::optional<std::string_view> take_identifier(std::string_view& mangled) {
  std::size_t length = 0;
  auto const* const end = mangled.data() + mangled.size();
  auto const [rest, error] = std::from_chars(mangled.data(), end, length);
  if (error != std::errc{} || length == 0 || length > static_cast<std::size_t>(end - rest)) return std::nullopt;
  std::string_view const name(rest, length);
  mangled = {rest + length, end};
  return name.starts_with("_GLOBAL__N_") ? "(anonymous namespace)" : name;
}

/// Returns the name of a class without template arguments in its spelling in C++, and any other name as it is. A peer
/// chose the name, and `__cxa_demangle` needs unbounded memory for some.
std::string spelled(std::string_view name) {
  bool const is_nested = name.starts_with('N') && name.ends_with('E');
  auto rest = is_nested ? name.substr(1, name.size() - 2) : name;
  std::string out;
  do {
    auto const identifier = take_identifier(rest);
    if (!identifier) return codec::printable(name);
    out += (out.empty() ? "" : "::") + codec::printable(*identifier);
  } while (is_nested && !rest.empty());
  return rest.empty() ? out : codec::printable(name);
}

}  // namespace

ObjectWriter::ObjectWriter() : cereal::OutputArchive<ObjectWriter>(this) {}
ObjectWriter::~ObjectWriter() = default;

void ObjectWriter::write(void const* data, std::size_t bytes) {
  auto const* const from = static_cast<std::byte const*>(data);
  bytes_.insert(bytes_.end(), from, from + bytes);
}

void ObjectWriter::write_count(std::uint64_t count) {
  write(&count, sizeof count);
  counted_.push_back({bytes_.size(), count});
}

void ObjectWriter::write_json(Json const& value) {
  auto const text = codec::encode_config_binary(value, object_limits);
  write_count(text.size());
  write(text.data(), text.size());
}

void ObjectWriter::enter() {
  if (++depth_ <= max_object_depth) return;
  throw UsageError({.operation = "encode_object",
                    .message = "the object is nested too deeply",
                    .expected = "at most " + std::to_string(max_object_depth) + " levels",
                    .hint = "store nested parts in a list, and let them refer to each other by index"});
}

std::vector<std::byte> ObjectWriter::take() {
  for (auto const& [at, count] : counted_) {
    if (count <= bytes_.size() - at) continue;
    throw UsageError(
        {.operation = "encode_object",
         .message = "a container has elements without bytes, which a reader cannot check against its input",
         .expected = "at least " + std::to_string(count) + " bytes",
         .got = std::to_string(bytes_.size() - at),
         .hint = "send their number instead"});
  }
  counted_.clear();
  return std::exchange(bytes_, {});
}

ObjectReader::ObjectReader(std::span<std::byte const> bytes)
    : cereal::InputArchive<ObjectReader>(this), bytes_(bytes) {}
ObjectReader::~ObjectReader() = default;

void ObjectReader::refuse(char const* section, std::string message, std::string expected, std::string got) const {
  throw FormatError({.operation = "decode_object",
                     .message = std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .section = section,
                     .offset = at_});
}

void ObjectReader::read(void* data, std::size_t bytes) {
  if (bytes > remaining())
    refuse("value", "the object is truncated", std::to_string(bytes) + " bytes", std::to_string(remaining()));
  if (bytes > 0) copy_memory(data, bytes_.data() + at_, bytes);
  at_ += bytes;
}

bool ObjectReader::read_bool() {
  std::uint8_t value = 0;
  read(&value, sizeof value);
  if (value > 1) refuse("value", "a bool is neither 0 nor 1", "0 or 1", std::to_string(value));
  return value == 1;
}

std::uint64_t ObjectReader::read_count(std::size_t least_bytes) {
  std::uint64_t count = 0;
  read(&count, sizeof count);
  if (count > remaining() / least_bytes) {
    refuse("count", "more elements are announced than the remaining bytes can hold",
           "at most " + std::to_string(remaining() / least_bytes), std::to_string(count));
  }
  return count;
}

Json ObjectReader::read_json() {
  auto const size = read_count();
  auto value = codec::decode_config_binary(std::as_bytes(bytes_.subspan(at_, size)), object_limits);
  at_ += size;
  return value;
}

void ObjectReader::enter() {
  if (++depth_ > max_object_depth)
    refuse("value", "the object is nested too deeply", "at most " + std::to_string(max_object_depth) + " levels");
}

void ObjectReader::finish() const {
  if (remaining() > 0) refuse("end", "bytes follow the object", "nothing more", std::to_string(remaining()) + " bytes");
}

namespace detail {

void write_envelope(ObjectWriter& writer, std::string_view name, std::uint32_t version) {
  if (name.size() > max_tag_bytes) {
    throw UsageError({.operation = "encode_object",
                      .message = "the name of the type is too long",
                      .expected = "at most " + std::to_string(max_tag_bytes) + " bytes",
                      .got = std::to_string(name.size()),
                      .hint = "give the type a type_tag"});
  }
  auto const length = static_cast<std::uint16_t>(name.size());
  writer.write(&envelope_magic, sizeof envelope_magic);
  writer.write(&version, sizeof version);
  writer.write(&length, sizeof length);
  writer.write(name.data(), name.size());
}

void check_envelope(ObjectReader& reader, std::string_view name, std::uint32_t version) {
  std::uint32_t magic = 0;
  std::uint32_t got_version = 0;
  std::uint16_t length = 0;
  reader.read(&magic, sizeof magic);
  if (magic != envelope_magic)
    reader.refuse("envelope", "the bytes are not an object", std::string(name), "other bytes");
  reader.read(&got_version, sizeof got_version);
  reader.read(&length, sizeof length);
  if (length > max_tag_bytes || length > reader.remaining())
    reader.refuse("envelope", "the name of the type is truncated", std::to_string(length) + " bytes");
  std::string got(length, '\0');
  reader.read(got.data(), got.size());
  if (got != name) reader.refuse("tag", "the object is of another type", spelled(name), spelled(got));
  if (got_version != version) {
    reader.refuse("version", "the object is of another version of " + std::string(name), std::to_string(version),
                  std::to_string(got_version));
  }
}

void refuse_object(ObjectReader const& reader, std::string_view name, char const* why) {
  reader.refuse("value", "the bytes are not a valid " + std::string(name) + ": " + why);
}

}  // namespace detail
}  // namespace crossrank
