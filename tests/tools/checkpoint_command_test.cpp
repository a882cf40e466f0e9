// Tests crossrank consolidate, split, convert, verify and inspect from the command line: output and exit codes.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/tensor/concat.hpp>
#include <crossrank/json.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/tools/checkpoint_command.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::CheckpointCommand;
using test::CommandRun;
using test::difference;
using test::make_large_shards;
using test::names_in;
using test::read_checkpoint;
using test::read_model;
using test::run_command;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(CheckpointCommand, requires_only_two_paths) {
  auto const end = consolidate();

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.err, "");
  EXPECT_THAT(end.out, HasSubstr("2 sources"));
  EXPECT_THAT(names_in(out()), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(difference(whole(), read_checkpoint(out(), true)), "");
}

TEST_F(CheckpointCommand, gives_the_same_result_with_three_processes_and_several_files) {
  auto const end = consolidate({"-n", "3", "--max-shard-size", "500B", "--json"});

  ASSERT_EQ(end.exit_code, 0) << end.err;
  auto const answer = Json::parse(end.out);
  EXPECT_TRUE(answer.at("ok").get<bool>());
  EXPECT_EQ(answer.at("files"), 3);
  EXPECT_EQ(answer.at("plan").at("tp"), 2);
  EXPECT_EQ(difference(whole(), read_checkpoint(out(), true)), "");
}

