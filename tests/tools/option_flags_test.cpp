#include "tools/cli/option_flags.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank::tools {
namespace {

TEST(OptionFlags, replace_the_option_names_of_the_library) {
  EXPECT_EQ(with_flags("give `tp`, `moe_ep` or `model_key` app.model"), "give --tp, --moe-ep or --model-key app.model");
  EXPECT_EQ(with_flags("`resume`"), "--resume");
}

TEST(OptionFlags, name_the_grid_of_the_input_or_of_the_result) {
  for (auto const* command : {"split", "convert"}) {
    EXPECT_EQ(with_flags("set `tp`, `pp`, `ep` or `moe_ep`", command),
              "set --from-tp, --from-pp, --from-ep or --from-moe-ep");
    EXPECT_EQ(with_flags("leave `moe_ep` of the result at 1", command), "leave --moe-ep at 1");
    EXPECT_EQ(with_flags("`crc` ignore", command), "--crc ignore");
  }
  EXPECT_EQ(with_flags("set `tp` or `moe_ep` of the result", "consolidate"), "set --tp or --moe-ep");
  EXPECT_EQ(json_with_flags({"set `tp`"}, "split"), Json({"set --from-tp"}));
}

TEST(OptionFlags, leave_other_words_and_single_marks_unchanged) {
  for (auto const* text : {"", "`", "``", "`tp", "tp`", "`tpx`", "start with `crossrank run -n 2 -- program`", "a ` b"})
    EXPECT_EQ(with_flags(text), text);
  EXPECT_EQ(with_flags("`x`tp`"), "`x--tp");
}

TEST(OptionFlags, replace_the_names_in_all_strings_of_a_json_value) {
  Json const error{{"hint", "set `force`"}, {"details", {"`ep` 2", 7}}, {"`tp`", nullptr}};
  EXPECT_EQ(json_with_flags(error), (Json{{"hint", "set --force"}, {"details", {"--ep 2", 7}}, {"`tp`", nullptr}}));
}

}  // namespace
}  // namespace crossrank::tools
