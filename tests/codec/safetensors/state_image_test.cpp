#include "lib/codec/safetensors/state_image.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/safetensors/state_file_name.hpp"
#include "lib/core/as_size.hpp"
#include "tests/codec/safetensors/image_fixture.hpp"
#include "tests/support/expect_same_tensor.hpp"

namespace crossrank::codec {
namespace {

using test::expect_same_tensor;

StateDict small_weights() {
  std::vector<float> const floats{1, 2, 3};
  std::vector<std::uint8_t> const bytes{7, 8};
  StateDict weights;
  weights.insert_or_assign("z.bytes", Tensor::of<std::uint8_t>(bytes, {2, 1}));
  weights.insert_or_assign("gone", Tensor{});
  weights.insert_or_assign("a.floats", Tensor::of<float>(floats, {3}));
  weights.insert_or_assign("none", Tensor::zeros({0, 4}, Dtype::bf16));
  weights.insert_or_assign("step", Tensor::scalar(std::int64_t{-5}));
  return weights;
}

void expect_same_weights(StateDict const& a, StateDict const& b) {
  ASSERT_EQ(a.size(), b.size());
  auto other = b.begin();
  for (auto const& [name, tensor] : a) {
    EXPECT_EQ(name, other->first);
    expect_same_tensor(tensor, other->second);
    ++other;
  }
}

TEST(StateImage, escapes_control_characters_as_its_format_says) {
  auto const bytes = image_of({}, {}, {.identity = {.job = "a\nb"}});
  std::string_view const text(reinterpret_cast<char const*>(bytes.data()), bytes.size());
  EXPECT_NE(text.find(R"("a\u000ab")"), std::string_view::npos) << text;
}

TEST(StateImage, round_trips_config_weights_order_and_identity) {
  ImageIdentity const identity{
      .rank = 3, .world_size = 4, .job = "job \"7\"", .writer = ~0ULL - 8, .sequence = 1ULL << 60};
  Json const config{{"b", 1}, {"a", -std::numeric_limits<double>::infinity()}};
  auto const image = open_bytes(image_of(config, small_weights(), {.identity = identity}));
  auto const state = image.read_all();
  EXPECT_EQ(state.config, config);
  EXPECT_EQ(state.config.begin().key(), "b");
  EXPECT_EQ(image.identity(), identity);
  expect_same_weights(state.weights, small_weights());
}

TEST(StateImage, keeps_a_null_config_without_weights) {
  auto const state = open_bytes(image_of(nullptr, {})).read_all();
  EXPECT_TRUE(state.config.is_null());
  EXPECT_TRUE(state.weights.empty());
}

TEST(StateImage, starts_its_data_on_the_requested_alignment) {
  for (std::size_t const alignment : {8U, 64U, 4096U}) {
    ImagePlan const plan(nullptr, small_weights(), {.alignment = alignment});
    EXPECT_EQ(plan.header_bytes() % alignment, 0U);
  }
  EXPECT_THROW(ImagePlan(nullptr, {}, {.alignment = 48}), UsageError);
}

TEST(StateImage, aligns_each_tensor_to_its_element_size) {
  auto const weights = small_weights();
  ImagePlan const plan(nullptr, weights, {});
  for (auto const& extent : plan.extents()) {
    EXPECT_EQ(extent.offset % std::max<std::size_t>(1, bits_of(extent.tensor.dtype()) / 8), 0U) << extent.name;
  }
}

TEST(StateImage, reads_and_verifies_single_tensors) {
  auto const image = open_bytes(image_of({}, small_weights()));
  EXPECT_EQ(image.read("step").item<std::int64_t>(), -5);
  EXPECT_NO_THROW(image.verify("a.floats"));
  EXPECT_THROW((void)image.read("gone"), UsageError);
}

TEST(StateImage, views_memory_without_a_copy) {
  auto bytes = image_of({}, small_weights());
  auto const blob = Tensor::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, Dtype::u8);
  auto const image = StateImage::open(std::make_shared<MemorySource>("memory", blob.storage()));
  auto const state = image.read_all();
  auto const* const at = state.weights.at("a.floats").data();
  EXPECT_GE(at, bytes.data());
  EXPECT_LT(at, bytes.data() + bytes.size());
  expect_same_weights(state.weights, small_weights());
}

TEST(StateImage, refuses_every_truncation_and_one_byte_more) {
  auto const whole = image_of(Json{{"a", 1}}, small_weights());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    auto truncated = whole;
    truncated.resize(length);
    EXPECT_THROW((void)open_bytes(std::move(truncated)).read_all(), FormatError) << length;
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW((void)open_bytes(std::move(longer)), FormatError);
}

TEST(StateImage, refuses_every_flipped_bit) {
  auto const whole = image_of(Json{{"a", 1}}, small_weights());
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto flipped = whole;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW((void)open_bytes(std::move(flipped)).read_all(), FormatError) << "bit " << bit;
  }
}

