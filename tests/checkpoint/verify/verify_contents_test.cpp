// Checkpoints whose files open and fit together, but whose contents are wrong.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/platform/system.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/checkpoint/support/dcp_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

auto defect(DefectKind kind, std::string const& resource, std::string const& text) {
  return AllOf(Field("kind", &Defect::kind, kind), Field("resource", &Defect::resource, HasSubstr(resource)),
               Field("text", &Defect::text, HasSubstr(text)));
}

std::string list(VerifyReport const& report) {
  std::string text;
  for (auto const& one : report.defects)
    text += std::string(to_string(one.kind)) + ": " + one.resource + ": " + one.text + "\n";
  return text;
}

VerifyReport verify_alone(fs::path const& path, VerifyOptions const& options = {}) {
  return verify(connect({.backend = "fake"}), path, {}, options);
}

void flip_byte(fs::path const& path, std::string const& behind) {
  auto text = test::text_of_file(path);
  auto const at = text.find(behind);
  ASSERT_NE(at, std::string::npos);
  text[at] = static_cast<char>(text[at] ^ 1);
  std::ofstream(path, std::ios::binary) << text;
}

TEST(VerifyContents, compares_the_crcs_of_a_distributed_checkpoint) {
  TemporaryDirectory const folder;
  DcpFiles files;
  files.add({"model", "a"}, {1, 2, 3, 4});
  files.add({"model", "b"}, {5, 6, 1234.5F, 8});
  files.write(folder.path());
  auto const clean = verify_alone(folder.path());
  EXPECT_TRUE(clean.ok()) << list(clean);
  EXPECT_EQ(clean.files, 1U);
  float const value = 1234.5F;
  flip_byte(folder.path() / "__0_0.distcp", std::string(reinterpret_cast<char const*>(&value), sizeof value));

  auto const report = verify_alone(folder.path());

  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::checksum, "__0_0.distcp", "CRC"))) << list(report);
  EXPECT_TRUE(verify(connect({.backend = "fake"}), folder.path(), {.crc = ArchiveCrc::ignore}).ok());
  test::run_thread_ranks(2,
                         [&](Collective const& world) { EXPECT_EQ(list(verify(world, folder.path())), list(report)); });
}

TEST(VerifyContents, compares_the_crcs_of_the_optimizer_in_a_distributed_checkpoint) {
  TemporaryDirectory const folder;
  DcpFiles files;
  files.add({"model", "a"}, {1, 2, 3, 4});
  files.add({"optim", "state", "a", "exp_avg"}, {5, 6, 1234.5F, 8});
  files.write(folder.path());
  auto const clean = verify_alone(folder.path());
  EXPECT_TRUE(clean.ok()) << list(clean);
  EXPECT_EQ(clean.tensors, 1U) << "the optimizer is no part of the model";
  float const value = 1234.5F;
  flip_byte(folder.path() / "__0_0.distcp", std::string(reinterpret_cast<char const*>(&value), sizeof value));

  auto const report = verify_alone(folder.path());

  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::checksum, "__0_0.distcp", "CRC"))) << list(report);
}

TEST(VerifyContents, names_a_missing_file_of_the_optimizer_and_a_torn_training_state) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"a", Tensor::zeros({2}, Dtype::f32)}});
  auto const state = folder.path() / "training_state.json";
  std::ofstream(state) << R"({"optimizer": {"name": "AdamW", "steps": 3, "files": ["optimizer.safetensors"]}})";

  auto const missing = verify_alone(folder.path());
  save_safetensors(folder.path() / "optimizer.safetensors", {{"b", Tensor::zeros({2}, Dtype::f32)}});
  auto const complete = verify_alone(folder.path());
  fs::resize_file(state, 20);
  auto const torn = verify_alone(folder.path());

  EXPECT_THAT(missing.defects,
              ElementsAre(defect(DefectKind::coverage, "training_state.json", "optimizer.safetensors")))
      << list(missing);
  EXPECT_TRUE(complete.ok()) << list(complete);
  EXPECT_THAT(torn.defects, ElementsAre(defect(DefectKind::file, "training_state.json", "JSON"))) << list(torn);
}

