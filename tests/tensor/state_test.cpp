#include <crossrank/state.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/error_of.hpp"

namespace crossrank {
namespace {

std::vector<std::string> names_of(StateDict const& state) {
  std::vector<std::string> names;
  for (auto const& [name, tensor] : state) names.push_back(name);
  return names;
}

TEST(StateDict, keeps_the_order_of_insertion) {
  StateDict state{{"z", Tensor::scalar(1)}, {"a", Tensor::scalar(2)}, {"m", Tensor{}}};
  state.insert_or_assign("z", Tensor::scalar(3));
  EXPECT_EQ(names_of(state), (std::vector<std::string>{"z", "a", "m"}));
  EXPECT_EQ(state.at("z").item<int>(), 3);
  EXPECT_TRUE(state.contains("m"));
  EXPECT_FALSE(state.at("m").defined());
  EXPECT_EQ(state.nbytes(), 8U);
}

TEST(StateDict, names_the_missing_tensor) {
  StateDict const state;
  EXPECT_EQ(state.find("w"), nullptr);
  try {
    (void)state.at("layers.0.weight");
    FAIL() << "found";
  } catch (UsageError const& e) {
    EXPECT_EQ(e.info().resource, "layers.0.weight");
    EXPECT_EQ(e.info().hint, "");
  }
}

TEST(StateDict, suggests_the_nearest_name) {
  StateDict const state{{"layers.0.weight", Tensor::scalar(1)}, {"norm.bias", Tensor::scalar(2)}};
  auto const error = test::error_of<UsageError>([&] { (void)state.at("layers.0.wieght"); });
  EXPECT_EQ(error.hint, "did you mean layers.0.weight?");
}

TEST(StateDict, puts_an_erased_name_at_the_end_when_it_is_added_again) {
  StateDict state{{"a", Tensor::scalar(1)}, {"b", Tensor::scalar(2)}};
  EXPECT_TRUE(state.erase("a"));
  EXPECT_FALSE(state.erase("a"));
  EXPECT_EQ(state.size(), 1U);
  EXPECT_EQ(state.begin()->first, "b");
  state.insert_or_assign("a", Tensor::scalar(3));
  EXPECT_EQ(names_of(state), (std::vector<std::string>{"b", "a"}));
}

TEST(StateDict, releases_an_erased_tensor_at_once) {
  int given_back = 0;
  int memory = 0;
  StateDict state{{"w", Tensor::from_blob(&memory, {1}, Dtype::i32, [&](void*) { ++given_back; })}};
  state.erase("w");
  EXPECT_EQ(given_back, 1);
}

TEST(StateDict, is_empty_and_usable_after_it_was_moved_from) {
  StateDict from{{"a", Tensor::scalar(1)}};
  auto to = std::move(from);
  EXPECT_EQ(to.size(), 1U);
  EXPECT_TRUE(from.empty());           // NOLINT(bugprone-use-after-move): tests that it is empty
  EXPECT_EQ(from.find("a"), nullptr);  // NOLINT(clang-analyzer-cplusplus.Move): see above
  from.insert_or_assign("b", Tensor::scalar(2));
  from = std::move(to);
  EXPECT_EQ(names_of(from), (std::vector<std::string>{"a"}));
}

TEST(StateDict, moves_no_entry_when_others_come_and_go) {
  StateDict state{{"kept", Tensor::scalar(7)}};
  auto const* const kept = state.find("kept");
  for (int i = 0; i < 70; ++i) {
    auto const name = "w" + std::to_string(i);
    state[name] = state.at("kept");
    state.insert_or_assign("kept", Tensor::scalar(i));
    EXPECT_FALSE(state.insert("kept", Tensor{}).second);
    ASSERT_EQ(state.find("kept"), kept) << name;
  }
  for (int i = 0; i < 70; ++i) EXPECT_TRUE(state.erase("w" + std::to_string(i)));
  EXPECT_EQ(state.find("kept"), kept);
  EXPECT_EQ(kept->item<int>(), 69);
}

/// PyTorch's `state[new] = state.pop(old)`.
TEST(StateDict, renames_entries_one_by_one) {
  StateDict state;
  for (int i = 0; i < 70; ++i) state.insert("old" + std::to_string(i), Tensor::scalar(i));
  for (int i = 0; i < 70; ++i) {
    state["new" + std::to_string(i)] = state.at("old" + std::to_string(i));
    state.erase("old" + std::to_string(i));
  }
  EXPECT_EQ(state.size(), 70U);
  EXPECT_EQ(state.begin()->first, "new0");
  for (int i = 0; i < 70; ++i) EXPECT_EQ(state.at("new" + std::to_string(i)).item<int>(), i);
}

TEST(StateDict, copies_share_tensors_but_not_entries) {
  StateDict const first{{"a", Tensor::scalar(1)}};
  auto second = first;
  second.insert_or_assign("b", Tensor{});
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(first.at("a").data(), second.at("a").data());
}

TEST(StateDict, adds_an_unknown_name_in_brackets) {
  StateDict state{{"a", Tensor::scalar(1)}};
  EXPECT_EQ(state["a"].item<int>(), 1);
  state["b"] = Tensor::scalar(2);
  EXPECT_FALSE(state["c"].defined());
  state["a"] = Tensor::scalar(3);
  EXPECT_EQ(names_of(state), (std::vector<std::string>{"a", "b", "c"}));
  auto const& constant = state;
  EXPECT_EQ(constant["a"].item<int>(), 3);
  EXPECT_THROW((void)constant["d"], UsageError);
  EXPECT_EQ(state.size(), 3U);
}

TEST(StateDict, inserts_only_new_names) {
  StateDict state;
  auto const [first, added] = state.insert("a", Tensor::scalar(1));
  EXPECT_TRUE(added);
  EXPECT_EQ(first->first, "a");
  auto const [again, replaced] = state.insert({"a", Tensor::scalar(2)});
  EXPECT_FALSE(replaced);
  EXPECT_EQ(again->second.item<int>(), 1);
  again->second = Tensor::scalar(5);
  EXPECT_EQ(state.at("a").item<int>(), 5);
  EXPECT_TRUE(state.insert("b", Tensor{}).second);
  EXPECT_EQ(names_of(state), (std::vector<std::string>{"a", "b"}));
}

/// Replacing a tensor changes only this dictionary. No byte is copied or written.
TEST(StateDict, replaces_tensors_during_iteration) {
  StateDict const original{{"a", Tensor::scalar(1)}, {"hole", Tensor{}}, {"b", Tensor::scalar(2)}};
  auto state = original;
  state.erase("hole");
  for (auto& [name, tensor] : state) {
    EXPECT_EQ(tensor.data(), original.at(name).data());
    tensor = Tensor::scalar(10 * tensor.item<int>());
  }
  EXPECT_EQ(state.at("a").item<int>(), 10);
  EXPECT_EQ(state.at("b").item<int>(), 20);
  EXPECT_EQ(original.at("a").item<int>(), 1);
  if (auto* const found = state.find("b")) *found = Tensor{};
  EXPECT_FALSE(state.at("b").defined());
  EXPECT_EQ(state.find("c"), nullptr);
  auto const at = std::find_if(state.begin(), state.end(), [](auto const& entry) { return entry.first == "b"; });
  EXPECT_NE(at, state.end());
  StateDict::const_iterator const same = at;
  EXPECT_EQ(same->first, "b");
}

/// A storage whose bytes others hold.
class FrozenStorage final : public spi::Storage {
 public:
  [[nodiscard]] std::byte* data() noexcept override { return bytes_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return sizeof bytes_; }
  [[nodiscard]] std::string frozen_by() const override { return "rank 1 reads it"; }

