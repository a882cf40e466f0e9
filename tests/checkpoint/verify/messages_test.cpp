// Errors and warnings name the right file, the right reason, and what to do.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/platform/files/io_error.hpp"
#include "tests/checkpoint/support/shard_samples.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/discovery/megatron/deepspeed_files.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/source/safetensors_source.hpp"
#include "workspace/checkpoint/rules/rule_set/unused_rules.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Messages, name_the_file_of_a_missing_data_parallel_rank) {
  DirectoryListing const listing{
      .path = "save",
      .files = {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "zero_pp_rank_1_mp_rank_00_optim_states.pt", "zero_pp_rank_3_mp_rank_00_optim_states.pt"}};
  auto const info = error_of<Error>([&] { (void)find_deepspeed(listing); });
  EXPECT_THAT(info.message, HasSubstr("rank 2 are missing: zero_pp_rank_2_mp_rank_00_optim_states.pt"));
  EXPECT_THAT(info.message + info.got, Not(HasSubstr("zero_pp_rank_3")));
}

void write_header(fs::path const& path, std::string const& header, std::string const& data) {
  auto const length = static_cast<std::uint64_t>(header.size());
  std::ofstream(path, std::ios::binary) << std::string(reinterpret_cast<char const*>(&length), 8) << header << data;
}

TEST(Messages, distinguish_a_limit_from_damage) {
  TemporaryDirectory const folder;
  auto const path = folder.path() / "a.safetensors";
  auto const opened = [&] { SafetensorsSource("a", {path}, std::make_shared<FilePool>()); };
  std::string ones = "1";
  for (int i = 1; i < 17; ++i) ones += ",1";
  write_header(path, R"({"a":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", "x");
  auto info = error_of<Error>(opened);
  EXPECT_THAT(info.message, HasSubstr("16 dimensions"));
  EXPECT_THAT(info.hint, Not(HasSubstr("damaged")));

  write_header(path, "{\"" + std::string(1025, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  info = error_of<Error>(opened);
  EXPECT_THAT(info.message, HasSubstr("1025 bytes, more than 1024"));
  EXPECT_THAT(info.hint, Not(HasSubstr("damaged")));

  write_header(path, R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}})", "x");
  EXPECT_THAT(error_of<Error>(opened).hint, HasSubstr("damaged"));
}

TEST(Messages, have_a_hint_for_system_errors) {
  for (int const error : {EACCES, EPERM, EROFS, ENOSPC, EMFILE}) {
    EXPECT_NE(error_of<Error>([&] { platform::throw_io("test", "/some/file", error); }).hint, "") << error;
    EXPECT_EQ(error_of<Error>([&] { platform::throw_io("test", "/some/file", error, "own words"); }).hint, "own words");
  }
}

TEST(Messages, say_that_a_path_is_empty) {
  auto const info = error_of<Error>([] { (void)open_shard_set(""); });
  EXPECT_EQ(info.hint, "the path is empty");
}

TEST(Messages, suggest_a_checkpoint_in_a_subdirectory_of_any_format) {
  for (std::string const file :
       {"model.safetensors", "rank0.pth", "__0_0.distcp", "latest", "rank_0/model.pt", "tp_0/model.safetensors"}) {
    for (std::string const way : {"checkpoint-5", "run/checkpoint-5", "a/run/checkpoint-5"}) {
      TemporaryDirectory const folder;
      auto const place = folder.path() / way / file;
      fs::create_directories(place.parent_path());
      std::ofstream(place) << "x";
      auto const info = error_of<Error>([&] { (void)open_shard_set(folder.path()); });
      EXPECT_THAT(info.hint, HasSubstr("did you mean " + (folder.path() / way).string() + "?")) << file;
    }
  }
}

TEST(Messages, suggest_the_model_before_its_optimizer) {
  TemporaryDirectory const folder;
  for (auto const* name : {"optimizer_0", "pytorch_model_fsdp_0"}) {
    fs::create_directories(folder.path() / name);
    std::ofstream(folder.path() / name / "__0_0.distcp") << "x";
  }
  auto const info = error_of<Error>([&] { (void)open_shard_set(folder.path()); });
  EXPECT_THAT(info.hint, HasSubstr("pytorch_model_fsdp_0?"));
}

std::vector<std::string> warnings_of_plan(fs::path const& shards, PlanOptions const& options = {}) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogEvent const& event) { warnings.emplace_back(event.message); });
  (void)MergePlan::make(connect({.backend = "fake"}), shards, options);
  set_log_sink({});
  return warnings;
}

TEST(Messages, warn_of_an_input_without_tensors) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", StateDict());
  EXPECT_THAT(warnings_of_plan(folder.path()), testing::Contains(HasSubstr("no tensors")));
}

TEST(Messages, warn_of_rows_that_are_dropped_as_padding) {
  TemporaryDirectory const folder;
  for (auto const* rank : {"rank0.safetensors", "rank1.safetensors"})
    save_safetensors(folder.path() / rank, {{"model.embed_tokens.weight", Tensor::zeros({40, 16}, Dtype::f32)}});
  std::ofstream(folder.path() / "config.json") << Json{{"hidden_size", 16}, {"vocab_size", 70}};

  EXPECT_THAT(warnings_of_plan(folder.path()), testing::Contains(HasSubstr("80 rows for the config's 70 tokens")));
}

