// `verify` reports all defects in one run, and nothing else.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/workspace.hpp>

#include "lib/tensor/small_float.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/checkpoint/support/torch_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/checkpoint/verify/scan_numbers.hpp"

namespace crossrank::verify_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::DefectKind;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

auto defect(DefectKind kind, std::string const& resource, std::string const& text) {
  return AllOf(Field("kind", &checkpoint::Defect::kind, kind),
               Field("resource", &checkpoint::Defect::resource, HasSubstr(resource)),
               Field("text", &checkpoint::Defect::text, HasSubstr(text)));
}

std::string list(checkpoint::VerifyReport const& report) {
  std::string text;
  for (auto const& one : report.defects)
    text += std::string(to_string(one.kind)) + ": " + one.resource + ": " + one.text + "\n";
  return text;
}

checkpoint::VerifyReport verify(fs::path const& path, checkpoint::VerifyOptions const& options = {}) {
  return checkpoint::verify(connect({.backend = "fake"}), path, {}, options);
}

StateDict pick(StateDict const& all, std::vector<std::string> const& names) {
  StateDict some;
  for (auto const& name : names) some.insert_or_assign(name, all.at(name));
  return some;
}

std::string layer(int number) { return "model.layers." + std::to_string(number) + ".mlp.down_proj.weight"; }

/// The ranks read parts of one tensor.
TEST(VerifyNumbers, gives_one_finding_for_a_tensor_on_any_number_of_ranks) {
  TemporaryDirectory const folder;
  std::vector<float> values(std::size_t{12} << 20);  // 48 MiB
  for (std::size_t const at : {std::size_t{3'000'000}, std::size_t{7'000'000}, std::size_t{12'000'000}})
    values[at] = NAN;
  save_safetensors(folder.path() / "model.safetensors",
                   {{"weight", Tensor::of<float>(values, {static_cast<std::int64_t>(values.size())})}});
  for (int const ranks : {1, 3}) {
    test::run_thread_ranks(ranks, [&](Collective const& world) {
      auto const report = checkpoint::verify(world, folder.path(), {}, {.numbers = true});
      EXPECT_THAT(report.defects, testing::ElementsAre(defect(DefectKind::numbers, "weight", "3 NaN in")))
          << list(report);
      EXPECT_THAT(list(report), HasSubstr("the first at element 3000000"));
    });
  }
}

TEST(VerifyRanks, must_see_the_same_files) {
  TemporaryDirectory const folder;
  for (int const rank : {0, 1}) {
    auto const own = folder.path() / std::to_string(rank);
    fs::create_directories(own);
    save_safetensors(own / "model.safetensors", {{"weight", Tensor::zeros({4 + rank}, Dtype::f32)}});
  }
  test::run_thread_ranks(2, [&](Collective const& world) {
    EXPECT_THROW((void)checkpoint::verify(world, folder.path() / std::to_string(world.rank()), {}, {.numbers = true}),
                 MismatchError);
  });
}

class VerifyGolden : public testing::TestWithParam<std::string> {};

TEST_P(VerifyGolden, finds_nothing_wrong) {
  auto const path = fs::path(CROSSRANK_TEST_DATA) / GetParam();
  auto const report = verify(path, {.numbers = true});
  EXPECT_TRUE(report.ok()) << list(report);
  EXPECT_GT(report.tensors, 10U);
  EXPECT_GT(report.bytes_read, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, VerifyGolden,
                         testing::Values("quantized/fp8/full", "quantized/fp8/tp2", "quantized/nvfp4/full",
                                         "quantized/nvfp4/tp2", "quantized/int4_awq/full", "quantized/int4_awq/tp2",
                                         "architectures/mixtral/full", "architectures/mixtral/tp2",
                                         "architectures/gpt_neox/full", "architectures/gpt_neox/tp2", "dcp/dcp_hf",
                                         "dcp/dcp_torch"),
                         [](auto const& tested) {
                           auto name = tested.param;
                           for (auto& c : name) c = c == '/' ? '_' : c;
                           return name;
                         });

TEST(Verify, ignores_the_state_of_a_training_beside_the_weights) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", test::sample_weights(2, 4, 6, 5));
  for (auto const* name : {"optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth", "training_args.bin"})
    std::ofstream(folder.path() / name) << "no weights";
  auto const report = verify(folder.path());
  EXPECT_TRUE(report.ok()) << list(report);
}

