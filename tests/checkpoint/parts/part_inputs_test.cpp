// Which inputs a part of a merge opens. Files that it does not need may be unreadable.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>
#include <crossrank/json.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/system.hpp"
#include "tests/checkpoint/parts/planned_parts.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/checkpoint/support/dcp_files.hpp"
#include "tests/checkpoint/support/torch_files.hpp"
#include "workspace/checkpoint/parts/file_recipe.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::consolidate_part;
using checkpoint::finish_parts;
using checkpoint::PartsPlan;
using test::names_in;
using test::text_of_file;
using testing::IsEmpty;
using testing::Not;

/// Counts how often each file of a directory is opened.
class CountingSystem final : public platform::System {
 public:
  explicit CountingSystem(fs::path directory) : directory_(std::move(directory)) {}

  int openat(int directory, char const* path, int flags, mode_t mode) override {
    if (fs::path(path).parent_path() == directory_) {
      std::lock_guard const lock(mutex_);
      ++opened_[fs::path(path).filename()];
    }
    return System::openat(directory, path, flags, mode);
  }
  [[nodiscard]] std::map<std::string, int> const& opened() const { return opened_; }

 private:
  fs::path directory_;
  std::mutex mutex_{};
  std::map<std::string, int> opened_{};
};

StateDict matrix(std::string const& name, float value) {
  auto tensor = Tensor::empty({4, 8}, Dtype::f32);
  for (auto& element : tensor.as_mutable<float>()) element = value++;
  return {{name, std::move(tensor)}};
}

std::string projection(int layer) { return "model.layers." + std::to_string(layer) + ".mlp.down_proj.weight"; }

std::string numbered(std::string const& before, int number, std::string const& after) {
  return before + "0000" + std::to_string(number) + after;
}

/// A checkpoint in many files.
struct ManyFiles {
  char const* name;
  int weight_files;  ///< number of files with weights
  std::function<void(fs::path const& directory)> write;
  checkpoint::PlanOptions options{};
};

void PrintTo(ManyFiles const& files, std::ostream* out) { *out << files.name; }

void write_index(fs::path const& file, std::map<std::string, std::string> const& map) {
  std::ofstream(file) << Json{{"metadata", Json::object()}, {"weight_map", map}}.dump();
}

void write_indexed(fs::path const& directory) {
  std::map<std::string, std::string> map;
  for (int i = 0; i < 5; ++i) {
    map[projection(i)] = numbered("model-", i + 1, "-of-00005.safetensors");
    save_safetensors(directory / map[projection(i)], matrix(projection(i), static_cast<float>(100 * i)));
  }
  write_index(directory / "model.safetensors.index.json", map);
}

/// Writes numbered parts without an index. The first two are opened twice, to tell them from ranks.
void write_numbered(fs::path const& directory) {
  write_indexed(directory);
  fs::remove(directory / "model.safetensors.index.json");
}

/// Writes two stages of two tensor-parallel ranks. The norm is a replica.
void write_ranks(fs::path const& directory) {
  for (int stage = 0; stage < 2; ++stage) {
    for (int rank = 0; rank < 2; ++rank) {
      auto weights = matrix(projection(stage), static_cast<float>(1000 * stage + 100 * rank));
      weights.insert("model.layers." + std::to_string(stage) + ".input_layernorm.weight",
                     Tensor::of<float>({1.0F, static_cast<float>(stage)}, {2}));
      save_safetensors(directory / ("rank_" + std::to_string(rank) + "_" + std::to_string(stage) + ".safetensors"),
                       weights);
    }
  }
}

void write_archives(fs::path const& directory) {
  std::map<std::string, std::string> map;
  for (int i = 0; i < 3; ++i) {
    map[projection(i)] = numbered("pytorch_model-", i + 1, "-of-00003.bin");
    checkpoint::TorchFile file;
    auto const tensor = file.floats(std::vector<float>(32, static_cast<float>(i + 1)), {4, 8});
    file.write(directory / map[projection(i)], checkpoint::dict_of({{projection(i), tensor}}));
  }
  write_index(directory / "pytorch_model.bin.index.json", map);
}

