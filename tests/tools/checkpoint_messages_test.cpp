// Tests the messages, JSON output and exit codes of the commands for checkpoints.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/json.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/torch_files.hpp"
#include "tests/tools/checkpoint_command.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::CheckpointCommand;
using test::CommandRun;
using test::run_command;
using testing::HasSubstr;
using testing::Not;

class CheckpointMessages : public CheckpointCommand {};

TEST_F(CheckpointMessages, counts_missing_files_after_the_last_one) {
  auto const four = folder_.path() / "four";
  ASSERT_EQ(run_command({"split", shards().string(), four.string(), "--tp", "4"}).exit_code, 0);
  fs::remove(four / "rank3.safetensors");

  auto const end = run_command({"consolidate", four.string(), out().string()});

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("tensor-parallel rank 3 of 4 is missing: rank3.safetensors"));
}

TEST_F(CheckpointMessages, names_both_files_of_two_models) {
  for (int rank = 0; rank < 2; ++rank) {
    fs::remove(shards() / ("rank" + std::to_string(rank) + ".safetensors"));
    StateDict mine;
    mine.insert_or_assign(rank == 0 ? "model.embed_tokens.weight" : "transformer.wte.weight", Tensor::scalar(1.5F));
    save_safetensors(shards() / ("rank" + std::to_string(rank) + ".safetensors"), mine);
  }

  auto const end = consolidate();

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("different models"));
  EXPECT_THAT(end.err, HasSubstr("rank0.safetensors"));
  EXPECT_THAT(end.err, HasSubstr("rank1.safetensors"));
}

TEST_F(CheckpointMessages, suggests_similar_options_commands_and_paths) {
  EXPECT_THAT(consolidate({"--max-shrad-size", "4"}).err, HasSubstr("did you mean --max-shard-size?"));
  EXPECT_THAT(run_command({"consolidat", "a", "b"}).err, HasSubstr("did you mean consolidate?"));
  auto const name = folder_.path().filename().string();
  auto const wrong = folder_.path().parent_path() / (name.substr(0, name.size() - 1) + "~" + name.back()) / "shadrs";
  auto const end = run_command({"consolidate", wrong.string(), out().string()});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr("did you mean " + shards().string() + "?"));
}

TEST_F(CheckpointMessages, names_an_unknown_subcommand_and_lists_the_known_ones) {
  auto const far = run_command({"frobnicate"});
  EXPECT_EQ(far.exit_code, 2);
  EXPECT_THAT(far.err, HasSubstr("unknown subcommand \"frobnicate\""));
  for (auto const* name : {"run", "clean", "consolidate", "split", "convert", "verify", "inspect"})
    EXPECT_THAT(far.err, HasSubstr(name));
  EXPECT_THAT(far.err, Not(HasSubstr("required")));
  auto const near = run_command({"verfiy", "--json", "somewhere"});
  EXPECT_EQ(near.exit_code, 2);
  EXPECT_THAT(near.err, HasSubstr("did you mean verify?"));
  EXPECT_THAT(near.out, HasSubstr("unknown subcommand"));
  EXPECT_THAT(run_command({}).err, HasSubstr("subcommand is required"));
  EXPECT_EQ(run_command({"--help"}).exit_code, 0);
}

TEST_F(CheckpointMessages, lists_the_words_and_sizes_that_an_option_accepts) {
  auto const policy = consolidate({"--policy", "exat"});
  EXPECT_EQ(policy.exit_code, 2);
  EXPECT_THAT(policy.err, HasSubstr("exact, requantize, rescale, got exat; did you mean exact?"));
  for (std::string const size : {"0", "-5", "5XB", "many", "99999999999TB", "1e3", "nan"}) {
    auto const end = consolidate({"--max-shard-size=" + size});
    EXPECT_EQ(end.exit_code, 2) << size;
    EXPECT_THAT(end.err, HasSubstr("such as 500MB, 1.5GB or 2GiB, got " + size)) << size;
  }
  for (auto const& [size, files] :
       {std::pair("0.5kB", 3), std::pair("500", 3), std::pair("0.5 KiB", 3), std::pair("1.5GB", 1)}) {
    auto const end = consolidate({"--dry-run", "--json", "--max-shard-size", size});
    ASSERT_EQ(end.exit_code, 0) << end.err;
    int weights = 0;
    auto const answer = Json::parse(end.out);
    for (auto const& file : answer.at("files")) weights += file.contains("bytes") ? 1 : 0;
    EXPECT_EQ(weights, files) << size;
  }
}