TEST(StateImage, is_refused_with_any_flipped_bit_when_read_as_plain_safetensors_too) {
  auto const whole = image_of(Json{{"a", 1}}, small_weights());
  for (auto const strictness : {Strictness::strict, Strictness::lenient}) {
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      auto flipped = whole;
      flipped[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_THROW((void)open_plain(std::move(flipped), strictness).read_all(), FormatError) << "bit " << bit;
    }
  }
}

StateImage open_named(Bytes bytes, std::string name) {
  return StateImage::open(std::make_shared<BytesSource>(std::move(bytes), std::move(name)), {.kind = ImageKind::plain});
}

TEST(StateImage, is_refused_under_the_name_of_another_one) {
  StateFileName const own{.rank = 3, .writer = 0xab, .counter = 7};
  ImageIdentity const identity{.rank = own.rank, .world_size = 4, .writer = own.writer, .sequence = own.counter};
  auto const bytes = image_of({}, small_weights(), {.identity = identity});
  EXPECT_TRUE(open_named(bytes, "/some/where/" + own.name()).checked());
  EXPECT_TRUE(open_named(bytes, "/some/where/model.safetensors").checked());
  for (auto const& other :
       {StateFileName{.rank = 2, .writer = 0xab, .counter = 7}, StateFileName{.rank = 3, .writer = 0xaa, .counter = 7},
        StateFileName{.rank = 3, .writer = 0xab, .counter = 6}}) {
    try {
      (void)open_named(bytes, "/some/where/" + other.name());
      FAIL() << other.name();
    } catch (FormatError const& error) {
      EXPECT_NE(error.info().got.find("rank 3, writer 00000000000000ab, sequence 7"), std::string::npos);
    }
  }
}