TEST(Verify, names_every_contradiction_of_index_files_and_config) {
  TemporaryDirectory const folder;
  auto weights = test::sample_weights(4, 4, 6, 5);
  weights.at(layer(0)).as_mutable<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  weights.at(layer(1)).as_mutable<float>()[2] = -std::numeric_limits<float>::infinity();
  save_safetensors(folder.path() / "a.safetensors", pick(weights, {layer(0), layer(1)}));
  save_safetensors(folder.path() / "b.safetensors", pick(weights, {layer(3)}));
  save_safetensors(folder.path() / "stray.safetensors", pick(weights, {"model.norm.weight"}));
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << Json{{"metadata", {{"total_size", 7}}},
              {"weight_map", {{layer(0), "a.safetensors"}, {layer(3), "b.safetensors"}, {"ghost", "b.safetensors"}}}};
  std::ofstream(folder.path() / "config.json") << R"({"num_hidden_layers": 5})";

  auto const report = verify(folder.path(), {.numbers = true});

  auto const& found = report.defects;
  EXPECT_THAT(found, Contains(defect(DefectKind::index, "index.json", "does not list \"" + layer(1) + "\"")))
      << list(report);
  EXPECT_THAT(found, Contains(defect(DefectKind::index, "index.json", "lists \"ghost\" in b.safetensors")));
  EXPECT_THAT(found, Contains(defect(DefectKind::index, "index.json", "does not list the file stray.safetensors")));
  EXPECT_THAT(found, Contains(defect(DefectKind::index, "index.json", "total_size is 7")));
  EXPECT_THAT(found, Contains(defect(DefectKind::coverage, "", "model.layers.* lacks number 2, 4")));
  EXPECT_THAT(found, Contains(defect(DefectKind::numbers, layer(0), "1 NaN in ")));
  EXPECT_THAT(found, Contains(defect(DefectKind::numbers, layer(1), "1 infinities in ")));
  EXPECT_EQ(found.size(), 7U) << list(report);
}

TEST(Verify, does_not_call_a_tensor_missing_whose_shards_do_not_fit) {
  TemporaryDirectory const folder;
  for (int rank = 0; rank < 2; ++rank) {
    save_safetensors(folder.path() / ("rank" + std::to_string(rank) + ".safetensors"),
                     {{"model.layers.0.mlp.gate_proj.weight", Tensor::zeros({rank == 0 ? 16 : 12, 8}, Dtype::f32)},
                      {"model.layers.0.mlp.up_proj.weight", Tensor::zeros({16, 8}, Dtype::f32)}});
  }
  std::ofstream(folder.path() / "config.json")
      << Json{{"model_type", "llama"}, {"hidden_size", 8}, {"intermediate_size", 32}, {"num_hidden_layers", 1}};

  auto const found = verify(folder.path()).defects;

  EXPECT_THAT(found, Contains(defect(DefectKind::shape, "mlp.gate_proj", "got 16, 12")));
  EXPECT_THAT(found, Contains(defect(DefectKind::coverage, "mlp.down_proj", "missing")));
  EXPECT_THAT(found, Not(Contains(defect(DefectKind::coverage, "mlp.gate_proj", ""))));
}

TEST(Verify, continues_after_damaged_and_missing_files) {
  TemporaryDirectory const folder;
  auto weights = test::sample_weights(2, 4, 6, 5);
  weights.at(layer(0)).as_mutable<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  save_safetensors(folder.path() / "a.safetensors", pick(weights, {layer(0)}));
  save_safetensors(folder.path() / "b.safetensors", pick(weights, {layer(1)}));
  fs::resize_file(folder.path() / "b.safetensors", fs::file_size(folder.path() / "b.safetensors") - 1);
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << Json{{"weight_map", {{layer(0), "a.safetensors"}, {layer(1), "b.safetensors"}, {"c", "c.safetensors"}}}};

  auto const report = verify(folder.path(), {.numbers = true});

  EXPECT_THAT(report.defects, Contains(defect(DefectKind::file, "b.safetensors", "95")));
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::index, "index.json", "c.safetensors")));
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::numbers, layer(0), "1 NaN")));
  EXPECT_EQ(report.defects.size(), 3U) << list(report);
}