TEST_F(CheckpointMessages, suggests_the_folder_that_holds_the_shards) {
  fs::create_directories(folder_.path() / "run" / ".cache");
  fs::rename(shards(), folder_.path() / "run" / "checkpoint-10");
  auto const high = run_command({"consolidate", (folder_.path() / "run").string(), out().string()});
  EXPECT_EQ(high.exit_code, 1);
  EXPECT_THAT(high.err, HasSubstr("did you mean " + (folder_.path() / "run" / "checkpoint-10").string() + "?"));
  std::ofstream(folder_.path() / "run" / "__0_0.distcp") << "x";
  auto const unfinished = run_command({"consolidate", (folder_.path() / "run").string(), out().string()});
  EXPECT_THAT(unfinished.err, HasSubstr("copy .metadata too"));
}

TEST_F(CheckpointMessages, reports_a_failed_write_to_stdout) {
  auto const full = [&](std::string const& how) {
    return std::system((std::string(CROSSRANK_COMMAND) + " " + how + " > /dev/full 2> /dev/null").c_str());
  };
  EXPECT_EQ(WEXITSTATUS(full("inspect " + shards().string())), 3);
  EXPECT_EQ(WEXITSTATUS(full("inspect " + (folder_.path() / "nowhere").string() + " --json")), 3);
  auto const in = shards().string();
  for (std::string const& how :
       {std::string("--version"), std::string("--help"), std::string("verify --help"), "verify " + in,
        "verify " + in + " --json", "verify " + in + " -n 2", "verify " + in + " --json -n 2", "clean " + in,
        "consolidate " + in + " " + out().string() + " --dry-run -n 2", std::string("inspect --json --job none"),
        std::string("frobnicate --json")})
    EXPECT_NE(WEXITSTATUS(full(how)), 0) << how;
}

TEST_F(CheckpointMessages, are_lost_on_a_full_disk_while_the_job_goes_on) {
  auto const merge = std::string(CROSSRANK_COMMAND) + " consolidate " + shards().string() + " " + out().string();
  EXPECT_EQ(std::system((merge + " -n 2 --progress lines > /dev/null 2> /dev/full").c_str()), 0);
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
}

TEST_F(CheckpointMessages, escapes_control_characters_in_names_from_files) {
  std::string const evil = "layer.\x1b[2J\x1b]0;title\x07\u202eweight";
  fs::remove_all(shards());
  fs::create_directories(shards());
  for (int rank = 0; rank < 2; ++rank) {
    auto const value = Tensor::scalar(static_cast<float>(rank));
    save_safetensors(shards() / ("rank" + std::to_string(rank) + ".safetensors"), {{evil, value}},
                     {.metadata = {{"key\x1b[31m", "value\x1b[0m\nsecond line"}}});
  }
  std::ofstream(shards() / "rules.json") << R"({"otherwise": "replicate", "rules": []})";
  auto const rules = (shards() / "rules.json").string();
  std::vector<std::vector<std::string>> const runs{
      {"inspect", shards().string()},
      {"inspect", (shards() / "rank0.safetensors").string()},
      {"verify", shards().string()},
      {"verify", shards().string(), "--rules", rules},
      {"consolidate", shards().string(), out().string()},
      {"consolidate", shards().string(), out().string(), "--rules", rules},
      {"consolidate", shards().string(), out().string(), "--rules", rules, "--explain", evil},
      {"consolidate", (shards() / "no\x1b[2Jfile").string(), out().string()}};
  for (auto const& run : runs) {
    auto const end = run_command(run);
    EXPECT_EQ((end.out + end.err).find_first_of("\x1b\x07"), std::string::npos) << run[0] << ": " << end.out << end.err;
    EXPECT_EQ((end.out + end.err).find("\u202e"), std::string::npos) << run[0];
  }
  EXPECT_THAT(run_command({"inspect", shards().string()}).out, HasSubstr("layer.\\x1b[2J"));
}