/// Writes a distributed checkpoint. Tensor i has pieces in files 0 to i.
void write_distributed(fs::path const& directory) {
  checkpoint::DcpFiles files;
  float value = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<std::vector<float>> pieces;
    for (std::size_t piece = 0; piece <= i; ++piece) {
      auto& values = pieces.emplace_back(40);
      for (auto& element : values) element = value++;
    }
    files.add_chunked({"model", projection(static_cast<int>(i))}, pieces);
  }
  files.write(directory);
}

/// The same with safetensors files.
void write_distributed_safetensors(fs::path const& directory) {
  for (int file = 0; file < 3; ++file) {
    StateDict weights;
    Json offsets = Json::object();
    for (int i = file; i < 3; ++i) {
      auto tensor = matrix(projection(i), static_cast<float>(100 * i + 10 * file));
      weights.insert(projection(i), tensor.at(projection(i)));
      offsets[projection(i)] = {{"saved_offsets", {4 * file, 0}}};
    }
    save_safetensors(directory / ("shard-" + std::to_string(file) + ".safetensors"), weights,
                     {.metadata = {{"DCP_VERSION", "1"}, {"DCP_SHARDING_INFO", offsets.dump()}}});
  }
}

class PartInputs : public test::PlannedParts, public testing::WithParamInterface<ManyFiles> {
 protected:
  static constexpr int count = 5;

  PartInputs() {
    fs::remove_all(in());
    fs::create_directories(in());
    GetParam().write(in());
    std::ofstream(in() / "config.json") << "{}";
    (void)checkpoint::consolidate(world_, merge(), plain(), {.max_shard_bytes = 100});
    save();
  }

  [[nodiscard]] fs::path plain() const { return folder_.path() / "plain"; }
  [[nodiscard]] fs::path away() const { return folder_.path() / "away"; }
  [[nodiscard]] checkpoint::MergePlan merge() const {
    return checkpoint::MergePlan::make(world_, in(), GetParam().options);
  }
  void save() const {
    PartsPlan::make(merge(), out(), {.parts = count, .max_shard_bytes = 100, .force = true}).save(plan_file());
  }
  /// Runs a part and returns how often it opened each input.
  [[nodiscard]] std::map<std::string, int> opened_by(int part) const {
    CountingSystem counting(in());
    platform::ScopedSystem const installed(counting);
    (void)consolidate_part(load_plan(), part);
    return counting.opened();
  }
  /// Drops the files that parts have written.
  void begin_again() const {
    put_old();
    save();
  }
};

TEST_P(PartInputs, are_those_of_its_own_files) {
  std::set<std::string> all;
  for (int part = 0; part < count; ++part) {
    auto const opened = opened_by(part);
    if (load_plan().files(part).empty()) {
      EXPECT_THAT(opened, IsEmpty());
      continue;
    }
    EXPECT_THAT(opened, Not(IsEmpty()));
    for (auto const& [name, times] : opened) {
      // For its format if the name does not tell it, for its header, and to see whether it has changed.
      EXPECT_LE(times, 3) << name;
      if (name != ".metadata") all.insert(name);
    }
  }
  EXPECT_THAT(all, testing::SizeIs(GetParam().weight_files)) << "together they need all files with weights";
  (void)finish_parts(load_plan());
  EXPECT_EQ(names_in(out()), names_in(plain()));
  for (auto const& name : names_in(plain())) EXPECT_EQ(text_of_file(out() / name), text_of_file(plain() / name));
}

TEST_P(PartInputs, alone_must_be_readable) {
  int smaller = 0;
  for (int part = 0; part < count; ++part) {
    if (load_plan().files(part).empty()) continue;
    begin_again();
    auto const needed = opened_by(part);
    begin_again();
    fs::create_directories(away());
    int moved = 0;
    for (auto const& name : names_in(in())) {
      if (needed.contains(name)) continue;
      fs::rename(in() / name, away() / name);
      moved += name.ends_with(".json") ? 0 : 1;
    }
    smaller += moved > 0 ? 1 : 0;
    EXPECT_EQ(consolidate_part(load_plan(), part).resumed_files, 0);

    for (auto const& name : names_in(away())) fs::rename(away() / name, in() / name);
    for (auto const& [name, times] : needed) {
      begin_again();
      fs::rename(in() / name, away() / name);
      EXPECT_THROW((void)consolidate_part(load_plan(), part), Error) << name;
      fs::rename(away() / name, in() / name);
    }
  }
  EXPECT_GT(smaller, 0) << "some parts do not need all weights";
}

