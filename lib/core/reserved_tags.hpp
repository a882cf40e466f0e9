#pragma once
#include <cstdint>

/// Tags of the messages in which the library sends objects and dictionaries. Users are unlikely to choose them.
namespace crossrank::reserved_tags {

inline constexpr std::uint32_t object_head = 0xfff0'0001;
inline constexpr std::uint32_t object_body = 0xfff0'0002;
inline constexpr std::uint32_t dict_head = 0xfff1'0000;
// The lower half of these tags is the number of the dictionary.
inline constexpr std::uint32_t dict_body = 0xfff2'0000;
inline constexpr std::uint32_t dict_tensor = 0xfff3'0000;
inline constexpr std::uint32_t number_mask = 0xffff;

/// Returns what a message with this tag holds; null if it is not one of the library's tags.
[[nodiscard]] constexpr char const* content_of(std::uint32_t tag) noexcept {
  if (tag == object_head) return "an object";
  if (tag == object_body) return "the rest of an object";
  if (tag == dict_head) return "a dictionary";
  if ((tag & ~number_mask) == dict_body) return "the rest of a dictionary";
  if ((tag & ~number_mask) == dict_tensor) return "a tensor of a dictionary";
  return nullptr;
}

/// Returns the call that receives a message with this tag.
[[nodiscard]] constexpr char const* receiver_of(std::uint32_t tag) noexcept {
  if (content_of(tag) == nullptr) return "recv";
  return tag == object_head || tag == object_body ? "recv_object" : "recv_tensor_dict";
}

}  // namespace crossrank::reserved_tags