TEST_F(CheckpointMessages, requires_a_directory_for_its_result) {
  fs::create_symlink(folder_.path() / "gone", folder_.path() / "link");
  for (std::string const& out : {std::string(), (folder_.path() / "link").string()}) {
    auto const end = run_command({"consolidate", shards().string(), out});
    EXPECT_EQ(end.exit_code, 2) << out;
    EXPECT_THAT(end.err, HasSubstr("director")) << out;
  }
  auto const file = shards() / "rank0.safetensors";
  for (std::string const more : {"--dry-run", "--force"}) {
    auto const end = run_command({"consolidate", shards().string(), file.string(), more});
    EXPECT_EQ(end.exit_code, 2) << more;
    EXPECT_THAT(end.err, HasSubstr("must be a directory")) << more;
  }
}

TEST_F(CheckpointMessages, prints_one_json_object_for_every_request) {
  auto const in = shards().string();
  auto const nowhere = (folder_.path() / "nowhere" / "at all").string();
  auto const to = [&](char const* name) { return (folder_.path() / name).string(); };
  std::vector<std::pair<std::vector<std::string>, int>> const runs{
      {{"consolidate", in, to("a")}, 0},
      {{"consolidate", in, to("a")}, 2},
      {{"consolidate", in, to("b"), "--dry-run"}, 0},
      {{"consolidate", in, to("b"), "--explain", "model.norm.weight"}, 0},
      {{"consolidate", nowhere, to("b")}, 3},
      {{"split", in, to("c"), "--tp", "4"}, 0},
      {{"split", in, to("d"), "--tp", "5"}, 2},
      {{"convert", in, to("e"), "--to", "torch"}, 0},
      {{"verify", in}, 0},
      {{"verify", nowhere}, 3},
      {{"inspect", in}, 0},
      {{"inspect", nowhere}, 3},
      {{"inspect", "--job", "none"}, 1},
      {{"clean", to("a")}, 0},
      {{"clean", nowhere}, 1},
      {{"verify", in, "--forec"}, 2},
      {{"consolidate", in}, 2},
      {{"consolidate", in, to("f"), "--policy", "exat"}, 2}};
  for (auto const& [arguments, exit_code] : runs) {
    auto full = arguments;
    full.emplace_back("--json");
    auto const end = run_command(full);
    EXPECT_EQ(end.exit_code, exit_code) << arguments[0] << " " << arguments.back() << end.err;
    auto const answer = Json::parse(end.out, nullptr, false);
    ASSERT_TRUE(answer.is_object()) << arguments[0] << ": " << end.out;
    EXPECT_EQ(answer.at("command"), arguments[0]);
    EXPECT_EQ(answer.at("ok"), exit_code == 0);
    EXPECT_EQ(answer.at("exit_code"), exit_code);
    EXPECT_EQ(answer.contains("error"), exit_code > 1) << end.out;
  }
}

