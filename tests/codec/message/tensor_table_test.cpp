#include "lib/codec/message/tensor_table.hpp"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank::codec {
namespace {

std::vector<std::byte> encoded(TableInput const& input) {
  std::vector<std::byte> bytes(encoded_size(input));
  encode(input, bytes);
  return bytes;
}

std::vector<TableEntry> three_entries() {
  return {{.name = "layers.0.weight", .dtype = Dtype::f32, .shape = {2, 3}, .offset = 64, .nbytes = 24},
          {.name = "", .dtype = Dtype::f4, .shape = {0, 7}, .offset = 128},
          {.name = "absent", .present = false}};
}

void expect_equal(TableEntry const& a, TableEntry const& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.offset, b.offset);
  EXPECT_EQ(a.nbytes, b.nbytes);
  EXPECT_EQ(a.slot, b.slot);
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.present, b.present);
}

TEST(TensorTable, round_trips_entries) {
  auto entries = three_entries();
  entries.push_back({.name = "arena-backed",
                     .dtype = Dtype::u8,
                     .shape = {9},
                     .offset = 1ULL << 40,
                     .nbytes = 9,
                     .slot = 7,
                     .generation = 1ULL << 60});
  auto const bytes = encoded({.config = R"({"a":1})", .entries = entries});

  auto const view = decode(bytes, 128);

  EXPECT_EQ(view.config, R"({"a":1})");
  ASSERT_EQ(view.entries.size(), entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) expect_equal(view.entries[i], entries[i]);
}

TEST(TensorTable, round_trips_an_empty_table) {
  auto const bytes = encoded({});
  auto const view = decode(bytes, 0);
  EXPECT_EQ(view.config, "");
  EXPECT_TRUE(view.entries.empty());
}

TEST(TensorTable, refuses_every_truncation) {
  auto const entries = three_entries();
  auto const bytes = encoded({.config = "null", .entries = entries});
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW((void)decode(std::span(bytes).first(length), 128), FormatError) << length;
  }
}

TEST(TensorTable, refuses_a_tensor_outside_its_payload) {
  auto const entries = three_entries();
  auto const bytes = encoded({.entries = entries});
  EXPECT_THROW((void)decode(bytes, 127), FormatError);
  EXPECT_NO_THROW((void)decode(bytes, 128));
}

TEST(TensorTable, refuses_a_size_that_does_not_match_the_shape) {
  std::vector<TableEntry> const entries{{.name = "w", .dtype = Dtype::f32, .shape = {2}, .nbytes = 4}};
  EXPECT_THROW((void)decode(encoded({.entries = entries}), 64), FormatError);
}

TEST(TensorTable, refuses_a_shape_that_wraps_to_its_size) {
  std::vector<TableEntry> const entries{
      {.name = "w", .dtype = Dtype::i32, .shape = {2, (1LL << 62) + 1, 2}, .nbytes = 16}};
  EXPECT_THROW((void)decode(encoded({.entries = entries}), 64), FormatError);
}

TEST(TensorTable, refuses_a_count_that_the_bytes_cannot_hold) {
  auto const entries = three_entries();
  auto bytes = encoded({.entries = entries});
  std::uint32_t const many = 0xffff'ffff;
  std::memcpy(bytes.data() + 4, &many, sizeof(many));
  EXPECT_THROW((void)decode(bytes, 128), FormatError);
}

TEST(TensorTable, survives_any_changed_byte_with_an_error_or_entries_inside_the_payload) {
  auto const seed = std::random_device{}();
  std::mt19937_64 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto const entries = three_entries();
  auto const whole = encoded({.config = "[1,2]", .entries = entries});
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = whole;
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    try {
      for (auto const& entry : decode(bytes, 128).entries) {
        bool const inside = !entry.present || entry.slot != own_payload || entry.offset + entry.nbytes <= 128U;
        EXPECT_TRUE(inside);
      }
    } catch (FormatError const& e) {
      EXPECT_EQ(e.section(), "table");
    }
  }
}

TEST(TensorTable, refuses_to_encode_a_name_that_is_too_long) {
  std::string const name(1025, 'x');
  std::vector<TableEntry> const entries{{.name = name}};
  EXPECT_THROW((void)encoded_size({.entries = entries}), UsageError);
}

}  // namespace
}  // namespace crossrank::codec
