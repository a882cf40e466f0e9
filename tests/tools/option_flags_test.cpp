#include "tools/cli/option_flags.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank::tools {
namespace {

TEST(OptionFlags, stand_in_place_of_the_options_that_the_library_names) {
  EXPECT_EQ(with_flags("give `tp`, `moe_ep` or `model_key` app.model"), "give --tp, --moe-ep or --model-key app.model");
  EXPECT_EQ(with_flags("`resume`"), "--resume");
}

TEST(OptionFlags, leave_other_words_and_stray_marks_alone) {
  for (auto const* text : {"", "`", "``", "`tp", "tp`", "`tpx`", "start with `crossrank run -n 2 -- program`", "a ` b"})
    EXPECT_EQ(with_flags(text), text);
  EXPECT_EQ(with_flags("`x`tp`"), "`x--tp");
}

TEST(OptionFlags, stand_in_all_texts_of_a_json_value) {
  Json const told{{"hint", "set `force`"}, {"details", {"`ep` 2", 7}}, {"`tp`", nullptr}};
  EXPECT_EQ(json_with_flags(told), (Json{{"hint", "set --force"}, {"details", {"--ep 2", 7}}, {"`tp`", nullptr}}));
}

}  // namespace
}  // namespace crossrank::tools