TEST(StateImage, must_have_checksums_if_its_name_or_a_key_marks_a_state_image) {
  auto const plain =
      file_of(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  EXPECT_FALSE(open_named(plain, "model.safetensors").checked());
  EXPECT_THROW((void)open_named(plain, StateFileName{.rank = 1, .writer = 2, .counter = 3}.name()), FormatError);
  for (std::string const key : {"crossrank.format", "crossrank.writer", "crossrank.checksums", "crossrank.order"}) {
    auto const marked =
        file_of(R"({"__metadata__":{")" + key + R"(":"1"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
    EXPECT_THROW((void)open_named(marked, "model.safetensors"), FormatError) << key;
  }
}

TEST(StateImage, reports_which_tensor_is_damaged_and_where) {
  auto bytes = image_of({}, small_weights());
  auto const entries = open_bytes(bytes);
  auto const entry = *std::find_if(entries.entries().begin(), entries.entries().end(),
                                   [](auto const& e) { return e.name == "a.floats"; });
  auto const at = entries.header().data_start + entry.begin;
  bytes[at] ^= std::byte{1};
  auto const damaged = open_bytes(bytes);
  EXPECT_NO_THROW(damaged.verify("step"));
  try {
    damaged.verify("a.floats");
    FAIL() << "accepted";
  } catch (FormatError const& e) {
    EXPECT_EQ(e.section(), "data");
    EXPECT_EQ(e.offset(), at);
    EXPECT_NE(std::string(e.what()).find("a.floats"), std::string::npos);
  }
}

TEST(StateImage, finds_damage_wherever_it_is_when_several_threads_read) {
  // Enough bytes for several threads: small tensors that are read together, and large ones.
  StateDict weights;
  for (int i = 0; i < 24; ++i) {
    auto tensor = Tensor::empty({i % 2 == 0 ? 3 << 20 : 100'003}, Dtype::u8);
    std::memset(tensor.mutable_bytes().data(), i, tensor.nbytes());
    weights.insert_or_assign("tensor " + std::to_string(i), std::move(tensor));
  }
  auto bytes = image_of({}, weights);

  auto const read = open_bytes(bytes).read_all().weights;
  ASSERT_EQ(read.size(), weights.size());
  for (auto const& [name, tensor] : weights)
    EXPECT_TRUE(std::ranges::equal(read.at(name).bytes(), tensor.bytes())) << name;
  for (auto const part : {1, 2, 3}) {
    auto damaged = bytes;
    damaged[damaged.size() * as_size(part) / 4] ^= std::byte{1};
    EXPECT_THROW((void)open_bytes(std::move(damaged)).read_all(), FormatError) << part;
  }
}

TEST(StateImage, refuses_a_file_of_another_tool_in_a_workspace_and_reads_it_as_plain) {
  auto const bytes =
      file_of(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  EXPECT_THROW((void)open_bytes(bytes), FormatError);
  auto const image = open_plain(bytes);
  EXPECT_FALSE(image.checked());
  EXPECT_EQ(image.read("a").item<std::uint8_t>(), 'x');
  EXPECT_THROW(image.verify("a"), UsageError);
}

TEST(StateImage, refuses_another_version_even_with_a_valid_checksum) {
  auto bytes = image_of({}, {});
  std::string text(reinterpret_cast<char const*>(bytes.data()), bytes.size());
  auto const version = text.find(R"("crossrank.format":"2")");
  ASSERT_NE(version, std::string::npos);
  text[version + 20] = '1';
  auto const digits = find_header_checksum(bytes);
  ASSERT_TRUE(digits.has_value());
  text.replace(*digits, checksum_digits, checksum_digits, '0');
  text.replace(*digits, checksum_digits, to_hex(checksum(to_bytes(text))));
  EXPECT_THROW((void)open_bytes(to_bytes(text)), FormatError);
}

TEST(StateImage, refuses_names_that_the_format_cannot_hold) {
  for (auto const& name :
       {std::string("__metadata__"), std::string("\xff"), std::string("a\0b", 3), std::string(1025, 'x')}) {
    StateDict const weights{{name, Tensor::scalar(1.0F)}};
    EXPECT_THROW(ImagePlan(nullptr, weights, {}), UsageError);
  }
}

TEST(StateImage, refuses_to_seal_while_a_checksum_is_missing) {
  auto const weights = small_weights();
  ImagePlan plan(nullptr, weights, {});
  EXPECT_THROW((void)plan.sealed_header(), UsageError);
}

/// Returns a random state dict: any dtype, up to 4 dimensions, small, large and empty tensors.
StateDict random_weights(std::mt19937_64& random) {
  StateDict weights;
  auto const count = random() % 12;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto const dtype = static_cast<Dtype>(random() % dtype_count);
    std::vector<std::int64_t> lengths;
    for (auto left = random() % 4; left > 0; --left) lengths.push_back(static_cast<std::int64_t>(random() % 5));
    lengths.push_back(static_cast<std::int64_t>(4 * (random() % (random() % 8 == 0 ? 200'000 : 6))));
    auto tensor = random() % 10 == 0 ? Tensor{} : Tensor::zeros(Shape(lengths), dtype);
    if (tensor.defined()) {
      for (auto& byte : tensor.mutable_bytes()) byte = static_cast<std::byte>(random());
    }
    weights.insert_or_assign("t" + std::to_string(random() % 20) + (random() % 3 == 0 ? "/\u00e9\"" : ""), tensor);
  }
  return weights;
}

TEST(StateImage, round_trips_any_state_dict) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    auto const weights = random_weights(random);
    auto const bytes = image_of(Json{{"round", round}}, weights);
    expect_same_weights(open_bytes(bytes).read_all().weights, weights);
    EXPECT_TRUE(open_plain(bytes).checked());
  }
}

}  // namespace
}  // namespace crossrank::codec
