#include "lib/core/call_notes.hpp"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace crossrank {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(CallNotes, become_words) {
  CallNotes notes;
  notes.root(2).dtype(Dtype::f32).op(ReduceOp::max).shape(Numbers{4, 6}).tag(70'000).parts(Numbers{1, 300, -1});
  EXPECT_EQ(words_of("reduce", notes.bytes()), "reduce root 2 F32 max [4, 6] with tag 70000 parts 1+300+-1");
  EXPECT_EQ(words_of("barrier", CallNotes().bytes()), "barrier");
}

TEST(CallNotes, name_a_call_that_is_more_than_its_verb) {
  CallNotes notes;
  notes.name("get_tensors_parallel").text("of ranks").ranks(std::vector<int>{0, 1}).text("lazily");
  EXPECT_EQ(words_of("range_open", notes.bytes()), "get_tensors_parallel of ranks [0, 1] lazily");
}

TEST(CallNotes, count_parts_that_are_too_many_for_a_line) {
  EXPECT_EQ(words_of("gatherv", CallNotes().parts(Numbers(9, 1)).bytes()), "gatherv 9 parts");
  EXPECT_EQ(words_of("gatherv", CallNotes().rows_of(Numbers{3, 2}).bytes()), "gatherv rows of [3, 2]");
}

TEST(CallNotes, leave_out_what_does_not_fit) {
  CallNotes notes;
  notes.root(1).shape(Numbers(200, INT64_MAX)).text(std::string(200, 'x')).tag(7);
  EXPECT_EQ(words_of("broadcast", notes.bytes()), "broadcast root 1 ... ... with tag 7");
  for (int i = 0; i < 100; ++i) notes.shape(Numbers{INT64_MAX});
  EXPECT_LE(notes.bytes().size(), CallNotes::most_bytes);
  auto const copy = notes;
  EXPECT_EQ(copy.bytes(), notes.bytes());
}

/// Another process wrote them.
TEST(CallNotes, may_be_any_bytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (auto& c : bytes) c = static_cast<char>(random() % (i % 2 == 0 ? 14 : 256));
    for (char const c : words_of("verb", bytes)) EXPECT_TRUE(c >= 0x20 && c <= 0x7e);
  }
  EXPECT_EQ(words_of("verb", std::string("\x02\x7f", 2)), "verb ...");
}

}  // namespace
}  // namespace crossrank