TEST(VerifyContents, names_a_missing_index) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model-00001-of-00002.safetensors", {{"a", Tensor::zeros({2}, Dtype::f32)}});
  save_safetensors(folder.path() / "model-00002-of-00002.safetensors", {{"b", Tensor::zeros({2}, Dtype::f32)}});

  auto const report = verify_alone(folder.path());

  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::index, "model.safetensors.index.json", "2 files")))
      << list(report);
}

std::string module(int layer) { return "model.layers." + std::to_string(layer) + ".mlp.up_proj"; }

/// Returns two layers of NVFP4.
StateDict nvfp4_layers() {
  StateDict weights;
  for (int i = 0; i < 2; ++i) {
    weights.insert_or_assign(module(i) + ".weight", Tensor::zeros({4, 16}, Dtype::u8));
    auto scale = Tensor::zeros({4, 2}, Dtype::f8_e4m3);
    for (auto& byte : scale.mutable_bytes()) byte = std::byte{0x38};
    weights.insert_or_assign(module(i) + ".weight_scale", scale);
    weights.insert_or_assign(module(i) + ".weight_scale_2", Tensor::scalar(0.5F));
    weights.insert_or_assign(module(i) + ".input_scale", Tensor::scalar(2.F));
  }
  return weights;
}

VerifyReport verify_weights(StateDict const& weights, std::string const& config = "{}",
                            VerifyOptions const& options = {}) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", weights);
  std::ofstream(folder.path() / "config.json") << config;
  return verify_alone(folder.path(), options);
}

TEST(VerifyContents, names_a_quantized_weight_without_a_scale) {
  EXPECT_TRUE(verify_weights(nvfp4_layers()).ok()) << list(verify_weights(nvfp4_layers()));
  auto weights = nvfp4_layers();
  weights.erase(module(1) + ".weight_scale");
  auto report = verify_weights(weights);
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::scales, module(1), "no weight_scale"))) << list(report);

  weights = nvfp4_layers();
  for (int i = 0; i < 2; ++i) weights.erase(module(i) + ".weight_scale_2");
  report = verify_weights(weights);
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(report.defects, Contains(defect(DefectKind::scales, module(i), "weight_scale_2"))) << list(report);
}

TEST(VerifyContents, uses_the_config_when_no_layer_has_a_scale) {
  StateDict const weights{{module(0) + ".weight", Tensor::zeros({4, 4}, Dtype::f8_e4m3)},
                          {module(1) + ".weight", Tensor::zeros({4, 4}, Dtype::f8_e4m3)}};
  EXPECT_TRUE(verify_weights(weights).ok());
  auto const report = verify_weights(weights, R"({"quantization_config": {"quant_method": "fp8"}})");
  EXPECT_EQ(report.defects.size(), 2U) << list(report);
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::scales, module(1), "F8_E4M3 weight has no weight_scale")));
}

TEST(VerifyContents, names_a_scale_that_is_not_above_zero) {
  for (float const value : {0.F, -0.F, -2.F}) {
    auto weights = nvfp4_layers();
    weights.insert_or_assign(module(1) + ".weight_scale_2", Tensor::scalar(value));
    auto const report = verify_weights(weights);
    EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::scales, module(1) + ".weight_scale_2",
                                                   value < 0 ? "below zero" : "is zero")))
        << list(report);
  }
  auto weights = nvfp4_layers();
  weights.at(module(0) + ".weight_scale").mutable_bytes()[3] = std::byte{0xb8};
  auto report = verify_weights(weights);
  EXPECT_THAT(report.defects,
              ElementsAre(defect(DefectKind::scales, module(0) + ".weight_scale", "1 of 8 scales are below zero")))
      << list(report);

  weights.insert_or_assign(module(0) + ".weight_scale", Tensor::zeros({4, 2}, Dtype::f8_e4m3));
  report = verify_weights(weights);
  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::scales, module(0), "all 8 scales are zero")));
}

