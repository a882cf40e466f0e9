// Merge plans: loading one that somebody else wrote, and reading single tensors.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/workspace.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

using test::error_of;
using test::TemporaryDirectory;

TEST(SavedPlan, is_the_same_plan_after_loading) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, folder.path() / "model.safetensors");
  plan.save(folder.path() / "plan.json");
  EXPECT_EQ(checkpoint::MergePlan::load(world, folder.path() / "plan.json").hash(), plan.hash());
}

/// The plan names its inputs by absolute paths.
TEST(SavedPlan, can_be_loaded_in_another_working_directory) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
  auto const world = connect({.backend = "fake"});
  auto const before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  auto const plan = checkpoint::MergePlan::make(world, "model.safetensors");
  plan.save("plan.json");
  std::filesystem::current_path("/");
  EXPECT_EQ(checkpoint::MergePlan::load(world, folder.path() / "plan.json").hash(), plan.hash());
  std::filesystem::current_path(before);
}

TEST(SavedPlan, cannot_name_shards_whose_path_is_not_utf8) {
  TemporaryDirectory const folder;
  auto const shards = folder.path() / "caf\xe9";
  std::filesystem::create_directory(shards);
  save_safetensors(shards / "model.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
  auto const plan = checkpoint::MergePlan::make(shards);
  EXPECT_THROW(plan.save(folder.path() / "plan.json"), UsageError);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "plan.json"));
}

/// Values are combined where they are read, in slices of 8 MiB.
TEST(CombinedTensor, has_the_values_of_all_ranks_in_every_slice) {
  TemporaryDirectory const folder;
  constexpr std::int64_t count = 2'500'001;
  auto const world = connect({.backend = "fake"});
  for (int rank = 0; rank < 2; ++rank) {
    auto values = Tensor::empty({count}, Dtype::f32);
    auto const out = values.as_mutable<float>();
    std::size_t const step = rank == 0 ? 7919 : 104'729;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i * step % 1000);
    save_safetensors(folder.path() / ("rank" + std::to_string(rank) + ".safetensors"), {{"w", values}});
  }
  std::ofstream(folder.path() / "rules.json") << R"({"rules": [{"tensor": "w", "sharding": "reduce"}]})";
  auto const plan = checkpoint::MergePlan::make(world, folder.path(), {.rules = folder.path() / "rules.json"});
  (void)checkpoint::consolidate(world, plan, folder.path() / "out");
  auto const merged = load_safetensors(folder.path() / "out" / "model.safetensors").at("w");
  ASSERT_EQ(merged.numel(), count);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < merged.as<float>().size(); ++i) {
    auto const expected = static_cast<float>(std::max(i * 7919 % 1000, i * 104'729 % 1000));
    if (merged.as<float>()[i] != expected) ++wrong;
  }
  EXPECT_EQ(wrong, 0U);
}

TEST(SavedPlan, refuses_the_name_of_an_existing_file) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
  auto const plan = checkpoint::MergePlan::make(folder.path() / "model.safetensors");
  auto const file = folder.path() / "plan.json";
  plan.save(file);
  auto const info = error_of<IoError>([&] { plan.save(file); });
  EXPECT_EQ(info.resource, file.string());
  EXPECT_EQ(info.message.find("bytes"), std::string::npos) << info.message;
  EXPECT_NE(info.hint, "");
}

TEST(SavedPlan, with_a_value_of_another_type_is_a_format_error) {
  TemporaryDirectory const folder;
  auto const file = folder.path() / "plan.json";
  auto const world = connect({.backend = "fake"});
  for (auto const* text : {
           R"({})",
           R"({"format": 1})",
           R"({"format": "crossrank merge plan"})",
           R"({"format": "crossrank merge plan", "inputs": "model"})",
           R"({"format": "crossrank merge plan", "inputs": []})",
           R"({"format": "crossrank merge plan", "inputs": {"path": 7}})",
           R"({"format": "crossrank merge plan", "inputs": {"path": "model", "tp": "2"}})",
           R"({"format": "crossrank merge plan", "inputs": {"path": "model", "extra_globals": [1]}})",
           R"({"format": "crossrank merge plan", "inputs": {"path": "model"}, "hash": {}})",
       }) {
    std::ofstream(file) << text;
    try {
      (void)checkpoint::MergePlan::load(world, file);
      ADD_FAILURE() << "loaded " << text;
    } catch (FormatError const& error) {
      EXPECT_EQ(error.info().resource, file.string()) << text;
      EXPECT_EQ(error.section(), "json") << text;
    }
  }
}

