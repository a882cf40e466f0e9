#include "workspace/nfs/state_file_names.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank::workspace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string const name_of_seven = "rank_7_state.00000000000000ab-0000000c.safetensors";

TEST(StateFileName, has_a_name_that_parses_back) {
  StateFileName const file{.rank = 7, .writer = 0xab, .counter = 12};
  EXPECT_EQ(file.name(), name_of_seven);
  EXPECT_EQ(parse_state_file_name(file.name()), file);
  StateFileName const large{.rank = 123'456, .writer = ~std::uint64_t{0}, .counter = ~std::uint32_t{0}};
  EXPECT_EQ(parse_state_file_name(large.name()), large);
}

TEST(StateFileName, of_a_gather_is_no_state) {
  StateFileName const file{.rank = 7, .writer = 0xab, .counter = 12, .of_gather = true};
  EXPECT_EQ(file.name(), "rank_7_gather.00000000000000ab-0000000c.safetensors");
  EXPECT_EQ(parse_state_file_name(file.name()), file);
  auto const files = files_of_rank({file.name(), name_of_seven}, 7);
  EXPECT_THAT(files.of_gathers, ElementsAre(file));
  EXPECT_THAT(files.states, ElementsAre(*parse_state_file_name(name_of_seven)));
}

TEST(StateFileName, is_not_parsed_from_other_names) {
  for (auto const* name :
       {"", "rank_", "rank_7_state.pth", "rank_7_state.00000000000000ab-0000000c.safetensor",
        "rank_7_state.00000000000000ab-0000000c.safetensors2", "xrank_7_state.00000000000000ab-0000000c.safetensors",
        "rank_07_state.00000000000000ab-0000000c.safetensors", "rank_-7_state.00000000000000ab-0000000c.safetensors",
        "rank_+7_state.00000000000000ab-0000000c.safetensors", "rank_7_state.00000000000000AB-0000000c.safetensors",
        "rank_7_state.0000000000000ab-0000000c.safetensors", "rank_7_state.00000000000000ab-000000c.safetensors",
        "rank_7_state.00000000000000ab_0000000c.safetensors", "rank__state.00000000000000ab-0000000c.safetensors",
        "rank_99999999999_state.00000000000000ab-0000000c.safetensors",
        "rank_7_state.0x000000000000ab-0000000c.safetensors"}) {
    EXPECT_FALSE(parse_state_file_name(name).has_value()) << name;
  }
}

TEST(StateFileName, is_recognised_inside_a_temporary) {
  EXPECT_EQ(parse_temporary('.' + name_of_seven + ".0123456789abcdef.crossrank.tmp")->name(), name_of_seven);
  EXPECT_FALSE(parse_temporary(name_of_seven).has_value());
  EXPECT_FALSE(parse_temporary(".model.safetensors.0123456789abcdef.crossrank.tmp").has_value());
}

TEST(FilesOfRank, are_sorted_newest_first) {
  StateFileName const old{.rank = 1, .writer = 5, .counter = 9};
  StateFileName const newer{.rank = 1, .writer = 5, .counter = 10};
  StateFileName const of_other{.rank = 11, .writer = 5, .counter = 11};
  auto const files = files_of_rank({old.name(), of_other.name(), '.' + newer.name() + ".0123456789abcdef.crossrank.tmp",
                                    newer.name(), "rank_11_state.pth", "notes.txt"},
                                   1);
  EXPECT_THAT(files.states, ElementsAre(newer, old));
  EXPECT_EQ(files.temporaries.size(), 1U);
  EXPECT_FALSE(files.torch);
}

TEST(RequireOneWriter, names_both_files_when_there_are_two) {
  StateFileName const ours{.rank = 1, .writer = 5, .counter = 9};
  StateFileName const theirs{.rank = 1, .writer = 6, .counter = 3};
  auto const got = [](RankFiles const& files) -> std::string {
    try {
      (void)require_one_writer(files, 1, "/dir", "read");
    } catch (FormatError const& error) {
      EXPECT_EQ(error.info().resource, "/dir");
      return error.info().got;
    }
    return "no error";
  };
  EXPECT_EQ(got(files_of_rank({ours.name()}, 1)), "no error");
  EXPECT_THAT(got(files_of_rank({ours.name(), theirs.name()}, 1)),
              ::testing::AllOf(HasSubstr(ours.name()), HasSubstr(theirs.name())));
  EXPECT_THAT(got(files_of_rank({ours.name(), "rank_1_state.pth"}, 1)),
              ::testing::AllOf(HasSubstr(ours.name()), HasSubstr("rank_1_state.pth")));
}

TEST(NextStateFile, never_returns_a_name_twice) {
  auto const first = next_state_file(3);
  auto const second = next_state_file(3);
  EXPECT_EQ(first.rank, 3);
  EXPECT_EQ(first.writer, second.writer);
  EXPECT_LT(first.counter, second.counter);
  EXPECT_TRUE(is_of_this_process(second));
  EXPECT_FALSE(is_of_this_process({.rank = 3, .writer = first.writer + 1, .counter = first.counter}));
}

TEST(NextStateFile, draws_a_new_writer_in_a_forked_child) {
  auto const mine = next_state_file(3);
  pid_t const child = ::fork();
  if (child == 0) ::_exit(!is_of_this_process(mine) && next_state_file(3).writer != mine.writer ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace crossrank::workspace