TEST(VerifyContents, names_a_scale_that_is_not_finite_once) {
  for (float const value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto weights = nvfp4_layers();
    weights.insert_or_assign(module(1) + ".weight_scale_2", Tensor::scalar(value));
    auto const name = module(1) + ".weight_scale_2";
    auto const report = verify_weights(weights);
    EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::scales, name, "NaN or infinite"))) << list(report);
    auto const numbers = verify_weights(weights, "{}", {.numbers = true});
    EXPECT_THAT(numbers.defects, ElementsAre(defect(DefectKind::numbers, name, "1 "))) << list(numbers);
  }
  auto weights = nvfp4_layers();
  weights.at(module(0) + ".weight_scale").mutable_bytes()[3] = std::byte{0x7f};
  auto const report = verify_weights(weights);
  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::scales, module(0), "1 of 8 scales are NaN or infinite")))
      << list(report);
}

TEST(VerifyContents, names_a_power_of_two_that_is_not_a_number) {
  for (auto const dtype : {Dtype::u8, Dtype::f8_e8m0}) {
    auto scale = Tensor::zeros({4, 2}, dtype);
    for (auto& byte : scale.mutable_bytes()) byte = std::byte{127};
    StateDict const weights{{module(0) + ".weight", Tensor::zeros({4, 32}, Dtype::u8)},
                            {module(0) + ".weight_scale", scale}};
    EXPECT_TRUE(verify_weights(weights).ok());
    scale = scale.clone();
    scale.mutable_bytes()[3] = std::byte{255};
    auto broken = weights;
    broken.insert_or_assign(module(0) + ".weight_scale", scale);
    auto const report = verify_weights(broken);
    EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::scales, module(0), "1 of 8 scales are NaN or infinite")))
        << list(report);
    EXPECT_EQ(verify_weights(broken, "{}", {.numbers = true}).defects.size(), 1U);
  }
}

TEST(VerifyContents, accepts_single_zeros_and_negative_integer_scales) {
  auto weights = nvfp4_layers();
  weights.at(module(0) + ".weight_scale").mutable_bytes()[3] = std::byte{0};
  std::vector<float> const values{-1.F, 1.F};
  auto const negative = Tensor::of(std::span(values), {1, 2});
  weights.insert_or_assign("model.layers.0.mlp.down_proj.qweight", Tensor::zeros({2, 2}, Dtype::i32));
  weights.insert_or_assign("model.layers.0.mlp.down_proj.scales", negative);
  weights.insert_or_assign("model.layers.1.mlp.down_proj.qweight", Tensor::zeros({2, 2}, Dtype::i32));
  weights.insert_or_assign("model.layers.1.mlp.down_proj.scales", negative);
  auto const report = verify_weights(weights);
  EXPECT_TRUE(report.ok()) << list(report);
}

TEST(VerifyContents, reads_long_scales_only_with_numbers) {
  auto scale = Tensor::zeros({512, 256}, Dtype::f8_e4m3);
  for (auto& byte : scale.mutable_bytes()) byte = std::byte{0x38};
  scale.mutable_bytes()[70000] = std::byte{0xb8};
  StateDict const weights{{module(0) + ".weight", Tensor::zeros({512, 2048}, Dtype::u8)},
                          {module(0) + ".weight_scale", scale},
                          {module(0) + ".weight_scale_2", Tensor::scalar(1.F)}};
  EXPECT_TRUE(verify_weights(weights).ok());
  auto const report = verify_weights(weights, "{}", {.numbers = true});
  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::scales, module(0), "the first at element 70000")))
      << list(report);
}