TEST(MergePlan, names_the_nearest_tensor_when_one_that_it_does_not_have_is_read) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors",
                   {{"w.2", Tensor::zeros({2}, Dtype::f32)}, {"w.10", Tensor::zeros({0, 3}, Dtype::f16)}});
  auto const plan = checkpoint::MergePlan::make(folder.path());
  EXPECT_EQ(plan.hash(), checkpoint::MergePlan::make(connect({.backend = "fake"}), folder.path()).hash());
  EXPECT_EQ(plan.read("w.10").shape(), (Shape{0, 3}));
  EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(plan.read("w.11")); }).hint, "did you mean w.10?");
  EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(plan.read("")); }).operation, "merge plan");
  EXPECT_THROW(static_cast<void>(checkpoint::MergePlan().read("w.2")), UsageError);
}

TEST(MergePlan, reports_an_input_that_was_shortened_before_a_read) {
  TemporaryDirectory const folder;
  auto const file = folder.path() / "model.safetensors";
  save_safetensors(file, {{"w", Tensor::zeros({1000}, Dtype::f32)}});
  auto const plan = checkpoint::MergePlan::make(connect({.backend = "fake"}), file);
  std::filesystem::resize_file(file, 1000);
  EXPECT_EQ(error_of<Error>([&] { static_cast<void>(plan.read("w")); }).resource, file.string());
}

/// Saves the shards of two ranks. An element of the norm is 0 on rank 0 and `norm_of_rank_1` on the other.
void save_two_ranks(std::filesystem::path const& folder, float norm_of_rank_1) {
  for (int rank = 0; rank < 2; ++rank) {
    auto norm = Tensor::zeros({4}, Dtype::f32);
    if (rank == 1) norm.as_mutable<float>()[2] = norm_of_rank_1;
    auto up = Tensor::zeros({2, 4}, Dtype::f32);
    up.as_mutable<float>()[0] = static_cast<float>(rank);
    save_safetensors(folder / ("rank" + std::to_string(rank) + ".safetensors"),
                     {{"model.norm.weight", norm},
                      {"model.layers.0.input_layernorm.weight", Tensor::zeros({4}, Dtype::f32)},
                      {"model.layers.0.mlp.up_proj.weight", up}});
  }
}