 private:
  alignas(4) std::byte bytes_[4] = {};
};

TEST(StateDict, refuses_writes_to_tensors_that_others_hold) {
  StateDict state{{"w", spi::tensor_from_storage(std::make_shared<FrozenStorage>(), 0, {}, Dtype::i32)}};
  for (auto& [name, tensor] : state) EXPECT_THROW((void)tensor.as_mutable<std::int32_t>(), UsageError);
  EXPECT_THROW((void)state["w"].as_mutable<std::int32_t>(), UsageError);
  EXPECT_THROW((void)state.find("w")->mutable_bytes(), UsageError);
  state["w"] = state["w"].clone();
  state["w"].as_mutable<std::int32_t>()[0] = 7;
  EXPECT_EQ(state.at("w").item<int>(), 7);
}

/// A slow reference implementation with a list of pairs.
class Model {
 public:
  void insert_or_assign(std::string const& name, int value) {
    if (auto const at = place(name); at != entries_.end()) {
      at->second = value;
    } else {
      entries_.emplace_back(name, value);
    }
  }
  bool erase(std::string const& name) {
    auto const at = place(name);
    if (at == entries_.end()) return false;
    entries_.erase(at);
    return true;
  }
  void expect_same(StateDict const& state) const {
    ASSERT_EQ(state.size(), entries_.size());
    auto other = state.begin();
    for (auto const& [name, value] : entries_) {
      ASSERT_EQ(other->first, name);
      ASSERT_EQ(other->second.item<int>(), value);
      ASSERT_EQ(state.at(name).item<int>(), value);
      ++other;
    }
    EXPECT_EQ(other, state.end());
  }

 private:
  std::vector<std::pair<std::string, int>>::iterator place(std::string const& name) {
    return std::find_if(entries_.begin(), entries_.end(), [&](auto const& entry) { return entry.first == name; });
  }
  std::vector<std::pair<std::string, int>> entries_;
};

TEST(StateDict, behaves_like_a_list_of_pairs) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  StateDict state;
  Model model;
  for (int step = 0; step < 3000; ++step) {
    auto const name = "n" + std::to_string(random() % 90);
    if (random() % 100 < (step / 500 % 2 == 0 ? 70U : 30U)) {
      if (step % 3 == 0) {
        state[name] = Tensor::scalar(step);
      } else if (step % 3 == 1) {
        auto const [entry, added] = state.insert(name, Tensor::scalar(step));
        if (!added) entry->second = Tensor::scalar(step);
      } else {
        state.insert_or_assign(name, Tensor::scalar(step));
      }
      model.insert_or_assign(name, step);
    } else {
      EXPECT_EQ(state.erase(name), model.erase(name));
    }
    if (random() % 200 == 0) state.reserve(random() % 300);
    if (step % 20 == 0) model.expect_same(state);
  }
  model.expect_same(state);
}

}  // namespace
}  // namespace crossrank
