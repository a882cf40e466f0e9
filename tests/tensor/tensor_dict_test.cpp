#include <crossrank/tensor_dict.hpp>

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/split_config.hpp>

#include "tests/support/error_of.hpp"

namespace crossrank {
namespace {

TensorDict tree() {
  return {{"hidden", Tensor::scalar(1.5F)},
          {"step", 3},
          {"lens", Json{1, 2, 3}},
          {"layers", TensorDict::List{TensorDict{{"weight", Tensor::scalar(7)}, {"bias", Tensor{}}}, "text", nullptr}},
          {"plain", TensorDict{{"a", 1}}}};
}

TEST(TensorDict, returns_each_kind_of_value) {
  auto const dict = tree();
  EXPECT_EQ(dict.tensor("hidden").item<float>(), 1.5F);
  EXPECT_EQ(dict.get<int>("step"), 3);
  EXPECT_EQ(dict.get<std::vector<int>>("lens"), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(dict.dict("plain").get<int>("a"), 1);
  EXPECT_EQ(dict.list("layers").size(), 3U);
}

TEST(TensorDict, refuses_another_kind_or_an_unknown_key_by_name) {
  auto const dict = tree();
  EXPECT_THROW((void)dict.tensor("step"), UsageError);
  EXPECT_THROW((void)dict.json("hidden"), UsageError);
  EXPECT_THROW((void)dict.dict("layers"), UsageError);
  EXPECT_THROW((void)dict.list("nowhere"), UsageError);
  try {
    (void)dict.get<std::string>("step");
    FAIL() << "converted";
  } catch (UsageError const& e) {
    EXPECT_EQ(e.info().resource, "step");
  }
  auto const got_of = [&](auto const& call) {
    try {
      call();
    } catch (UsageError const& e) {
      return e.info().got;
    }
    return std::string("no error");
  };
  EXPECT_EQ(got_of([&] { (void)dict.tensor("step"); }), "a JSON number");
  EXPECT_EQ(got_of([&] { (void)dict.json("hidden"); }), "a tensor");
  EXPECT_NE(got_of([&] { (void)dict.at("nowhere"); }).find("\"step\""), std::string::npos) << "the keys there are";
  EXPECT_EQ(test::error_of<UsageError>([&] { (void)dict.at("hiden"); }).hint, "did you mean hidden?");
}

TEST(TensorDict, keeps_order_replaces_and_erases) {
  auto dict = tree();
  dict.set("step", 4);
  EXPECT_TRUE(dict.erase("hidden"));
  EXPECT_FALSE(dict.erase("hidden"));
  EXPECT_EQ(dict.begin()->first, "step");
  EXPECT_EQ(dict.get<int>("step"), 4);
  EXPECT_EQ(dict.size(), 4U);
}

TEST(TensorDict, refuses_numbers_that_the_type_cannot_hold) {
  TensorDict const dict{{"large", 300},
                        {"negative", -1},
                        {"fraction", 1.5},
                        {"whole", 2.0},
                        {"most", std::numeric_limits<std::uint64_t>::max()},
                        {"flag", true}};
  EXPECT_THROW((void)dict.get<std::int8_t>("large"), UsageError);
  EXPECT_THROW((void)dict.get<std::uint32_t>("negative"), UsageError);
  EXPECT_THROW((void)dict.get<int>("fraction"), UsageError);
  EXPECT_THROW((void)dict.get<std::int64_t>("most"), UsageError);
  EXPECT_EQ(dict.get<std::int16_t>("large"), 300);
  EXPECT_EQ(dict.get<int>("whole"), 2);
  EXPECT_EQ(dict.get<std::uint64_t>("most"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(dict.get<float>("fraction"), 1.5F);
  EXPECT_TRUE(dict.get<bool>("flag"));
}

TEST(TensorDict, can_be_replaced_by_a_part_of_itself) {
  auto const nested = [] {
    TensorDict inner;
    for (int i = 0; i < 40; ++i) inner.set("key" + std::to_string(i), i);
    return TensorDict{{"x", inner}, {"y", 2}};
  };
  auto copied = nested();
  copied = copied.dict("x");
  EXPECT_EQ(copied.size(), 40U);
  auto moved = nested();
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): as a program that owns the value can do
  moved = std::move(const_cast<TensorDict&>(moved.dict("x")));
  EXPECT_EQ(moved.get<int>("key39"), 39);
  TensorDict::Value value = TensorDict::List{TensorDict::List{7, 8}, 3};
  value = value.list()->front();
  EXPECT_EQ(value.list()->size(), 2U);
  value = value.list()->back();
  EXPECT_EQ(*value.json(), 8);
}

TEST(TensorDict, erases_only_the_entry_whose_own_key_it_gets) {
  TensorDict dict{{"a", 1}, {"bcd", 2}, {"b", 3}};
  EXPECT_TRUE(dict.erase(dict.begin()->first));
  EXPECT_EQ(dict.size(), 2U);
  EXPECT_EQ(dict.get<int>("b"), 3);
}

TEST(SplitConfig, puts_tensors_under_their_dotted_paths) {
  auto const state = split_config_and_weights(tree());
  EXPECT_EQ(state.weights.size(), 2U);
  EXPECT_EQ(state.weights.at("layers.0.weight").item<int>(), 7);
  EXPECT_EQ(
      state.config.dump(),
      R"({"hidden":{"$tensor":"hidden"},"step":3,"lens":[1,2,3],)"
      R"("layers":[{"weight":{"$tensor":"layers.0.weight"},"bias":{"$tensor":null}},"text",null],"plain":{"a":1}})");
}

TEST(SplitConfig, is_undone_by_join) {
  auto const joined = join_config_and_weights(split_config_and_weights(tree()));
  EXPECT_EQ(joined.tensor("hidden").data(), joined.tensor("hidden").data());
  EXPECT_EQ(joined.get<int>("step"), 3);
  auto const& layers = joined.list("layers");
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(layers[0].dict()->tensor("weight").item<int>(), 7);
  EXPECT_FALSE(layers[0].dict()->tensor("bias").defined());
  EXPECT_EQ(*layers[1].json(), "text");
  EXPECT_EQ(joined.json("plain").at("a"), 1);
  auto const again = split_config_and_weights(joined);
  EXPECT_EQ(again.config, split_config_and_weights(tree()).config);
}

// In ModelOpt's function, a string equal to a weight's name comes back as that tensor.
TEST(SplitConfig, keeps_a_string_that_equals_a_weight_key) {
  TensorDict const dict{{"w", Tensor::scalar(1)}, {"note", "w"}};
  EXPECT_EQ(join_config_and_weights(split_config_and_weights(dict)).get<std::string>("note"), "w");
}

// In ModelOpt's function, entries accumulate from call to call.
TEST(SplitConfig, keeps_no_state_between_calls) {
  (void)split_config_and_weights(tree());
  auto const second = split_config_and_weights(TensorDict{{"x", Tensor::scalar(1)}});
  EXPECT_EQ(second.weights.size(), 1U);
  EXPECT_EQ(second.config.size(), 1U);
}

TEST(SplitConfig, keeps_values_of_the_user_that_look_like_placeholders) {
  for (auto const* text :
       {R"({"$tensor":"w"})", R"({"$$tensor":null})", R"([{"$tensor":1}])", R"({"$tensor":{"$tensor":"w"}})"}) {
    TensorDict const dict{{"w", Tensor::scalar(1)}, {"user", Json::parse(text)}};
    auto const state = split_config_and_weights(dict);
    EXPECT_EQ(join_config_and_weights(state).json("user"), Json::parse(text)) << text;
  }
  TensorDict const root{{"$tensor", "w"}};
  EXPECT_EQ(join_config_and_weights(split_config_and_weights(root)).get<std::string>("$tensor"), "w");
  TensorDict const nested{{"a", TensorDict{{"$tensor", Tensor::scalar(5)}}}};
  EXPECT_EQ(join_config_and_weights(split_config_and_weights(nested)).dict("a").tensor("$tensor").item<int>(), 5);
}

TEST(SplitConfig, refuses_two_tensors_with_one_dotted_path) {
  TensorDict const dict{{"a.b", Tensor::scalar(1)}, {"a", TensorDict{{"b", Tensor::scalar(2)}}}};
  EXPECT_THROW((void)split_config_and_weights(dict), UsageError);
}

TEST(JoinConfig, adds_weights_that_no_placeholder_names) {
  RankState const state{Json::object(), {{"w", Tensor::scalar(1)}}};
  EXPECT_EQ(join_config_and_weights(state).tensor("w").item<int>(), 1);
  EXPECT_THROW((void)join_config_and_weights({Json{{"w", 1}}, {{"w", Tensor::scalar(1)}}}), UsageError);
}

TEST(JoinConfig, refuses_a_placeholder_without_a_weight_and_a_config_that_is_not_an_object) {
  EXPECT_THROW((void)join_config_and_weights({Json{{"a", {{"$tensor", "gone"}}}}, {}}), UsageError);
  EXPECT_THROW((void)join_config_and_weights({Json{{"a", {{"$tensor", 3}}}}, {}}), UsageError);
  EXPECT_THROW((void)join_config_and_weights({Json(nullptr), {}}), UsageError);
}

}  // namespace
}  // namespace crossrank