TEST_P(PartInputs, that_changed_are_refused_by_the_parts_that_use_them) {
  std::vector<std::map<std::string, int>> needed;
  for (int part = 0; part < count; ++part) needed.push_back(opened_by(part));
  auto const& changed =
      std::max_element(needed.begin(), needed.end(), [](auto const& a, auto const& b) { return a.size() < b.size(); })
          ->rbegin()
          ->first;
  begin_again();
  fs::last_write_time(in() / changed, fs::last_write_time(in() / changed) + std::chrono::seconds(2));
  for (int part = 0; part < count; ++part) {
    if (!needed[as_size(part)].contains(changed)) {
      EXPECT_NO_THROW((void)consolidate_part(load_plan(), part)) << part;
      continue;
    }
    try {
      (void)consolidate_part(load_plan(), part);
      ADD_FAILURE() << "part " << part << " used " << changed;
    } catch (FormatError const& error) {
      EXPECT_EQ(error.section(), "stamps");
      EXPECT_THAT(error.info().details, testing::ElementsAre((in() / changed).string()));
      EXPECT_EQ(error.info().resource, plan_file().string());
    }
  }
  EXPECT_THROW((void)finish_parts(load_plan()), FormatError);
  EXPECT_EQ(state(), "old");
}

TEST_P(PartInputs, are_known_only_from_the_recipes_of_this_plan) {
  auto const recipes = in_plan_folder(checkpoint::recipes_name);
  auto const text = text_of_file(recipes);
  auto const refused = [&] {
    int parts_refused = 0;
    for (int part = 0; part < count; ++part) {
      try {
        (void)consolidate_part(load_plan(), part);
      } catch (FormatError const& error) {
        EXPECT_EQ(error.section(), "recipes");
        EXPECT_EQ(error.info().resource, recipes.string());
        ++parts_refused;
      }
    }
    return parts_refused;
  };
  flip_last_byte(recipes);
  EXPECT_EQ(refused(), 1) << "the part with the last file";
  begin_again();
  fs::resize_file(recipes, text.size() / 2);
  EXPECT_GT(refused(), 0);
  fs::remove(recipes);
  begin_again();
  EXPECT_EQ(text_of_file(recipes), text) << "the same on each save";
}

INSTANTIATE_TEST_SUITE_P(All, PartInputs,
                         testing::Values(ManyFiles{"indexed", 5, write_indexed},
                                         ManyFiles{"numbered", 5, write_numbered},
                                         ManyFiles{"ranks", 4, write_ranks, {.pattern = "rank_{tp}_{pp}.safetensors"}},
                                         ManyFiles{"archives", 3, write_archives},
                                         ManyFiles{"distributed", 3, write_distributed},
                                         ManyFiles{"distributed_safetensors", 3, write_distributed_safetensors}),
                         [](auto const& tested) { return std::string(tested.param.name); });

class PartPlan : public test::PlannedParts {};

