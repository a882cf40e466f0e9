#include "lib/core/error_record.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/spi/foreign_exception.hpp>

#include "lib/core/at_rank.hpp"

namespace crossrank {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

ErrorInfo full_info() {
  return {.operation = "read",
          .message = "the file is short",
          .expected = "8",
          .got = "7",
          .resource = "/data/a",
          .system = "EIO",
          .hint = "write it again",
          .failed_ranks = {0, 1, 2, 7, 4095},
          .details = {"rank 1: gone", "rank 7: slow"},
          .remote_type = "std::bad_alloc",
          .system_errno = 5,
          .section = "header"};
}

TEST(ErrorRecord, keeps_all_fields) {
  auto const info = full_info();
  auto const read = decode_error(encode_error(fields_of(ErrorCode::format, info)));
  EXPECT_EQ(read.code, ErrorCode::format);
  EXPECT_EQ(read.info.failed_ranks, info.failed_ranks);
  EXPECT_EQ(read.info.details, info.details);
  EXPECT_EQ(read.info.system_errno, 5);
  for (auto const field :
       {&ErrorInfo::operation, &ErrorInfo::message, &ErrorInfo::expected, &ErrorInfo::got, &ErrorInfo::resource,
        &ErrorInfo::system, &ErrorInfo::hint, &ErrorInfo::remote_type, &ErrorInfo::section})
    EXPECT_EQ(read.info.*field, info.*field);
}

TEST(ErrorRecord, keeps_a_part_of_every_text_when_space_is_short) {
  auto info = full_info();
  info.hint = std::string(5000, 'h');
  info.message = std::string(5000, 'm');
  info.failed_ranks.resize(4096);
  for (int rank = 0; rank < 4096; ++rank) at_rank(info.failed_ranks, rank) = 2 * rank;
  std::array<std::byte, 628> space{};
  auto const used = encode_error(fields_of(ErrorCode::io, info), space);
  ASSERT_LE(used, space.size());
  auto const read = decode_error(std::span(space).first(used));
  EXPECT_EQ(read.info.resource, "/data/a");
  EXPECT_THAT(read.info.hint, StartsWith("hhhh"));
  EXPECT_GT(read.info.message.size(), 100U);
  ASSERT_GT(read.info.failed_ranks.size(), 40U);
  EXPECT_EQ(read.info.failed_ranks[40], 80);
}

TEST(ErrorRecord, encodes_many_consecutive_ranks_in_few_bytes) {
  ErrorInfo info;
  info.failed_ranks.resize(4000);
  std::iota(info.failed_ranks.begin(), info.failed_ranks.end(), 90);
  auto const bytes = encode_error(fields_of(ErrorCode::peer_lost, info));
  EXPECT_LT(bytes.size(), 16U);
  EXPECT_EQ(decode_error(bytes).info.failed_ranks, info.failed_ranks);
}

TEST(ErrorRecord, truncates_a_text_after_16_kib) {
  ErrorInfo info;
  info.message = std::string(100'000, 'm');
  EXPECT_EQ(decode_error(encode_error(fields_of(ErrorCode::io, info))).info.message.size(), std::size_t{16} << 10);
}

/// A peer may write any bytes.
TEST(ErrorRecord, reads_damaged_bytes_without_harm) {
  auto const good = encode_error(fields_of(ErrorCode::format, full_info()));
  for (std::size_t size = 0; size < good.size(); ++size) static_cast<void>(decode_error(std::span(good).first(size)));
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (unsigned const value : {0U, 1U, 0x7fU, 0x80U, 0xffU}) {
      auto bad = good;
      bad[at] = static_cast<std::byte>(value);
      EXPECT_LT(decode_error(bad).info.failed_ranks.size(), 70'000U);
    }
  }
  std::vector<std::byte> const ones(4096, std::byte{0xff});
  auto const read = decode_error(ones);
  EXPECT_EQ(read.code, ErrorCode::backend);
  EXPECT_THAT(read.info.failed_ranks, IsEmpty());
}

TEST(ErrorRecord, describes_an_exception_by_type_and_text) {
  auto const of_library = describe_exception(
      std::make_exception_ptr(IoError({.operation = "open", .message = "no such file", .resource = "/a", .rank = 3})));
  EXPECT_EQ(of_library.code, ErrorCode::io);
  EXPECT_EQ(of_library.info.remote_type, "crossrank::IoError");
  EXPECT_EQ(of_library.text(), "open: no such file; resource /a");
  auto const standard = describe_exception(std::make_exception_ptr(std::out_of_range("there is no row 7")));
  EXPECT_EQ(standard.code, ErrorCode::remote);
  EXPECT_EQ(standard.info.remote_type, "std::out_of_range");
  EXPECT_EQ(standard.text(), "there is no row 7");
  EXPECT_EQ(describe_exception(std::make_exception_ptr(7)).info.remote_type, "int");
}

class ScriptError final : public std::exception, public spi::ForeignException {
 public:
  [[nodiscard]] char const* what() const noexcept override { return "a trace of calls"; }
  [[nodiscard]] std::string type_name() const override { return "ValueError"; }
  [[nodiscard]] std::string message() const override { return "not a number"; }
};

TEST(ErrorRecord, describes_an_exception_of_another_language_by_its_names_there) {
  auto const record = describe_exception(std::make_exception_ptr(ScriptError()));
  EXPECT_EQ(record.info.remote_type, "ValueError");
  EXPECT_EQ(record.text(), "not a number");
}

TEST(ErrorRecord, names_every_failed_rank_in_the_error_of_the_others) {
  auto const error = remote_error({.operation = "gather", .rank = 0, .world_size = 4},
                                  {{.rank = 1, .error = {ErrorCode::io, {.message = "no space", .remote_type = "A"}}},
                                   {.rank = 3, .error = {ErrorCode::io, {.message = "no file", .remote_type = "B"}}}});
  EXPECT_THAT(error.info().failed_ranks, ElementsAre(1, 3));
  EXPECT_EQ(error.remote_type(), "A");
  EXPECT_THAT(error.what(), HasSubstr("rank 1 could not do its part: no space"));
  EXPECT_THAT(error.info().details, ElementsAre("rank 1: A: no space", "rank 3: B: no file"));
}

}  // namespace
}  // namespace crossrank
