#include "lib/core/text/terminal_text.hpp"

#include <string>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

TEST(TerminalText, keeps_plain_text_of_every_language) {
  for (std::string const text : {"", "model.layers.0.mlp", "na\u00efve \u65e5\u672c \U0001f600", "a\\b \"c\""})
    EXPECT_EQ(terminal_text(text), text);
}

TEST(TerminalText, escapes_terminal_commands) {
  EXPECT_EQ(terminal_text("\x1b[2Ja\x07"), "\\x1b[2Ja\\x07");
  EXPECT_EQ(terminal_text("a\nb\rc\td\x7f"), "a\\nb\\rc\\td\\x7f");
  EXPECT_EQ(terminal_text("\u009b31m"), "\\x9b31m");
  EXPECT_EQ(terminal_text("\u202egnp.exe"), "\\u202egnp.exe");
  EXPECT_EQ(terminal_text(std::string("a\0b", 3)), "a\\x00b");
}

TEST(TerminalText, escapes_malformed_utf8_byte_by_byte) {
  EXPECT_EQ(terminal_text("\xff\xc3("), "\\xff\\xc3(");
  EXPECT_EQ(terminal_text("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(terminal_text("\x9b"), "\\x9b");
}

TEST(TerminalText, is_used_in_error_texts) {
  FormatError const error({.operation = "read",
                           .message = "two lines\nof ours",
                           .got = "\x1b[31m",
                           .resource = "a\x1b]0;title\x07",
                           .details = {"first \x1b[0m"}});
  for (auto const& text : {std::string(error.what()), error.report()}) {
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
    EXPECT_EQ(text.find('\x07'), std::string::npos) << text;
  }
  EXPECT_EQ(error.info().got, "\x1b[31m") << "programs get the bytes";
}

}  // namespace
}  // namespace crossrank