TEST(Messages, warn_of_layers_without_a_scale) {
  TemporaryDirectory const folder;
  auto const weight = Tensor::zeros({8, 16}, Dtype::f8_e4m3);
  auto const scale = Tensor::zeros({}, Dtype::f32);
  for (auto const* rank : {"rank0.safetensors", "rank1.safetensors"}) {
    save_safetensors(folder.path() / rank, {{"model.layers.0.self_attn.q_proj.weight", weight},
                                            {"model.layers.0.self_attn.q_proj.weight_scale", scale},
                                            {"model.layers.1.self_attn.q_proj.weight", weight}});
  }
  auto const warnings = warnings_of_plan(folder.path());
  auto const lack = [](std::string const& text) { return text.find("no weight_scale") != std::string::npos; };
  EXPECT_EQ(std::count_if(warnings.begin(), warnings.end(), lack), 1);
}

TEST(Messages, warn_of_layers_beyond_the_config) {
  TemporaryDirectory const folder;
  for (auto const* rank : {"rank0.safetensors", "rank1.safetensors"}) {
    save_safetensors(folder.path() / rank, {{"model.layers.0.input_layernorm.weight", Tensor::zeros({8}, Dtype::f32)},
                                            {"model.layers.1.input_layernorm.weight", Tensor::zeros({8}, Dtype::f32)}});
  }
  auto const extra = testing::Contains(HasSubstr("has number 1 where the config has 1"));
  std::ofstream(folder.path() / "config.json") << Json{{"hidden_size", 8}, {"num_hidden_layers", 2}};
  EXPECT_THAT(warnings_of_plan(folder.path()), testing::Not(extra));

  std::ofstream(folder.path() / "config.json") << Json{{"hidden_size", 8}, {"num_hidden_layers", 1}};
  EXPECT_THAT(warnings_of_plan(folder.path()), extra);
}

TEST(Messages, warn_of_ranks_that_nothing_counts) {
  TemporaryDirectory const folder;
  for (auto const* rank : {"rank0.safetensors", "rank1.safetensors"})
    save_safetensors(folder.path() / rank, {{"model.embed_tokens.weight", Tensor::zeros({40, 16}, Dtype::f32)}});
  auto const uncounted = testing::Contains(HasSubstr("nothing tells how many ranks"));
  EXPECT_THAT(warnings_of_plan(folder.path()), uncounted);
  EXPECT_THAT(warnings_of_plan(folder.path(), {.tp = 2}), testing::Not(uncounted));

  std::ofstream(folder.path() / "params.json") << Json{{"dim", 16}, {"vocab_size", 80}};
  EXPECT_THAT(warnings_of_plan(folder.path()), testing::Not(uncounted));

  std::ofstream(folder.path() / "config.json") << Json{{"hidden_size", 16}, {"vocab_size", 80}};
  EXPECT_THAT(warnings_of_plan(folder.path()), testing::Not(uncounted));

  TemporaryDirectory const whole;
  save_safetensors(whole.path() / "consolidated.00.safetensors", {{"norm.weight", Tensor::zeros({16}, Dtype::f32)}});
  EXPECT_THAT(warnings_of_plan(whole.path()), uncounted);
  std::ofstream(whole.path() / "params.json") << Json{{"dim", 16}};
  EXPECT_THAT(warnings_of_plan(whole.path()), testing::Not(uncounted));
}

TEST(Messages, name_a_pipe_beside_the_weights) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"w", Tensor::zeros({4}, Dtype::f32)}});
  auto const tokenizer = folder.path() / "tokenizer.json";
  ASSERT_EQ(::mkfifo(tokenizer.c_str(), 0600), 0);

  EXPECT_THAT(warnings_of_plan(folder.path()), ElementsAre(HasSubstr("pipe beside the weights is left out")));
  auto const defects = verify(connect({.backend = "fake"}), folder.path()).defects;
  EXPECT_THAT(defects, ElementsAre(testing::Field(&Defect::resource, tokenizer.string())));
}

TEST(Messages, name_a_link_to_nothing_beside_the_weights) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"w", Tensor::zeros({4}, Dtype::f32)}});
  auto const tokenizer = folder.path() / "tokenizer.json";
  fs::create_symlink("moved.json", tokenizer);
  fs::create_symlink("user@host.1", folder.path() / ".#notes");  // the lock of an editor

  EXPECT_THAT(warnings_of_plan(folder.path()), ElementsAre(HasSubstr("dangling link")));
  auto const defects = verify(connect({.backend = "fake"}), folder.path()).defects;
  EXPECT_THAT(defects, ElementsAre(testing::Field(&Defect::resource, tokenizer.string())));
}

TEST(Messages, list_unused_rules) {
  SampleSet samples(1);
  samples.add("model.layers.0.mlp.up_proj.weight", Dtype::f32, {4, 4});
  auto const file = RuleFile::parse(R"({"rules": [
      {"layer": "model.layers.*.mlp.up_proj", "sharding": "column"},
      {"layer": "model.layers.*.mlp.up", "sharding": "column"},
      {"layer": "model.**.up_proj", "sharding": "row"},
      {"layer": "nothing", "sharding": "row", "models": ["other"]}]})",
                                    "rules");
  EXPECT_THAT(unused_rules(file, samples.set(), "llama"),
              ElementsAre("rule 1 (model.layers.*.mlp.up) applies to no tensor: no name matches its pattern",
                          "rule 2 (model.**.up_proj) applies to no tensor: earlier rules match all of its tensors"));
}

TEST(Messages, do_not_call_a_rule_unused_after_one_that_is_tied_to_a_missing_tensor) {
  SampleSet samples(1);
  samples.add("lm_head.weight", Dtype::f32, {4, 4});
  auto const file = RuleFile::parse(R"({"rules": [
      {"layer": "lm_head", "sharding": "drop", "tied_to": "missing"},
      {"layer": "lm_head", "sharding": "row"}]})",
                                    "rules");
  EXPECT_THAT(unused_rules(file, samples.set(), "llama"), testing::IsEmpty());
}

}  // namespace
}  // namespace crossrank::checkpoint
