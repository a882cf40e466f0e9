// A tree with many keys costs time in proportion to its size.
#include <crossrank/split_config.hpp>
#include <crossrank/tensor_dict.hpp>

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "tests/support/growth.hpp"

namespace crossrank {
namespace {

using test::growth;
using test::max_growth;

std::string key(int number) { return "a key of some length " + std::to_string(number); }

TensorDict filled(int keys) {
  TensorDict dict;
  for (int i = 0; i < keys; ++i) dict.set(key(i), i % 2 == 0 ? TensorDict::Value(i) : TensorDict::Value(Tensor{}));
  return dict;
}

TEST(TensorDict, finds_and_replaces_keys_of_dictionaries_of_any_size) {
  for (int const keys : {1, 15, 16, 17, 18, 33, 200}) {
    auto dict = filled(keys);
    for (int i = 0; i < keys; ++i) dict.set(key(i), -i);
    EXPECT_EQ(dict.size(), as_size(keys));
    auto const copy = dict;
    EXPECT_TRUE(dict.erase(key(keys / 2)));
    EXPECT_FALSE(dict.contains(key(keys / 2)));
    for (int i = 0; i < keys; ++i) {
      EXPECT_EQ(copy.get<int>(key(i)), -i) << keys;
      EXPECT_EQ(dict.contains(key(i)), i != keys / 2) << keys;
    }
    auto moved = std::move(dict);
    moved.set("new", 1);
    EXPECT_EQ(moved.get<int>("new"), 1);
    EXPECT_FALSE(moved.contains("newer"));
  }
}

TEST(TensorDict, can_be_filled_again_after_a_move) {
  auto dict = filled(100);
  auto const moved = std::move(dict);
  dict = TensorDict();
  dict.set("a", 1);
  EXPECT_EQ(dict.size(), 1U);
  EXPECT_EQ(moved.size(), 100U);
}

TEST(TensorDict, takes_linear_time_to_fill) {
  EXPECT_LT(growth([](int keys) { EXPECT_EQ(filled(keys).size(), as_size(keys)); }), max_growth);
}

TEST(SplitConfig, takes_linear_time_for_many_keys) {
  EXPECT_LT(growth([](int keys) {
              auto const state = split_config_and_weights(filled(keys));
              EXPECT_EQ(join_config_and_weights(state).size(), as_size(keys));
            }),
            max_growth);
}

TEST(SplitConfig, takes_linear_time_for_values_under_a_long_key) {
  EXPECT_LT(growth([](int keys) {
              TensorDict const tree{{std::string(as_size(keys) * 16, 'k'),
                                     TensorDict::List(as_size(keys) * 8, TensorDict::Value(TensorDict{}))}};
              EXPECT_EQ(split_config_and_weights(tree).config.size(), 1U);
            }),
            max_growth);
}

TEST(JoinConfig, takes_linear_time_for_nested_values) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr int few = 100;  // a frame of the recursion is several times as large
#else
  constexpr int few = 500;
#endif
  EXPECT_LT(growth(
                [](int keys) {
                  Json config = 1;
                  for (int i = 0; i < keys; ++i) config = Json{{"a", std::move(config)}};
                  EXPECT_EQ(join_config_and_weights({.config = std::move(config)}).size(), 1U);
                },
                few),
            max_growth);
}

}  // namespace
}  // namespace crossrank