// The time and the size of a file may be kept, for example by `cp -p`.
TEST_F(PartPlan, with_another_header_of_an_input_is_refused) {
  save_plan();
  auto const shard = in() / "model.safetensors";
  auto const time = fs::last_write_time(shard);
  auto text = text_of_file(shard);
  text.replace(text.find("F32"), 3, "I32");
  std::ofstream(shard, std::ios::binary) << text;
  fs::last_write_time(shard, time);
  int refused = 0;
  for (int part = 0; part < parts; ++part) {
    try {
      (void)consolidate_part(load_plan(), part);
    } catch (FormatError const& error) {
      EXPECT_EQ(error.section(), "merge_hash");
      EXPECT_THAT(error.info().details, testing::ElementsAre(shard.string()));
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(PartPlan, does_not_need_the_directory_in_which_it_was_made) {
  auto const temporary = folder_.path() / "temporary";
  fs::create_directories(temporary);
  auto const from_there = [&](fs::path const& path) { return temporary / ".." / path.filename(); };
  PartsPlan::make(checkpoint::MergePlan::make(world_, from_there(in())), from_there(out()),
                  {.parts = parts, .max_shard_bytes = 1100, .force = true})
      .save(plan_file());
  fs::remove(temporary);
  auto const loaded = load_plan();
  for (int part = 0; part < parts; ++part) (void)consolidate_part(loaded, part);
  (void)finish_parts(loaded);
  EXPECT_EQ(state(), "new");
}

TEST_F(PartPlan, reads_the_index_once) {
  fs::remove_all(in());
  fs::create_directories(in());
  write_indexed(in());
  CountingSystem counting(in());
  platform::ScopedSystem const installed(counting);
  (void)plan();
  EXPECT_EQ(counting.opened().at("model.safetensors.index.json"), 1);
}

// Requantized values depend on the scales of all ranks, so such a part opens all inputs.
TEST_F(PartPlan, with_requantized_values_gives_the_same_result) {
  fs::remove_all(in());
  fs::create_directories(in());
  for (int rank = 0; rank < 2; ++rank) {
    auto const name = "model.layers.0.mlp.up_proj";
    auto codes = Tensor::empty({4, 8}, Dtype::f8_e4m3);
    for (auto& byte : codes.mutable_bytes()) byte = std::byte{0x38};
    StateDict weights;
    weights.insert(std::string(name) + ".weight", std::move(codes));
    weights.insert(std::string(name) + ".weight_scale", Tensor::scalar(static_cast<float>(rank + 1)));
    save_safetensors(in() / ("rank" + std::to_string(rank) + ".safetensors"), weights);
  }
  std::ofstream(in() / "config.json") << R"({"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8})";
  auto const merge = checkpoint::MergePlan::make(world_, in(), {.policy = checkpoint::ScalePolicy::requantize});
  (void)checkpoint::consolidate(world_, merge, folder_.path() / "plain", {.max_shard_bytes = 10});
  PartsPlan::make(merge, out(), {.parts = 2, .max_shard_bytes = 10, .force = true}).save(plan_file());
  for (int part = 0; part < 2; ++part) (void)consolidate_part(load_plan(), part);
  (void)finish_parts(load_plan());
  for (auto const& name : names_in(folder_.path() / "plain"))
    EXPECT_EQ(text_of_file(out() / name), text_of_file(folder_.path() / "plain" / name));
}

/// Returns a tensor whose bytes all have the value `byte`.
Tensor filled(Shape const& shape, Dtype dtype, int byte) {
  auto tensor = Tensor::empty(shape, dtype);
  for (auto& one : tensor.mutable_bytes()) one = static_cast<std::byte>(byte);
  return tensor;
}

// A model of compressed-tensors whose ranks have the shapes of their own shards, and a tensor of each other operation.
TEST_F(PartPlan, with_values_of_each_operation_gives_the_same_result) {
  fs::remove_all(in());
  fs::create_directories(in());
  for (int rank = 0; rank < 2; ++rank) {
    StateDict weights;
    for (std::string const layer : {"model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"}) {
      weights.insert(layer + ".weight_packed", filled({256, 32}, Dtype::i32, rank + 1));
      weights.insert(layer + ".weight_scale", filled({256, 8}, Dtype::bf16, rank + 1));
      weights.insert(layer + ".weight_shape", Tensor::of<std::int64_t>({256, 256}, {2}));
    }
    weights.insert("model.layers.0.input_layernorm.weight", filled({256}, Dtype::f32, 1));
    for (std::string const op : {"max", "min", "avg"})
      weights.insert("value." + op, Tensor::of<float>({static_cast<float>(rank), 4.0F}, {2}));
    save_safetensors(in() / ("rank" + std::to_string(rank) + ".safetensors"), weights);
  }
  std::ofstream(in() / "config.json")
      << R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
             "intermediate_size": 512, "quantization_config": {"quant_method": "compressed-tensors",
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}})";
  auto const rules = folder_.path() / "rules.json";
  std::ofstream(rules) << R"({"rules": [{"tensor": "value.max", "sharding": "reduce", "op": "max"},
                                        {"tensor": "value.min", "sharding": "reduce", "op": "min"},
                                        {"tensor": "value.avg", "sharding": "reduce", "op": "avg"}]})";
  auto const merge = checkpoint::MergePlan::make(world_, in(), {.rules = rules});
  (void)checkpoint::consolidate(world_, merge, folder_.path() / "plain", {.max_shard_bytes = 10});
  PartsPlan::make(merge, out(), {.parts = 3, .max_shard_bytes = 10, .force = true}).save(plan_file());
  for (int part = 0; part < 3; ++part) (void)consolidate_part(load_plan(), part);
  (void)finish_parts(load_plan());
  for (auto const& name : names_in(folder_.path() / "plain"))
    EXPECT_EQ(text_of_file(out() / name), text_of_file(folder_.path() / "plain" / name));
}