TEST_F(CheckpointMessages, explains_its_plan_for_packed_numbers) {
  std::string const layer = "model.layers.0.mlp.down_proj";
  for (int rank = 0; rank < 2; ++rank) {
    fs::remove(shards() / ("rank" + std::to_string(rank) + ".safetensors"));
    // NVFP4: 8 outputs, 32 inputs on each rank.
    StateDict mine{{layer + ".weight", Tensor::zeros({8, 16}, Dtype::u8)},
                   {layer + ".weight_scale", Tensor::zeros({8, 2}, Dtype::f8_e4m3)},
                   {layer + ".weight_scale_2", Tensor::scalar(0.5F)},
                   {layer + ".input_scale", Tensor::scalar(1.0F + static_cast<float>(rank))}};
    mine.at(layer + ".weight").mutable_bytes()[0] = static_cast<std::byte>(rank + 1);
    save_safetensors(shards() / ("rank" + std::to_string(rank) + ".safetensors"), mine);
  }
  std::ofstream(shards() / "config.json") << R"({"hidden_size": 8, "intermediate_size": 64, "num_hidden_layers": 1})";

  auto const dry = consolidate({"--dry-run", "--json"});
  auto const weight = consolidate({"--explain", layer + ".weight"});
  auto const scale = consolidate({"--explain", layer + ".weight_scale"});
  auto const input = consolidate({"--explain", layer + ".input_scale"});

  ASSERT_EQ(dry.exit_code, 0) << dry.err << dry.out;
  auto const answer = Json::parse(dry.out);
  EXPECT_EQ(answer.at("plan").at("tensors"), 4);
  // 8 x 32 packed bytes, 8 x 4 scales, two floats.
  EXPECT_EQ(answer.at("plan").at("bytes"), 256 + 32 + 8);
  EXPECT_THAT(weight.out, HasSubstr("U8 [8, 32], 256 bytes"));
  EXPECT_THAT(weight.out, HasSubstr("NVFP4"));
  EXPECT_THAT(weight.out, HasSubstr("8 x 16 bytes"));
  EXPECT_THAT(scale.out, HasSubstr("F8_E4M3 [8, 4]"));
  EXPECT_THAT(input.out, HasSubstr("the largest covers all ranks"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointMessages, reports_the_part_of_an_archive_that_it_omits) {
  auto const file = folder_.path() / "last.pt";
  checkpoint::TorchFile torch;
  auto const model = checkpoint::dict_of({{"a.weight", torch.filled(4, 1.0F)}});
  auto const averaged = checkpoint::dict_of({{"a.weight", torch.filled(4, 2.0F)}});
  torch.write(file, checkpoint::dict_of({{"model", model}, {"ema", averaged}}));

  auto const plain = run_command({"convert", file.string(), out().string()});
  auto const asked = run_command({"convert", file.string(), (folder_.path() / "ema").string(), "--model-key", "ema"});

  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("left out ema: beside the model; --model-key ema takes it"));
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_EQ(load_safetensors(out() / "model.safetensors").at("a.weight").as<float>()[0], 1.0F);
  EXPECT_EQ(load_safetensors(folder_.path() / "ema" / "model.safetensors").at("a.weight").as<float>()[0], 2.0F);
}

TEST_F(CheckpointMessages, stops_on_a_signal_to_any_process_and_leaves_no_files) {
  auto const large = folder_.path() / "large";
  fs::create_directories(large);
  for (int rank = 0; rank < 2; ++rank)
    save_safetensors(large / ("rank" + std::to_string(rank) + ".safetensors"),
                     test::sample_weights(12, 1024, 512, 5 + static_cast<unsigned>(rank)));
  for (int const number : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGXCPU}) {
    for (std::string const processes : {"1", "4"}) {
      auto const parent = folder_.path() / "new";
      auto const target = parent / "folders" / "stopped";
      CommandRun run({"consolidate", large.string(), target.string(), "-n", processes, "--progress", "bar",
                      "--max-shard-size", "2MB"});
      ASSERT_TRUE(run.wait_for(" of ")) << number << ", " << processes;
      run.signal(number);
      auto const end = run.finish();
      // A checkpoint that was finished before the signal is complete; otherwise there is none.
      EXPECT_THAT(end.exit_code, testing::AnyOf(0, 128 + number)) << end.err;
      EXPECT_EQ(fs::exists(target), end.exit_code == 0) << number << ", " << processes << ": " << end.err;
      EXPECT_EQ(fs::exists(parent), end.exit_code == 0) << "folders that were made for the output";
      if (end.exit_code != 0 && processes == "1") {
        EXPECT_THAT(end.err, HasSubstr("ended by signal " + std::to_string(number)));
      }
      fs::remove_all(parent);
    }
  }
}

