#include "lib/codec/torch/zip/zip_reader.hpp"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/codec/torch/zip/zip_format.hpp"
#include "tests/codec/torch/torch_fixture.hpp"

namespace crossrank::codec {
namespace {

ZipArchive open(std::string const& file) { return ZipArchive::open(std::make_shared<BytesSource>(to_bytes(file))); }

std::string const two = zip_of({{"a/x", "hello"}, {"a/y", ""}});

/// Returns the section in which `file` is refused.
std::string refusal(std::string const& file) {
  try {
    (void)open(file);
  } catch (FormatError const& e) {
    EXPECT_LE(e.offset(), file.size());
    return e.section();
  }
  return "accepted";
}

template <class Number>
std::string patched(std::string file, std::size_t at, Number value) {
  return file.replace(at, sizeof(value), little(value));
}

std::size_t central(std::size_t nth = 0) {
  auto at = two.find(little(zip::central_magic));
  for (; nth > 0; --nth) at = two.find(little(zip::central_magic), at + 4);
  return at;
}
std::size_t end_at() { return two.size() - zip::end_bytes; }

TEST(ZipArchive, finds_records_and_their_bytes) {
  auto const archive = open(two);
  ASSERT_EQ(archive.records().size(), 2U);
  auto const* const x = archive.find("a/x");
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(archive.read_small(*x, 5), to_bytes("hello"));
  EXPECT_TRUE(archive.crc_holds(*x));
  EXPECT_TRUE(archive.crc_holds(*archive.find("a/y")));
  EXPECT_EQ(archive.find("a/z"), nullptr);
  EXPECT_THROW((void)archive.read_small(*x, 4), FormatError);
}

TEST(ZipArchive, accepts_a_comment_and_refuses_other_bytes) {
  auto const commented = patched<std::uint16_t>(two, two.size() - 2, 3) + "abc";
  EXPECT_EQ(open(commented).records().size(), 2U);
  EXPECT_EQ(refusal(two + "abc"), "zip directory");
}

TEST(ZipArchive, is_refused_when_any_field_is_wrong) {
  auto const first = central();
  std::vector<std::pair<char const*, std::string>> const broken{
      {"truncated", two.substr(0, two.size() - 1)},
      {"empty", ""},
      {"no records counted", patched<std::uint16_t>(patched<std::uint16_t>(two, end_at() + 10, 0), end_at() + 8, 0)},
      {"too many records", patched<std::uint16_t>(patched<std::uint16_t>(two, end_at() + 10, 3), end_at() + 8, 3)},
      {"second volume", patched<std::uint16_t>(two, end_at() + 4, 1)},
      {"directory elsewhere", patched<std::uint32_t>(two, end_at() + 16, 1)},
      {"directory too large", patched<std::uint32_t>(two, end_at() + 12, 0xfffffff0)},
      {"no entry", patched<std::uint32_t>(two, first, 0)},
      {"encrypted", patched<std::uint16_t>(two, first + 8, 1)},
      {"compressed", patched<std::uint16_t>(two, first + 10, 8)},
      {"two sizes", patched<std::uint32_t>(two, first + 20, 4)},
      {"name past the end", patched<std::uint16_t>(two, first + 28, 0xffff)},
      {"zip64 without its field",
       patched<std::uint32_t>(patched<std::uint32_t>(two, first + 20, 0xffffffff), first + 24, 0xffffffff)},
      {"record outside", patched<std::uint32_t>(two, first + 42, 0xfffffff0)},
      {"record elsewhere", patched<std::uint32_t>(two, first + 42, 1)},
      {"records on each other", patched<std::uint32_t>(two, central(1) + 42, 0)},
      {"another name inside", std::string(two).replace(zip::local_bytes, 3, "a/z")},
      {"another size inside", patched<std::uint32_t>(two, 22, 4)},
      {"compressed inside", patched<std::uint16_t>(two, 8, 8)},
      {"data past the directory", patched<std::uint16_t>(two, 28, 0xffff)},
      {"one name twice", zip_of({{"a/x", "1"}, {"a/x", "2"}})},
  };
  for (auto const& [what, file] : broken) EXPECT_THAT(refusal(file), testing::StartsWith("zip ")) << what;
}

TEST(ZipArchive, finds_partial_overlaps) {
  // The data of the first record overlaps the header of the second, in both fields with its size.
  auto const longer = patched<std::uint32_t>(patched<std::uint32_t>(two, 18, 20), 22, 20);
  auto const file = patched<std::uint32_t>(patched<std::uint32_t>(longer, central() + 20, 20), central() + 24, 20);
  EXPECT_EQ(refusal(file), "zip record");
}

TEST(ZipArchive, reads_the_numbers_of_zip64) {
  auto const file = two.substr(0, end_at());
  auto const records = std::uint64_t{2};
  auto const begin = static_cast<std::uint64_t>(central());
  auto const bytes = static_cast<std::uint64_t>(file.size()) - begin;
  auto const end64 = little(zip::end64_magic) + little(std::uint64_t{44}) + std::string(12, '\0') + little(records) +
                     little(records) + little(bytes) + little(begin);
  auto const locator = little(zip::locator_magic) + std::string(4, '\0') +
                       little(static_cast<std::uint64_t>(file.size())) + little(std::uint32_t{1});
  auto const end = little(zip::end_magic) + std::string(4, '\0') + little(std::uint16_t{0xffff}) +
                   little(std::uint16_t{0xffff}) + little(std::uint32_t{0xffffffff}) +
                   little(std::uint32_t{0xffffffff}) + std::string(2, '\0');
  EXPECT_EQ(open(file + end64 + locator + end).records().size(), 2U);
  auto const lying = little(zip::end_magic) + std::string(4, '\0') + little(std::uint16_t{3}) +
                     little(std::uint16_t{3}) + little(std::uint32_t{0xffffffff}) + little(std::uint32_t{0xffffffff}) +
                     std::string(2, '\0');
  EXPECT_EQ(refusal(file + end64 + locator + lying), "zip directory");
}

TEST(ZipArchive, survives_any_truncation_and_any_changed_byte) {
  for (std::size_t size = 0; size < two.size(); ++size) EXPECT_NE(refusal(two.substr(0, size)), "accepted") << size;
  for (std::size_t at = 0; at < two.size(); ++at) {
    for (int const change : {0x01, 0x80, 0xff}) {
      auto file = two;
      file[at] = static_cast<char>(file[at] ^ change);
      (void)refusal(file);
    }
  }
}

}  // namespace
}  // namespace crossrank::codec