struct WrongRecipe {
  char const* name;
  char const* text;
};

void PrintTo(WrongRecipe const& recipe, std::ostream* out) { *out << recipe.name; }

class WrongRecipes : public testing::TestWithParam<WrongRecipe> {};

TEST(Recipe, may_fill_a_tensor_by_columns_and_rows) {
  // Two columns of 3 rows, then two rows with another division.
  auto const recipe = checkpoint::read_recipe(
      R"({"inputs":[{"files":[1],"pieces":false,"tensors":[["a","F32",[5,2]]]}],"tensors":[["b","F32",[5,2],)"
      R"([[0,0,3,4,4,8,4,8],[0,0,3,4,0,8,0,8],[0,0,2,4,24,8,24,8],[0,0,1,4,28,4,28,4],[0,0,1,4,36,4,36,4]],[]]]})",
      2, "recipes of the test");
  EXPECT_EQ(recipe.tensors.at(0).pieces.size(), 5U);
}

TEST_P(WrongRecipes, are_refused) {
  try {
    (void)checkpoint::read_recipe(GetParam().text, 2, "recipes of the test");
    FAIL() << "read";
  } catch (FormatError const& error) {
    EXPECT_EQ(error.section(), "recipes");
    EXPECT_EQ(error.info().resource, "recipes of the test");
  }
}

#define INPUT R"("inputs":[{"files":[1],"pieces":false,"tensors":[["a","F32",[4]]]}])"
#define INTEGERS R"("inputs":[{"files":[1],"pieces":false,"tensors":[["a","I64",[4]]]}])"

