#include "workspace/nfs/file_identity.hpp"

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <crossrank/error.hpp>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/safetensors/state_image.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::workspace {
namespace {

constexpr std::string_view operation = "clean";
constexpr std::size_t length_bytes = 8;
/// The bytes that our writer puts after the length of the header.
constexpr std::string_view opening = R"({"__metadata__":{"format":"pt","crossrank.format":")";

bool begins_as_ours(codec::ByteSource const& file) {
  std::array<char, opening.size()> found{};
  if (file.size() < length_bytes + found.size()) return false;
  file.read_at(length_bytes, std::as_writable_bytes(std::span(found)));
  return std::string_view(found.data(), found.size()) == opening;
}

FileIdentity identify_image(std::shared_ptr<codec::FileSource const> const& file, StateFileName const& named) {
  try {
    auto const image = codec::StateImage::open(file);
    auto const& identity = image.identity();
    if (identity.job == codec::result_job)
      return {.kind = FileIdentity::Kind::result, .why = "it is part of a finished checkpoint"};
    if (identity.rank == named.rank && identity.writer == named.writer && identity.sequence == named.counter)
      return {.kind = FileIdentity::Kind::state};
    return {.why = "its content was written under another name"};
  } catch (FormatError const& error) {
    if (begins_as_ours(*file)) return {.kind = FileIdentity::Kind::state};
    return {.why = "it is not a state image of crossrank: " + error.info().message};
  }
}

}  // namespace

FileIdentity identify(platform::Directory const& directory, std::string const& name) {
  auto const named = parse_state_file_name(name);
  if (!named) return {.why = "it does not have the name of a state file"};
  try {
    auto const fd = directory.open_file(name, std::string(operation));
    if (!fd) return {.why = "it no longer exists"};
    // The source gets a name that is no state file name, so that opening the image does not compare the two.
    return identify_image(std::make_shared<codec::FileSource const>("header of " + name + " ", fd->get()), *named);
  } catch (IoError const& error) {
    return {.why = error.info().message + (error.info().got.empty() ? "" : ": " + error.info().got)};
  }
}

}  // namespace crossrank::workspace