TEST(Verify, compares_replicas_and_checks_scales) {
  TemporaryDirectory const folder;
  for (int rank = 0; rank < 2; ++rank) {
    StateDict mine;
    mine.insert_or_assign(layer(0), Tensor::zeros({8, 16}, Dtype::f8_e4m3));
    mine.insert_or_assign("model.layers.0.mlp.down_proj.weight_scale", Tensor::scalar(rank == 0 ? 0.5F : 0.25F));
    mine.insert_or_assign("model.layers.0.mlp.up_proj.weight", Tensor::zeros({8, 16}, Dtype::f8_e4m3));
    mine.insert_or_assign("model.layers.0.mlp.up_proj.weight_scale", Tensor::zeros({3, 5}, Dtype::f32));
    mine.insert_or_assign("model.norm.weight", Tensor::scalar(static_cast<float>(rank)));
    mine.insert_or_assign("model.layers.0.scale_norm.weight", Tensor::scalar(static_cast<float>(rank)));
    save_safetensors(folder.path() / ("rank" + std::to_string(rank) + ".safetensors"), mine);
  }
  std::ofstream(folder.path() / "config.json")
      << R"({"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 32})";
  checkpoint::VerifyReport report;

  test::run_thread_ranks(3, [&](Collective const& world) {
    auto const mine = checkpoint::verify(world, folder.path());
    if (world.rank() == 1) report = mine;
  });

  EXPECT_THAT(report.defects, Contains(defect(DefectKind::scales, "down_proj.weight_scale", "0.25"))) << list(report);
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::replicas, "model.norm.weight", "rank1.safetensors")));
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::replicas, "scale_norm.weight", "rank1.safetensors")))
      << "the role of a tensor counts, not its name: " << list(report);
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::scales, "model.layers.0.mlp.up_proj", ""))) << list(report);
}

TEST(Verify, reads_files_of_a_workspace) {
  TemporaryDirectory const folder;
  NFSWorkspace workspace(folder.path(), {.rank = 0});
  workspace.write_configs_and_weights(Json::object(), test::sample_weights(2, 4, 6, 5));
  ASSERT_TRUE(verify(folder.path()).ok());
  for (auto const& name : test::names_in(folder.path())) {
    if (!name.ends_with(".safetensors")) continue;
    std::fstream file(folder.path() / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }

  auto const report = verify(folder.path());

  EXPECT_THAT(report.defects, Contains(Field(&checkpoint::Defect::kind, DefectKind::checksum))) << list(report);
  auto const numbers = verify(folder.path(), {.numbers = true});
  EXPECT_EQ(list(numbers), list(report)) << "damage is reported once";
}

TEST(Verify, names_a_file_copied_over_another) {
  TemporaryDirectory const folder;
  auto const whole = test::sample_weights(2, 4, 12, 9);
  for (int rank = 0; rank < 3; ++rank) {
    StateDict mine;
    for (int i = 0; i < 2; ++i) {
      auto const part = slice(whole.at(layer(i)), {.dim = 1}, rank == 2 ? 4 : rank * 4, 4);
      mine.insert_or_assign(layer(i), part);
    }
    save_safetensors(folder.path() / ("rank" + std::to_string(rank) + ".safetensors"), mine);
  }
  std::ofstream(folder.path() / "config.json")
      << R"({"num_hidden_layers": 2, "hidden_size": 4, "intermediate_size": 12})";

  auto const report = verify(folder.path());

  ASSERT_EQ(report.defects.size(), 1U) << list(report);
  EXPECT_THAT(report.defects, Contains(defect(DefectKind::replicas, "", "rank2.safetensors hold the same bytes")));
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, folder.path());
  EXPECT_THROW((void)checkpoint::consolidate(world, plan, folder.path() / "out"), FormatError);
}

TEST(Verify, merge_rejects_an_index_that_lists_missing_tensors) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "model.safetensors", test::sample_weights(2, 4, 4, 3));
  std::ofstream(folder.path() / "model.safetensors.index.json") << R"({"weight_map": {"ghost": "model.safetensors"}})";
  auto const world = connect({.backend = "fake"});

  EXPECT_THROW((void)checkpoint::MergePlan::make(world, folder.path()), FormatError);
  // An index of another format does not describe these files.
  fs::rename(folder.path() / "model.safetensors.index.json", folder.path() / "pytorch_model.bin.index.json");
  EXPECT_EQ(checkpoint::MergePlan::make(world, folder.path()).tensors().size(), 3U);
}

TEST(Verify, reports_an_index_that_lists_nothing) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "a.safetensors", test::sample_weights(1, 4, 4, 1));
  std::ofstream(folder.path() / "model.safetensors.index.json") << R"({"weight_map": {}})";
  EXPECT_THAT(verify(folder.path()).defects, Contains(defect(DefectKind::index, "", "does not list the file")));
  EXPECT_THROW((void)checkpoint::MergePlan::make(connect({.backend = "fake"}), folder.path()), FormatError);
}

TEST(Verify, rejects_a_device) {
  try {
    (void)verify("/dev/null");
    FAIL() << "/dev/null is no checkpoint";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("neither a directory nor a regular file"));
  }
}