TEST_F(CheckpointMessages, ends_in_order_when_nothing_reads_its_progress) {
  auto const large = folder_.path() / "large";
  test::make_large_shards(large);
  for (std::string const processes : {"1", "2"}) {
    auto const script = std::string(CROSSRANK_COMMAND) + " consolidate " + large.string() + " " + out().string() +
                        " -n " + processes + " --threads 1 --progress bar 2>&1 | head -c 10; exit ${PIPESTATUS[0]}";

    auto const end = run_command({"run", "-n", "1", "--", "bash", "-c", script});

    EXPECT_EQ(end.exit_code, 128 + SIGPIPE) << processes << ": " << end.err;
    EXPECT_FALSE(fs::exists(out())) << processes << ": " << testing::PrintToString(test::names_in(out()));
  }
}

TEST_F(CheckpointMessages, reports_too_little_memory_as_an_error_of_the_system_with_the_limit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more address space";
#endif
  auto const large = folder_.path() / "large";
  test::make_large_shards(large);
  auto const script = "ulimit -v 80000; exec " + std::string(CROSSRANK_COMMAND) + " consolidate " + large.string() +
                      " " + out().string();

  auto const end = run_command({"run", "-n", "1", "--", "sh", "-c", script});

  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_THAT(end.err, HasSubstr("81920000 bytes of address space (ulimit -v)"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CheckpointMessages, leaves_no_folders_when_the_path_of_the_output_is_too_long) {
  auto path = folder_.path() / "long";
  while (path.string().size() < 5000) path /= std::string(200, 'x');
  EXPECT_EQ(run_command({"consolidate", shards().string(), path.string()}).exit_code, 3);
  EXPECT_FALSE(fs::exists(folder_.path() / "long"));
}

TEST_F(CheckpointMessages, takes_one_value_for_each_option_that_may_be_repeated) {
  auto const explained = run_command({"consolidate", "--explain", "model.norm.weight", "--explain",
                                      "model.layers.1.mlp.down_proj.weight", shards().string(), out().string()});
  EXPECT_EQ(explained.exit_code, 0) << explained.err;
  EXPECT_THAT(explained.out, HasSubstr("model.norm.weight"));
  EXPECT_THAT(explained.out, HasSubstr("model.layers.1.mlp.down_proj.weight"));
  auto const merged = run_command({"consolidate", "--allow-global", "a.b", shards().string(), out().string()});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
}

TEST_F(CheckpointMessages, names_the_option_for_the_grid_of_the_input) {
  fs::remove(shards() / "config.json");
  auto const split = run_command({"split", shards().string(), out().string(), "--tp", "1", "--json"});
  EXPECT_THAT(split.out, HasSubstr("set --from-tp, or put config.json beside the shards"));
  EXPECT_THAT(split.err, HasSubstr("set --from-tp"));
  EXPECT_THAT(consolidate({"--force"}).err, HasSubstr("set --tp"));
  auto const wrong = run_command({"split", shards().string(), out().string(), "--tp", "1", "--from-moe-ep", "5"});
  EXPECT_THAT(wrong.err, HasSubstr("correct --from-moe-ep"));
  auto const groups = run_command({"split", shards().string(), out().string(), "--tp", "1", "--moe-ep", "2"});
  EXPECT_THAT(groups.err, HasSubstr("leave --moe-ep at 1"));
}

TEST_F(CheckpointMessages, names_the_length_that_a_config_lacks) {
  std::ofstream(shards() / "config.json") << R"({"architectures": ["LlamaForCausalLM"], "hidden_size": -1})";
  auto const end = consolidate();
  EXPECT_THAT(end.err, HasSubstr("set --tp, or give \"hidden_size\" in config.json"));
  EXPECT_THAT(end.err, Not(HasSubstr("beside the shards")));
}

TEST_F(CheckpointMessages, escapes_control_characters_in_arguments) {
  std::vector<std::vector<std::string>> const commands{{"consolidate", "--\x1b[31m"},
                                                       {"consolidate", "in", "out", "--crc", "\x1b[31m"},
                                                       {"run", "-n", "1", "--", "\x1b[31m"}};
  for (auto const& command : commands) {
    auto const end = run_command(command);
    EXPECT_NE(end.exit_code, 0);
    EXPECT_THAT(end.err, HasSubstr("\\x1b[31m"));
    EXPECT_THAT(end.err, Not(HasSubstr("\x1b")));
  }
}

}  // namespace
}  // namespace crossrank
