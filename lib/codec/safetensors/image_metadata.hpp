#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace crossrank::codec {

/// Keys of a state image in the `__metadata__` of its safetensors header.
namespace metadata_key {
inline constexpr std::string_view format = "format";
inline constexpr std::string_view version = "crossrank.format";
inline constexpr std::string_view rank = "crossrank.rank";
inline constexpr std::string_view world_size = "crossrank.world_size";
inline constexpr std::string_view job = "crossrank.job";
inline constexpr std::string_view writer = "crossrank.writer";
inline constexpr std::string_view sequence = "crossrank.sequence";
inline constexpr std::string_view config = "crossrank.config";
inline constexpr std::string_view integers = "crossrank.integers";
inline constexpr std::string_view order = "crossrank.order";
inline constexpr std::string_view absent = "crossrank.absent";
inline constexpr std::string_view checksums = "crossrank.checksums";
inline constexpr std::string_view header_checksum = "crossrank.header_checksum";
}  // namespace metadata_key

/// Version of the format that this library writes and reads.
inline constexpr std::string_view image_version = "2";

/// Job id of images that are results of their own, without a living writer.
inline constexpr std::string_view result_job = "checkpoint";

/// Identifies the writer of a state image, and which of the writer's images it is.
struct ImageIdentity {
  int rank = 0;
  int world_size = 1;
  std::string job{};           ///< job id, UTF-8
  std::uint64_t writer = 0;    ///< random number of the process; also in the file's name
  std::uint64_t sequence = 0;  ///< increases with each state that the writer publishes; also in the file's name
  bool operator==(ImageIdentity const&) const = default;
};

/// Returns whether the metadata belong to a state image: any key that only state images have is enough, so that damage
/// to one key cannot hide the others.
[[nodiscard]] bool says_state_image(std::span<std::pair<std::string, std::string> const> metadata) noexcept;

/// Marks an absent tensor in `ImageOrder::places`.
inline constexpr std::uint32_t absent_place = 0xffff'ffff;

/// Maps the written state dict, in its order, to the tensors of the data.
struct ImageOrder {
  std::vector<std::uint32_t> places{};      ///< for each entry its number in data order, or `absent_place`
  std::vector<std::string> absent_names{};  ///< names of the absent tensors, in order
};

/// Encodes the order as "2,0,-,1" and a JSON list of names. `decode_order` returns false unless the text is exactly
/// such an order, with each of `tensor_count` tensors once.
[[nodiscard]] std::string encode_places(ImageOrder const& order);
[[nodiscard]] std::string encode_absent_names(ImageOrder const& order);
[[nodiscard]] bool decode_order(std::string_view places, std::string_view absent_names, std::size_t tensor_count,
                                ImageOrder& out);

}  // namespace crossrank::codec