TEST(Verify, rejects_a_path_that_does_not_exist) {
  TemporaryDirectory const folder;
  EXPECT_THROW((void)verify(folder.path() / "nothing"), IoError);
}

TEST(NonFinite, finds_values_that_decode_to_nan_or_infinity) {
  for (auto const dtype : {Dtype::f8_e4m3, Dtype::f8_e5m2, Dtype::f8_e8m0, Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz,
                           Dtype::f16, Dtype::bf16}) {
    auto const width = bits_of(dtype) / 8;
    for (std::uint32_t code = 0; code < (1U << bits_of(dtype)); ++code) {
      std::array<std::byte, 6> bytes{};
      std::memcpy(bytes.data() + 2 * width, &code, width);
      auto const number = decode_small_float(dtype, static_cast<std::uint16_t>(code));
      auto const found = checkpoint::count_non_finite(dtype, std::span(bytes).first(3 * width));
      ASSERT_EQ(found.nans, std::isnan(number) ? 1U : 0U) << name_of(dtype) << " " << code;
      ASSERT_EQ(found.infinities, std::isinf(number) ? 1U : 0U) << name_of(dtype) << " " << code;
      if (found.any()) {
        ASSERT_EQ(found.first, 2U);
      }
    }
  }
}

/// Writes a torch archive of one vector; with `damage` one of its bytes is changed.
void write_archive(fs::path const& path, bool damage) {
  checkpoint::TorchFile file;
  file.write(path, checkpoint::dict_of({{"model.norm.weight", file.filled(512, 1.0F)}}));
  if (!damage) return;
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  auto const at = bytes.find(std::string("\0\0\x80\x3f\0\0\x80\x3f", 8));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 400] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Verify, compares_crcs_of_torch_archives_by_policy) {
  TemporaryDirectory const folder;
  write_archive(folder.path() / "model.pt", true);
  auto const world = connect({.backend = "fake"});

  auto const strict = checkpoint::verify(world, folder.path());
  auto const warned = checkpoint::verify(world, folder.path(), {.crc = checkpoint::ArchiveCrc::warn});
  auto const lenient = checkpoint::verify(world, folder.path(), {.crc = checkpoint::ArchiveCrc::ignore});
  auto const unread = checkpoint::verify(world, folder.path(), {}, {.checksums = false});

  EXPECT_THAT(strict.defects, testing::ElementsAre(defect(DefectKind::checksum, "model.pt", "CRC"))) << list(strict);
  EXPECT_EQ(list(warned), list(strict));
  EXPECT_TRUE(lenient.ok()) << list(lenient);
  EXPECT_TRUE(unread.ok()) << list(unread);
}

TEST(Verify, continues_after_unreadable_replicas) {
  TemporaryDirectory const folder;
  write_archive(folder.path() / "rank0.pt", false);
  write_archive(folder.path() / "rank1.pt", true);

  auto const report = verify(folder.path());
  auto const unread = verify(folder.path(), {.checksums = false});

  EXPECT_THAT(report.defects, testing::ElementsAre(defect(DefectKind::checksum, "rank1.pt", "CRC"))) << list(report);
  EXPECT_THAT(unread.defects, Contains(defect(DefectKind::file, "rank1.pt", "CRC"))) << list(unread);
}

TEST(Verify, reports_the_progress_of_each_stage) {
  TemporaryDirectory const folder;
  write_archive(folder.path() / "rank0.pt", false);
  write_archive(folder.path() / "rank1.pt", false);
  std::map<std::string, checkpoint::Progress> last;
  auto const keep = [&](checkpoint::Progress const& progress) { last[std::string(progress.stage)] = progress; };

  EXPECT_TRUE(verify(folder.path(), {.numbers = true, .on_progress = keep}).ok());
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, folder.path());
  std::map<std::string, checkpoint::Progress> const verified = std::exchange(last, {});
  (void)checkpoint::consolidate(world, plan, folder.path() / "out", {.on_progress = keep});

  std::map<std::string, std::uint64_t> bytes;
  for (auto const& [stage, progress] : verified) {
    EXPECT_EQ(progress.bytes_done, progress.bytes_total) << stage;
    bytes[stage] = progress.bytes_done;
  }
  EXPECT_EQ(bytes, (std::map<std::string, std::uint64_t>{
                       {"comparing checksums", 4096}, {"comparing replicas", 2048}, {"looking at numbers", 4096}}));
  ASSERT_TRUE(last.contains("comparing replicas") && last.contains("writing"));
  EXPECT_EQ(last.at("comparing replicas").bytes_done, 2048U);
  EXPECT_GT(last.at("writing").bytes_done, 2048U);
}

}  // namespace
}  // namespace crossrank::verify_test