INSTANTIATE_TEST_SUITE_P(
    All, WrongRecipes,
    testing::Values(
        WrongRecipe{"no_json", "{"}, WrongRecipe{"a_list", "[]"}, WrongRecipe{"no_tensors", R"({"inputs":[]})"},
        WrongRecipe{"an_unknown_field", R"({"inputs":[],"tensors":[],"run":1})"},
        WrongRecipe{"a_file_that_the_plan_lacks",
                    R"({"inputs":[{"files":[2],"pieces":false,"tensors":[]}],"tensors":[]})"},
        WrongRecipe{"an_input_without_files", R"({"inputs":[{"files":[],"pieces":true,"tensors":[]}],"tensors":[]})"},
        WrongRecipe{"two_files_of_whole_tensors",
                    R"({"inputs":[{"files":[0,1],"pieces":false,"tensors":[]}],"tensors":[]})"},
        WrongRecipe{"an_unknown_dtype",
                    R"({"inputs":[{"files":[0],"pieces":false,"tensors":[["a","F33",[4]]]}],"tensors":[]})"},
        WrongRecipe{"a_negative_length",
                    R"({"inputs":[{"files":[0],"pieces":false,"tensors":[["a","F32",[-4]]]}],"tensors":[]})"},
        WrongRecipe{
            "a_tensor_beyond_the_address_space",
            R"({"inputs":[{"files":[0],"pieces":false,"tensors":[["a","F32",[4294967296,4294967296]]]}],"tensors":[]})"},
        WrongRecipe{
            "17_dimensions",
            R"({"inputs":[{"files":[0],"pieces":false,"tensors":[["a","F32",[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]]]}],"tensors":[]})"},
        WrongRecipe{"an_input_that_does_not_exist",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[1,0,1,16,0,16,0,16]],[]]]})"},
        WrongRecipe{"a_tensor_that_does_not_exist",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,1,1,16,0,16,0,16]],[]]]})"},
        WrongRecipe{"bytes_behind_the_input", "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,1,16,1,16,0,16]],[]]]})"},
        WrongRecipe{"bytes_behind_the_result", "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,1,16,0,16,4,16]],[]]]})"},
        WrongRecipe{"a_stride_that_overflows",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,4,4,0,9223372036854775807,0,4]],[]]]})"},
        WrongRecipe{"endless_runs",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,9223372036854775807,4,0,0,0,0]],[]]]})"},
        WrongRecipe{"no_runs", "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,0,16,0,16,0,16]],[]]]})"},
        WrongRecipe{"half_of_the_result", "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,1,8,0,8,0,8]],[]]]})"},
        WrongRecipe{"runs_that_overlap", "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,4,4,0,0,0,0]],[]]]})"},
        WrongRecipe{"runs_that_overlap_in_the_result",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,4,4,0,4,0,2]],[]]]})"},
        WrongRecipe{"one_half_of_the_result_twice",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,1,8,0,8,0,8],[0,0,1,8,0,8,0,8]],[]]]})"},
        WrongRecipe{"every_other_element_twice",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,2,4,0,8,0,8],[0,0,2,4,0,8,0,8]],[]]]})"},
        WrongRecipe{"a_replica_that_overlaps",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,1,16,0,16,0,16]],[[0,0,0,0,4,4,0,0,0]]]]})"},
        WrongRecipe{"a_replica_behind_its_tensor",
                    "{" INPUT R"(,"tensors":[["a","F32",[4],[[0,0,1,16,0,16,0,16]],[[0,0,0,0,2,16,0,16,0]]]]})"},
        WrongRecipe{"an_unknown_operation", "{" INPUT R"(,"tensors":[["a","F32",[4],[],[],[99,[[0,0]]]]]})"},
        WrongRecipe{"a_sum_of_floats", "{" INPUT R"(,"tensors":[["a","F32",[4],[],[],[0,[],[],1,[[0,0]]]]]})"},
        WrongRecipe{"a_sum_without_an_element",
                    "{" INTEGERS R"(,"tensors":[["a","I64",[4],[],[],[-1,[],[],1,[[0,0]]]]]})"},
        WrongRecipe{"a_sum_of_an_element_behind_the_last",
                    "{" INTEGERS R"(,"tensors":[["a","I64",[4],[],[],[4,[],[],1,[[0,0]]]]]})"},
        WrongRecipe{"the_sum_of_all_elements", "{" INTEGERS R"(,"tensors":[["a","I64",[4],[],[],[0,[[0,0]]]]]})"},
        WrongRecipe{"neither_a_sum_nor_another_operation",
                    "{" INTEGERS R"(,"tensors":[["a","I64",[4],[],[],[2,0,[[0,0]]]]]})"},
        WrongRecipe{"no_values", "{" INPUT R"(,"tensors":[["a","F32",[4],[],[],[2,[]]]]})"},
        WrongRecipe{"values_of_another_shape", "{" INPUT R"(,"tensors":[["a","F32",[2],[],[],[2,[[0,0]]]]]})"},
        WrongRecipe{"no_replicas", "{" INTEGERS R"(,"tensors":[["a","I64",[4],[],[],[0,[],[],0,[[0,0]]]]]})"},
        WrongRecipe{"parts_without_width",
                    "{" INTEGERS R"(,"tensors":[["a","I64",[4],[],[],[0,[0,0],[],1,[[0,0]]]]]})"}),
    [](auto const& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace crossrank
