#include "tools/launch/line_prefixer.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace {

using crossrank::tools::LinePrefixer;

TEST(LinePrefixer, gives_the_same_lines_for_every_split_of_the_input) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (auto length = random() % 2000; length > 0; --length)
      text += random() % 10 == 0 ? '\n' : static_cast<char>(random() % 256);
    std::string whole;
    LinePrefixer one("[3]");
    one.add(text, whole);
    one.finish(whole);
    std::string pieces;
    LinePrefixer many("[3]");
    for (std::string_view rest = text; !rest.empty();) {
      auto const count = std::min<std::size_t>(rest.size(), 1 + random() % 40);
      many.add(rest.substr(0, count), pieces);
      rest.remove_prefix(count);
    }
    many.finish(pieces);
    ASSERT_EQ(pieces, whole);
  }
}

TEST(LinePrefixer, does_not_split_a_line_of_exactly_the_limit) {
  std::string out;
  LinePrefixer lines("[0]");
  std::string const longest(LinePrefixer::max_line, 'x');
  lines.add(longest + "\n", out);
  EXPECT_EQ(out, "[0] " + longest + "\n");
  out.clear();
  lines.add(longest, out);
  EXPECT_EQ(out, "");
  lines.add("y\n", out);
  EXPECT_EQ(out, "[0] " + longest + "\n[0]+ y\n");
  out.clear();
  lines.add("next\n", out);
  EXPECT_EQ(out, "[0] next\n");
}

TEST(LinePrefixer, keeps_every_byte_without_a_prefix) {
  std::string const text = std::string(LinePrefixer::max_line * 2 + 5, 'x') + "\nend";
  std::string out;
  LinePrefixer lines("");
  lines.add(text, out);
  lines.finish(out);
  EXPECT_EQ(out, text);
}

}  // namespace