TEST(VerifyContents, compares_the_vocabulary_with_the_config) {
  StateDict const weights{{"model.embed_tokens.weight", Tensor::zeros({300, 4}, Dtype::bf16)},
                          {"lm_head.weight", Tensor::zeros({320, 4}, Dtype::bf16)}};
  auto const report = verify_weights(weights, R"({"model_type": "other", "vocab_size": 320})");
  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::shape, "model.embed_tokens.weight", "300 rows")))
      << list(report);
  EXPECT_TRUE(verify_weights(weights, R"({"model_type": "other", "vocab_size": 300})").ok());
}

TEST(VerifyContents, names_a_missing_matrix_of_a_feed_forward) {
  for (std::string const lost : {"up_proj", "down_proj"}) {
    StateDict weights;
    for (int i = 0; i < 2; ++i) {
      for (std::string const part : {"gate_proj", "up_proj", "down_proj"}) {
        if (i == 1 && part == lost) continue;
        weights.insert_or_assign("model.layers." + std::to_string(i) + ".mlp." + part + ".weight",
                                 Tensor::zeros({4, 4}, Dtype::bf16));
      }
    }
    auto const report = verify_weights(weights);
    EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::coverage, "model.layers.1.mlp." + lost, "missing")))
        << list(report);
  }
}

TEST(VerifyContents, expects_no_up_projection_beside_the_gate_of_an_attention) {
  StateDict weights;
  for (std::string const part : {"q_proj", "k_proj", "v_proj", "gate_proj", "o_proj"})
    weights.insert_or_assign("model.layers.0.self_attn." + part + ".weight", Tensor::zeros({4, 4}, Dtype::bf16));
  auto const report = verify_weights(weights);
  EXPECT_TRUE(report.ok()) << list(report);
}

TEST(VerifyContents, reports_a_damaged_training_file_as_damaged) {
  TemporaryDirectory const folder;
  fs::create_directories(folder.path() / "global_step1");
  std::ofstream(folder.path() / "latest") << "global_step1";
  TorchFile file;
  auto const archive = file.bytes(dict_of({{"module", dict_of({{"w", file.filled(64, 1)}})}}));
  for (std::string const name : {"zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"})
    std::ofstream(folder.path() / "global_step1" / name, std::ios::binary) << archive.substr(0, archive.size() - 30);

  auto const report = verify_alone(folder.path());

  EXPECT_THAT(report.defects, ElementsAre(defect(DefectKind::file, "global_step1", ""))) << list(report);
}

/// A system on which the nth attempt of the calling thread to open a file fails.
class OneThreadThatCannotOpen final : public platform::System {
 public:
  OneThreadThatCannotOpen(std::string file, int error) : file_(std::move(file)), error_(error) {}
  int openat(int directory, char const* path, int flags, mode_t mode) override {
    if (std::string_view(path).ends_with(file_) && ++opened == first_failure) {
      errno = error_;
      return -1;
    }
    return System::openat(directory, path, flags, mode);
  }
  static thread_local int opened;
  static thread_local int first_failure;  ///< 0: none

 private:
  std::string file_;
  int error_;
};
thread_local int OneThreadThatCannotOpen::opened = 0;
thread_local int OneThreadThatCannotOpen::first_failure = 0;