TEST_F(CheckpointCommand, takes_directories_after_two_dashes_with_several_processes) {
  auto const end = run_command({"consolidate", "-n", "2", "--", shards().string(), out().string()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(difference(whole(), read_checkpoint(out(), true)), "");
}

TEST_F(CheckpointCommand, splits_for_another_number_of_ranks_and_back) {
  auto const four = folder_.path() / "four";

  auto const split = run_command({"split", shards().string(), four.string(), "--tp", "4"});
  auto const merged = run_command({"consolidate", four.string(), out().string()});

  EXPECT_EQ(split.exit_code, 0) << split.err;
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_THAT(names_in(four), ElementsAre("config.json", "rank0.safetensors", "rank1.safetensors", "rank2.safetensors",
                                          "rank3.safetensors"));
  EXPECT_EQ(difference(whole(), read_checkpoint(out(), true)), "");
}

TEST_F(CheckpointCommand, writes_nothing_in_a_dry_run) {
  auto const end = consolidate({"--dry-run"});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("model.safetensors"));
  EXPECT_THAT(end.out, HasSubstr("4 tensors"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, accepts_a_dry_run_of_what_can_be_resumed) {
  ASSERT_EQ(consolidate({}).exit_code, 0);
  EXPECT_EQ(consolidate({"--dry-run"}).exit_code, 2);
  auto const end = consolidate({"--resume", "--dry-run"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
}

TEST_F(CheckpointCommand, explains_a_tensor_and_suggests_a_similar_name) {
  auto const end = consolidate({"--explain", "model.layers.1.mlp.down_proj.weight"});
  auto const wrong = consolidate({"--explain", "model.layers.1.mlp.down_proj.wieght"});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("rank1.safetensors"));
  EXPECT_THAT(end.out, HasSubstr("\"axis\":1"));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean model.layers.1.mlp.down_proj.weight?"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, explains_the_shards_of_a_split) {
  auto const end = run_command(
      {"split", shards().string(), out().string(), "--tp", "4", "--explain", "model.layers.1.mlp.down_proj.weight"});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (auto const* const rank : {"  rank0.safetensors: ", "  rank1.safetensors: ", "  rank3.safetensors: "})
    EXPECT_THAT(end.out, HasSubstr(rank));
  EXPECT_THAT(end.out, HasSubstr(" bytes from byte "));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, replaces_a_checkpoint_only_with_force) {
  fs::create_directories(out());
  save_safetensors(out() / "model.safetensors", test::sample_weights(1, 2, 2, 3));
  auto const before = read_model(out());

  auto const refused = consolidate();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_EQ(difference(before, read_model(out())), "");

  auto const forced = consolidate({"--force"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_EQ(difference(whole(), read_checkpoint(out(), true)), "");
}

TEST_F(CheckpointCommand, suggests_a_similar_path) {
  auto const end = run_command({"consolidate", (folder_.path() / "shrads").string(), out().string()});

  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr("did you mean " + shards().string() + "?"));
}

TEST_F(CheckpointCommand, names_the_rank_that_is_missing) {
  fs::remove(shards() / "rank0.safetensors");

  auto const end = consolidate();

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("rank 0"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, refuses_a_single_rank_when_the_config_announces_more) {
  fs::remove(shards() / "rank1.safetensors");

  auto const end = consolidate();

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("tensor-parallel rank 1 of 2 is missing: rank1.safetensors"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, accepts_a_single_rank_that_is_the_whole_model) {
  fs::remove(shards() / "rank1.safetensors");
  fs::rename(folder_.path() / "whole" / "model.safetensors", shards() / "rank0.safetensors");

  auto const end = consolidate();

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
}

TEST_F(CheckpointCommand, names_an_incompletely_copied_file) {
  auto const file = shards() / "rank1.safetensors";
  fs::resize_file(file, fs::file_size(file) - 8);

  auto const end = consolidate({"--json"});

  EXPECT_EQ(end.exit_code, 1);
  auto const answer = Json::parse(end.out);
  EXPECT_FALSE(answer.at("ok").get<bool>());
  EXPECT_THAT(answer.at("error").dump(), HasSubstr("rank1.safetensors"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, refuses_ranks_of_different_models) {
  fs::remove(shards() / "rank1.safetensors");
  save_safetensors(shards() / "rank1.safetensors", test::sample_weights(3, 10, 6, 4));

  auto const end = consolidate();

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(end.err, HasSubstr("rank 1"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, lists_every_copy_that_differs) {
  fs::remove(shards() / "rank1.safetensors");
  StateDict other;
  for (auto const& [name, tensor] : load_safetensors(shards() / "rank0.safetensors"))
    other.insert_or_assign(name, tensor.shape().size() == 2 ? tensor : Tensor::scalar(2.5F));
  save_safetensors(shards() / "rank1.safetensors", other);

  auto const end = consolidate({"-n", "2"});

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("model.norm.weight"));
  EXPECT_THAT(end.err, HasSubstr("1.5"));
  EXPECT_THAT(end.err, HasSubstr("2.5"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointCommand, shows_its_options_and_exit_codes) {
  auto const help = run_command({"consolidate", "--help"});
  auto const wrong = consolidate({"--polizy", "exact"});

  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  EXPECT_THAT(help.out, HasSubstr("Exit codes:"));
  EXPECT_EQ(wrong.exit_code, 2);
}

TEST_F(CheckpointCommand, converts_to_archives_and_images_and_back) {
  for (auto const* format : {"torch", "images"}) {
    auto const between = folder_.path() / format;
    auto const back = folder_.path() / (std::string(format) + "-back");

    auto const there = run_command({"convert", shards().string(), between.string(), "--to", format, "--tp", "4"});
    auto const again = run_command({"convert", between.string(), back.string(), "-n", "2"});

    EXPECT_EQ(there.exit_code, 0) << there.err;
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(names_in(between), testing::SizeIs(5));
    EXPECT_EQ(difference(whole(), read_checkpoint(back, true)), "") << format;
  }
}

TEST_F(CheckpointCommand, applies_the_rule_file_in_a_conversion) {
  auto const strange = folder_.path() / "strange";
  auto const rules = folder_.path() / "rules.json";
  auto const sharded = folder_.path() / "sharded";
  fs::create_directories(strange);
  StateDict weights;
  weights.insert_or_assign("model.layers.0.mixer.table", test::sample_weights(1, 4, 6, 29).begin()->second);
  save_safetensors(strange / "model.safetensors", weights);
  std::ofstream(rules) << R"({"rules": [{"tensor": "model.layers.*.mixer.table", "axis": 1}]})";

  auto const unknown = run_command({"convert", strange.string(), sharded.string(), "--tp", "2"});
  auto const there =
      run_command({"convert", strange.string(), sharded.string(), "--tp", "2", "--rules", rules.string()});

  EXPECT_NE(unknown.exit_code, 0);
  ASSERT_EQ(there.exit_code, 0) << there.err;
  auto const half = load_safetensors(sharded / "rank1.safetensors").begin()->second;
  EXPECT_EQ(half.shape(), (Shape{4, 3}));
}

TEST_F(CheckpointCommand, inspect_says_what_another_kind_of_file_is) {
  auto const file = (folder_.path() / "plan.json").string();
  std::ofstream(file) << R"({"magic": "crossrank plan"})";
  auto const text = run_command({"inspect", file});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.err, HasSubstr("--plan"));
  auto const json = run_command({"inspect", "--json", file});
  EXPECT_THAT(Json::parse(json.out).at("defects").at(0).at("hint").get<std::string>(), HasSubstr("the file is JSON"));
}

TEST_F(CheckpointCommand, verifies_shards_and_reports_defects) {
  auto const good = run_command({"verify", shards().string(), "--numbers"});
  auto const file = shards() / "rank1.safetensors";
  fs::resize_file(file, fs::file_size(file) - 8);
  auto const bad = run_command({"verify", shards().string(), "--json"});

  EXPECT_EQ(good.exit_code, 0) << good.out << good.err;
  EXPECT_THAT(good.out, HasSubstr("no defect found"));
  EXPECT_EQ(bad.exit_code, 1);
  auto const answer = Json::parse(bad.out);
  EXPECT_EQ(answer.at("defects").size(), 1U) << bad.out;
  EXPECT_EQ(answer.at("defects").at(0).at("kind"), "file");
}

TEST_F(CheckpointCommand, reports_the_assumed_layout_of_fused_layers_and_accepts_an_option) {
  std::vector<float> values(32 * 8);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  auto const fused = Tensor::of<float>(values, {32, 8});
  std::string const name = "model.layers.0.mlp.gate_up_proj.weight";
  for (int rank = 0; rank < 2; ++rank) {
    auto const file = shards() / ("rank" + std::to_string(rank) + ".safetensors");
    fs::remove(file);
    save_safetensors(file, {{name, slice(fused, Dim{0}, 16 * rank, 16)}});
  }
  std::ofstream(shards() / "config.json") << R"({"model_type": "glm4", "hidden_size": 8, "intermediate_size": 16})";

  auto const assumed = consolidate();
  EXPECT_EQ(assumed.exit_code, 0) << assumed.err;
  EXPECT_THAT(assumed.err, HasSubstr("--fused-layout plain"));

  auto const refused = consolidate({"--fused-layout", "plain", "--force"});
  EXPECT_EQ(refused.exit_code, 0) << refused.err;
  EXPECT_THAT(refused.err, testing::Not(HasSubstr("--fused-layout")));
  auto const merged = load_safetensors(out() / "model.safetensors");
  EXPECT_TRUE(std::ranges::equal(merged.at(name).bytes(), fused.bytes()));
}

TEST_F(CheckpointCommand, warns_of_a_layer_without_a_tensor_that_others_have) {
  auto const lacking = folder_.path() / "lacking";
  fs::create_directories(lacking);
  auto model = test::sample_weights(4, 4, 4, 1);
  for (int i = 0; i < 4; ++i) {
    if (i != 2)
      model.insert_or_assign("model.layers." + std::to_string(i) + ".mlp.up_proj.weight",
                             model.at("model.layers.0.mlp.down_proj.weight"));
  }
  save_safetensors(lacking / "model.safetensors", model);
  auto const name = std::string("model.layers.2.mlp.up_proj.weight");

  for (std::string const processes : {"1", "2"}) {
    auto const merged = run_command({"consolidate", lacking.string(), out().string(), "--force", "-n", processes});
    EXPECT_EQ(merged.exit_code, 0) << merged.err;
    EXPECT_THAT(merged.err, HasSubstr("warning: missing, and 3 others of model.layers.* have it (tensor " + name));
  }
  auto const verified = run_command({"verify", lacking.string()});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.out, HasSubstr("coverage: " + name));
}

TEST_F(CheckpointCommand, inspects_a_directory_and_a_file) {
  auto const all = run_command({"inspect", shards().string()});
  auto const some =
      run_command({"inspect", (shards() / "rank0.safetensors").string(), "--json", "--match", "*.1.*weight"});

  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("tensor parallel 2"));
  EXPECT_THAT(all.out, HasSubstr("model.layers.2.mlp.down_proj.weight  F32 [8, 6], 192 B"));
  EXPECT_EQ(some.exit_code, 0) << some.err;
  auto const tensors = Json::parse(some.out).at("tensors");
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors.at(0).at("name"), "model.layers.1.mlp.down_proj.weight");
}

TEST_F(CheckpointCommand, shows_a_bar_on_a_terminal_and_leaves_no_files_when_interrupted) {
  auto const large = folder_.path() / "large";
  make_large_shards(large);
  for (auto const* processes : {"1", "2"}) {
    CommandRun run({"consolidate", large.string(), out().string(), "-n", processes, "--threads", "1"},
                   test::Streams::terminal);
    ASSERT_TRUE(run.wait_for(" of 1.1 GB")) << run.finish().out;
    run.signal(SIGINT);

    auto const end = run.finish();

    EXPECT_EQ(end.exit_code, 130) << end.out;
    EXPECT_THAT(end.out, HasSubstr("of 1.1 GB"));
    EXPECT_THAT(end.out, HasSubstr("ended by "));
    EXPECT_FALSE(fs::exists(out())) << testing::PrintToString(names_in(out()));
  }
}

TEST_F(CheckpointCommand, checks_the_crcs_of_torch_archives_as_requested) {
  auto const archive = folder_.path() / "archive";
  ASSERT_EQ(run_command({"convert", (folder_.path() / "whole").string(), archive.string(), "--to", "torch"}).exit_code,
            0);
  auto const file = archive / "pytorch_model.bin";
  auto const matrix = whole().at("model.layers.1.mlp.down_proj.weight").bytes;
  std::string const data(reinterpret_cast<char const*>(matrix.data()), matrix.size());
  std::ifstream in(file, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  auto const at = bytes.find(data);
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  auto const merge = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"consolidate", archive.string(), out().string(), "--force"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  };

  EXPECT_EQ(merge({}).exit_code, 1);
  EXPECT_THAT(merge({"--crc", "require"}).err, testing::AllOf(HasSubstr("CRC"), HasSubstr("--crc ignore")));
  EXPECT_FALSE(fs::exists(out()));
  for (std::string const processes : {"1", "2"}) {
    auto const warned = merge({"--crc", "warn", "-n", processes});
    EXPECT_EQ(warned.exit_code, 0) << warned.err;
    EXPECT_THAT(warned.err, HasSubstr("warning: a record does not match its CRC (file " + file.string()));
    auto const answer = Json::parse(merge({"--crc", "warn", "-n", processes, "--json"}).out);
    ASSERT_EQ(answer.at("warnings").size(), 1U) << answer.dump();
    EXPECT_THAT(answer.at("warnings")[0].get<std::string>(), HasSubstr(file.string()));
  }
  EXPECT_EQ(merge({"--crc", "ignore"}).exit_code, 0);
  EXPECT_EQ(merge({"--crc", "ignore"}).err, "");
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
  EXPECT_EQ(merge({"--crc", "never"}).exit_code, 2);

  auto const verified = run_command({"verify", archive.string()});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.out, HasSubstr("checksum: " + file.string()));
  EXPECT_EQ(run_command({"verify", archive.string(), "--crc", "ignore"}).exit_code, 0);
}

}  // namespace
}  // namespace crossrank