TEST(MergePlan, refuses_ids_that_leave_their_32_bits) {
  test::TemporaryDirectory const folder;
  for (std::string const rank : {"0", "1"})
    save_safetensors(folder.path() / ("rank" + rank + ".safetensors"), {{"ids", Tensor::zeros({4}, Dtype::i32)}});
  auto const world = connect({.backend = "fake"});
  auto const read = [&](std::string const& add) {
    std::ofstream(folder.path() / "rules")
        << R"({"rules": [{"tensor": "ids", "axis": 0, "add_per_rank": )" << add << "}]}";
    return checkpoint::MergePlan::make(world, folder.path(), {.rules = folder.path() / "rules"}).read("ids");
  };
  EXPECT_EQ(read("2147483647").as<std::int32_t>()[7], 2'147'483'647);
  EXPECT_THAT(test::error_of<FormatError>([&] { (void)read("2147483648"); }).got, "0 + 2147483648");
}

/// Each rank numbers its rows from 0, and the rule adds the number of rows before.
TEST(MergePlan, takes_equal_tables_of_ids_for_no_copies_of_a_file) {
  test::TemporaryDirectory const folder;
  for (std::string const rank : {"0", "1"})
    save_safetensors(folder.path() / ("rank" + rank + ".safetensors"),
                     {{"ids", Tensor::of<std::int32_t>({0, 1, 2, 3}, {4})}});
  std::ofstream(folder.path() / "rules") << R"({"rules": [{"tensor": "ids", "axis": 0, "add_per_rank": 4}]})";
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, folder.path(), {.rules = folder.path() / "rules"});
  checkpoint::consolidate(world, plan, folder.path() / "out");
  auto const merged = load_safetensors(folder.path() / "out" / "model.safetensors").at("ids");
  EXPECT_THAT(merged.as<std::int32_t>(), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(MergePlan, does_not_read_a_tensor_whose_replicas_differ) {
  TemporaryDirectory const folder;
  save_two_ranks(folder.path(), 1.0F);
  auto const plan = checkpoint::MergePlan::make(folder.path());
  EXPECT_EQ(plan.read("model.layers.0.input_layernorm.weight").shape(), (Shape{4}));
  EXPECT_EQ(plan.read("model.layers.0.mlp.up_proj.weight").as<float>()[8], 1.0F);
  auto const error = error_of<FormatError>([&] { static_cast<void>(plan.read("model.norm.weight")); });
  EXPECT_EQ(error.resource, "model.norm.weight");
  EXPECT_EQ(error.section, "data");
  EXPECT_THAT(error.message, testing::HasSubstr("element 2 is 0 in"));
}

TEST(MergePlan, does_not_take_one_part_of_a_model_for_the_model) {
  TemporaryDirectory const folder;
  auto const first = folder.path() / "model-00001-of-00002.safetensors";
  save_safetensors(first, {{"w.1", Tensor::zeros({2}, Dtype::f32)}});
  EXPECT_EQ(checkpoint::MergePlan::make(first).tensors().size(), 1U) << "alone it may be anything";
  save_safetensors(folder.path() / "model-00002-of-00002.safetensors", {{"w.2", Tensor::zeros({2}, Dtype::f32)}});
  auto const error = error_of<UsageError>([&] { static_cast<void>(checkpoint::MergePlan::make(first)); });
  EXPECT_EQ(error.resource, first.string());
  EXPECT_EQ(error.got, "model-00002-of-00002.safetensors");
}

/// A tensor of one tensor-parallel rank is copied as one run, also where its layer is row-parallel. Files are
/// written in slices of 8 MiB, and both matrices cross several.
TEST(MergePlan, copies_a_large_tensor_of_one_rank_whole_where_its_layer_is_row_parallel) {
  TemporaryDirectory const folder;
  auto const in = folder.path() / "in";
  std::filesystem::create_directory(in);
  StateDict whole;
  for (int stage = 0; stage < 2; ++stage) {
    auto const name = "model.layers." + std::to_string(stage) + ".mlp.down_proj.weight";
    auto weight = Tensor::zeros({3'000, 1'500}, Dtype::f32);
    std::ranges::generate(weight.as_mutable<float>(), [i = 0.0F + static_cast<float>(stage)]() mutable { return ++i; });
    save_safetensors(in / ("mp_rank_00_00" + std::to_string(stage) + ".safetensors"), {{name, weight}});
    whole.insert_or_assign(name, weight);
  }
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, in, {.pattern = "mp_rank_{tp}_{pp}.safetensors"});
  checkpoint::consolidate(world, plan, folder.path() / "out");
  checkpoint::split(world, plan, folder.path() / "split", {.tp = 2});
  auto const back = checkpoint::MergePlan::make(world, folder.path() / "split");
  for (auto const& [name, weight] : whole) {
    auto const expected = weight.as<float>();
    for (auto const& merged : {load_safetensors(folder.path() / "out" / "model.safetensors").at(name), back.read(name)})
      EXPECT_TRUE(std::ranges::equal(merged.as<float>(), expected)) << name;
  }
}

TEST(MergePlan, names_a_file_beside_the_weights_whose_name_is_not_unicode) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
  std::ofstream(folder.path() / "L\xff.txt") << "text";
  auto const error = error_of<FormatError>([&] { static_cast<void>(checkpoint::MergePlan::make(folder.path())); });
  EXPECT_EQ(error.resource, (folder.path() / "L\xff.txt").string());
}

TEST(MergePlan, takes_a_config_with_the_infinity_of_python) {
  TemporaryDirectory const folder;
  auto const in = folder.path() / "in";
  std::filesystem::create_directory(in);
  save_two_ranks(in, 0.0F);
  auto const text_of = [&](std::string const& out) {
    auto const world = connect({.backend = "fake"});
    static_cast<void>(checkpoint::consolidate(world, checkpoint::MergePlan::make(world, in), folder.path() / out));
    std::ifstream file(folder.path() / out / "config.json");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::string const same = R"({"time_step_limit": [0.0, Infinity]})";
  std::ofstream(in / "config.json") << same;
  EXPECT_EQ(text_of("same"), same);
  std::ofstream(in / "config.json") << R"({"time_step_limit": [0.0, Infinity], "tensor_parallel_size": 2})";
  auto const changed = text_of("changed");
  EXPECT_THAT(changed, testing::HasSubstr("\"tensor_parallel_size\": 1"));
  EXPECT_THAT(changed, testing::HasSubstr("Infinity\n"));
}

TEST(SavedPlan, names_a_file_that_does_not_exist) {
  TemporaryDirectory const folder;
  auto const load = [&] { (void)checkpoint::MergePlan::load(connect({.backend = "fake"}), folder.path() / "none"); };
  EXPECT_EQ(error_of<IoError>(load).system_errno, ENOENT);
}

}  // namespace
}  // namespace crossrank
