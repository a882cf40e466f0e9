#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/config_json.hpp"
#include "tests/codec/safetensors/image_fixture.hpp"

namespace crossrank::codec {
namespace {

// Digests in this file were computed a second time with the Python package xxhash.

Bytes padded_file(std::string header, std::size_t bytes, std::string_view data = {}) {
  header.resize(bytes, ' ');
  return file_of(header, data);
}

TEST(FormatVectors, the_empty_state) {
  EXPECT_EQ(
      image_of(nullptr, {}),
      padded_file(
          R"({"__metadata__":{"format":"pt","crossrank.format":"2","crossrank.rank":"0","crossrank.world_size":"1",)"
          R"("crossrank.job":"","crossrank.writer":"0000000000000000","crossrank.sequence":"0","crossrank.config":"null",)"
          R"("crossrank.order":"","crossrank.absent":"[]","crossrank.checksums":"",)"
          R"("crossrank.header_checksum":"a5ff14158a493d8a"}})",
          376));
}

TEST(FormatVectors, one_tensor_and_an_absent_one) {
  std::vector<std::int16_t> const values{1, -2};
  StateDict const weights{{"w", Tensor::of<std::int16_t>(values, {2})}, {"b", Tensor{}}};
  Json const config{{"k", -std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(
      image_of(config, weights, {.identity = {.rank = 1, .world_size = 2, .job = "j", .writer = 0xab, .sequence = 9}}),
      padded_file(
          R"({"__metadata__":{"format":"pt","crossrank.format":"2","crossrank.rank":"1","crossrank.world_size":"2",)"
          R"("crossrank.job":"j","crossrank.writer":"00000000000000ab","crossrank.sequence":"9",)"
          R"("crossrank.config":"{\"k\":{\"$float\":\"-inf\"}}",)"
          R"("crossrank.order":"0,-","crossrank.absent":"[\"b\"]","crossrank.checksums":"98c9e7b145341bce",)"
          R"("crossrank.header_checksum":"2de7d6a28efc8622"},"w":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}})",
          440, std::string_view("\x01\x00\xfe\xff", 4)));
}

TEST(FormatVectors, checksum_of_no_bytes) { EXPECT_EQ(to_hex(checksum({})), "2d06800538d394c2"); }

TEST(FormatVectors, config_text) {
  auto const config = Json::array({1, -0.0, std::numeric_limits<double>::infinity(), Json::binary({0, 255})});
  EXPECT_EQ(encode_config(config), R"([1,-0.0,{"$float":"inf"},{"$binary":"AP8="}])");
}

TEST(Checksum, is_the_same_in_parts_and_in_one_call) {
  Bytes bytes(100'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31);
  StreamingChecksum running;
  running.update(bytes);
  running.restart();
  for (std::size_t at = 0; at < bytes.size(); at += 777)
    running.update(std::span(bytes).subspan(at, std::min<std::size_t>(777, bytes.size() - at)));
  EXPECT_EQ(running.digest(), checksum(bytes));
}

TEST(Checksum, parses_only_its_own_digits) {
  EXPECT_EQ(from_hex(to_hex(0x0123'4567'89ab'cdefULL)), 0x0123'4567'89ab'cdefULL);
  for (auto const* bad :
       {"", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "0x23456789abcdef", "-123456789abcdef"}) {
    EXPECT_FALSE(from_hex(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace crossrank::codec