/// The ranks divide the files among themselves: all leave out the file that one of them cannot open.
TEST(VerifyContents, names_a_file_that_one_rank_cannot_open_and_compares_the_others) {
  TemporaryDirectory const folder;
  std::string const unopened = "mp_rank_00_model_states.pt";
  fs::create_directories(folder.path() / "global_step1");
  std::ofstream(folder.path() / "latest") << "global_step1";
  for (std::string const name : {"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"}) {
    TorchFile file;
    auto bytes =
        file.bytes(dict_of({{"module", dict_of({{"w", file.filled(64, 1234.5F)}, {"v", file.filled(8, 2)}})}}));
    std::ofstream(folder.path() / "global_step1" / name, std::ios::binary) << bytes;
  }
  float const value = 1234.5F;
  flip_byte(folder.path() / "global_step1/mp_rank_01_model_states.pt",
            std::string(reinterpret_cast<char const*>(&value), sizeof value));
  OneThreadThatCannotOpen system(unopened, EIO);
  platform::ScopedSystem const installed(system);
  using Opens = OneThreadThatCannotOpen;

  test::run_thread_ranks(2, [&](Collective const& world) {
    auto const path = world.rank() == 0 ? folder.path() : folder.path() / "global_step1" / "..";
    Opens::first_failure = 0;
    Opens::opened = 0;
    auto const before = verify(world, path);
    EXPECT_THAT(before.defects, Contains(defect(DefectKind::checksum, "mp_rank_01", "CRC"))) << list(before);
    Opens::first_failure = world.rank() == 1 ? std::exchange(Opens::opened, 0) : 0;

    auto const report = verify(world, path);

    EXPECT_THAT(report.defects, Contains(defect(DefectKind::checksum, "mp_rank_01", "CRC"))) << list(report);
    EXPECT_THAT(report.defects, Contains(defect(DefectKind::file, unopened, "EIO"))) << list(report);
  });
}

/// A limit of the process says nothing about the files.
TEST(VerifyContents, throws_when_one_rank_has_no_descriptor_left) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", {{"a", Tensor::zeros({2}, Dtype::f32)}});
  OneThreadThatCannotOpen system("model.safetensors", EMFILE);
  platform::ScopedSystem const installed(system);
  test::run_thread_ranks(2, [&](Collective const& world) {
    OneThreadThatCannotOpen::opened = 0;
    OneThreadThatCannotOpen::first_failure = world.rank() == 1 ? 1 : 0;
    EXPECT_THROW((void)verify(world, folder.path()), Error);
  });
}

TEST(VerifyContents, keeps_a_finding_that_mentions_an_index) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "index_rank0.safetensors", {{"a", Tensor::zeros({4}, Dtype::f32)}});
  save_safetensors(folder.path() / "index_rank1.safetensors", {{"b", Tensor::zeros({4}, Dtype::f32)}});
  std::ofstream(folder.path() / "other.safetensors") << "damaged";

  auto const report = verify(connect({.backend = "fake"}), folder.path(), {.pattern = "index_rank{rank}.safetensors"});

  EXPECT_THAT(report.defects, Contains(defect(DefectKind::file, "other.safetensors", ""))) << list(report);
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::shape, "index_rank1", "the shards are of different models")))
      << list(report);
}

TEST(VerifyContents, hints_to_restore_the_file_of_a_duplicated_rank) {
  TemporaryDirectory const folder;
  auto const weights = test::sample_weights(2, 4, 4, 9);
  for (int rank = 0; rank < 2; ++rank)
    save_safetensors(folder.path() / ("rank" + std::to_string(rank) + ".safetensors"), weights);
  std::ofstream(folder.path() / "config.json")
      << R"({"num_hidden_layers": 2, "hidden_size": 4, "intermediate_size": 8})";
  auto const report = verify_alone(folder.path());
  EXPECT_THAT(report.defects, Contains(Field("hint", &Defect::hint, HasSubstr("copy the original file"))))
      << list(report);
  auto const world = connect({.backend = "fake"});
  auto const plan = MergePlan::make(world, folder.path());
  try {
    (void)consolidate(world, plan, folder.path() / "out");
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().message, HasSubstr("one rank's file is a copy of another's"));
    EXPECT_THAT(error.info().hint, testing::Not(HasSubstr("calibrate")));
  }
}

TEST(Explain, names_the_files_of_a_distributed_checkpoint) {
  TemporaryDirectory const folder;
  DcpFiles files;
  files.add({"model", "a"}, {1, 2, 3, 4});
  files.write(folder.path());
  auto const plan = MergePlan::make(connect({.backend = "fake"}), folder.path());
  EXPECT_THAT(plan.explain("a"), HasSubstr("__0_0.distcp"));
}

}  // namespace
}  // namespace crossrank::checkpoint
