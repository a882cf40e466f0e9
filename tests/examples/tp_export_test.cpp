#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/safetensors.hpp>

#include "examples/tp_export/make_model.hpp"
#include "tests/examples/run_example.hpp"
#include "tests/support/leak_check.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class TpExport : public testing::Test {
 protected:
  TpExport() { tp_export::make_model(model(), tp_export::ModelSize::small); }

  [[nodiscard]] fs::path model() const { return folder_.path() / "source"; }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }
  [[nodiscard]] fs::path work() const { return folder_.path() / "work"; }

  [[nodiscard]] CommandEnd run(int ranks) const {
    return run_example(ranks, "tp_export", {"--model", model(), "--out", out(), "--work", work()});
  }
  void change_config(std::string const& key, Json const& value) const {
    auto config = Json::parse(contents(model() / "config.json"));
    config[key] = value;
    std::ofstream(model() / "config.json") << config;
  }
  void change_weights(StateDict const& weights) const {
    fs::remove(model() / "model.safetensors");
    save_safetensors(model() / "model.safetensors", weights);
  }
  [[nodiscard]] StateDict weights() const { return load_safetensors(model() / "model.safetensors"); }

  /// Expects that the export ends at once with this reason and has written nothing.
  void expect_refusal(int ranks, std::string const& reason) const {
    auto const end = run(ranks);
    EXPECT_EQ(end.exit_code, 1);
    EXPECT_THAT(end.out, HasSubstr("[0] verdict: FAIL: "));
    EXPECT_THAT(end.out, HasSubstr(reason));
    EXPECT_THAT(end.out + end.err, testing::Not(HasSubstr("[1]"))) << "only rank 0 prints results";
    EXPECT_THAT(names_in(out()), testing::Not(testing::Contains("model.safetensors")));
    EXPECT_THAT(names_in(work()), testing::IsEmpty());
  }
  void expect_the_same_model() const {
    auto const source = weights();
    auto const merged = load_safetensors(out() / "model.safetensors");
    ASSERT_EQ(merged.size(), source.size());
    for (auto const& [name, tensor] : source) {
      EXPECT_EQ(merged.at(name).shape(), tensor.shape()) << name;
      EXPECT_TRUE(std::ranges::equal(merged.at(name).bytes(), tensor.bytes())) << name;
    }
  }

  TemporaryDirectory folder_;
};

class TpExportRanks : public TpExport, public testing::WithParamInterface<int> {};

TEST_P(TpExportRanks, reproduces_the_bytes_of_the_source) {
  LeakCheck const leaks;

  auto const end = run(GetParam());

  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, testing::EndsWith("[0] verdict: pass\n"));
  for (std::string const path : {"shared memory", "shared memory, warm", "checkpoint", "shared directory"}) {
    EXPECT_THAT(end.out, HasSubstr("[0] " + path + ": all 20 tensors equal the source, bit for bit\n"));
  }
  EXPECT_THAT(names_in(out()), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(contents(out() / "config.json"), contents(model() / "config.json"));
  EXPECT_TRUE(contents(out() / "model.safetensors") == contents(model() / "model.safetensors"));
  EXPECT_THAT(names_in(work()), testing::IsEmpty());
  EXPECT_THAT(leaks.findings(""), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, TpExportRanks, testing::Values(1, 2, 4),
                         [](auto const& each) { return std::to_string(each.param); });

TEST_F(TpExport, reproduces_a_trained_model) {
  auto const trained = fs::path(CROSSRANK_TEST_DATA) / "stories260k";

  auto const end = run_example(4, "tp_export", {"--model", trained, "--out", out()});

  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_TRUE(contents(out() / "model.safetensors") == contents(trained / "model.safetensors"));
}

TEST_F(TpExport, generates_a_model_when_none_is_given) {
  auto const end = run_example(2, "tp_export", {"--small", "--work", work()});

  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_THAT(names_in(work()), ElementsAre("checkpoint", "model"));
  EXPECT_TRUE(contents(work() / "checkpoint" / "model.safetensors") == contents(model() / "model.safetensors"));
}

TEST_F(TpExport, reads_a_model_in_several_files) {
  StateDict first, second;
  Json map;
  for (auto const& [name, tensor] : weights()) {
    bool const early = first.size() < 7;
    (early ? first : second).insert_or_assign(name, tensor);
    map[name] = early ? "model-1.safetensors" : "model-2.safetensors";
  }
  auto const whole = weights();
  fs::remove(model() / "model.safetensors");
  save_safetensors(model() / "model-1.safetensors", first);
  save_safetensors(model() / "model-2.safetensors", second);
  std::ofstream(model() / "model.safetensors.index.json") << Json{{"metadata", Json::object()}, {"weight_map", map}};

  auto const end = run(2);

  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  save_safetensors(model() / "model.safetensors", whole);
  expect_the_same_model();
}

TEST_F(TpExport, accepts_untied_outputs_biases_and_uneven_parts) {
  auto changed = weights();
  changed.insert_or_assign("model.embed_tokens.weight",
                           Tensor::zeros({321, 64}, Dtype::bf16));  // 4 ranks: parts of 80 and 81
  auto head = Tensor::empty({321, 64}, Dtype::f32);
  std::ranges::fill(head.mutable_bytes(), std::byte{0x3f});
  changed.insert_or_assign("lm_head.weight", head);
  changed.insert_or_assign("model.layers.0.self_attn.q_proj.bias", changed.at("model.norm.weight").clone());
  changed.insert_or_assign("model.layers.1.self_attn.o_proj.bias", changed.at("model.norm.weight").clone());
  change_weights(changed);
  change_config("tie_word_embeddings", false);

  auto const end = run(4);

  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  expect_the_same_model();
}

TEST_F(TpExport, omits_a_tied_output_layer) {
  auto changed = weights();
  changed.insert_or_assign("lm_head.weight", changed.at("model.embed_tokens.weight").clone());
  change_weights(changed);

  auto const end = run(2);

  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_FALSE(load_safetensors(out() / "model.safetensors").contains("lm_head.weight"));
}

TEST_F(TpExport, detects_a_tied_output_layer_that_differs_from_the_embedding) {
  auto changed = weights();
  changed.insert_or_assign("lm_head.weight",
                           Tensor::zeros(changed.at("model.embed_tokens.weight").shape(), Dtype::bf16));
  change_weights(changed);

  auto const end = run(2);

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.out, HasSubstr("verdict: FAIL: shared memory: lm_head.weight differs"));
}

TEST_F(TpExport, refuses_a_folder_without_a_model) {
  fs::remove(model() / "config.json");
  expect_refusal(2, (model() / "config.json").string());
}

TEST_F(TpExport, refuses_other_architectures) {
  change_config("architectures", {"MistralForCausalLM"});
  expect_refusal(2, "MistralForCausalLM");
}

TEST_F(TpExport, refuses_an_incomplete_config) {
  change_config("num_hidden_layers", nullptr);
  expect_refusal(2, "num_hidden_layers");
}

TEST_F(TpExport, refuses_a_number_of_ranks_that_does_not_divide_the_heads) { expect_refusal(3, "8 attention heads"); }

TEST_F(TpExport, refuses_a_tensor_that_is_not_part_of_a_llama) {
  auto changed = weights();
  changed.insert_or_assign("model.layers.0.mlp.up_proj.weight_scale", Tensor::scalar(1.0F));
  change_weights(changed);
  expect_refusal(2, "model.layers.0.mlp.up_proj.weight_scale");
}

TEST_F(TpExport, refuses_a_damaged_file) {
  fs::resize_file(model() / "model.safetensors", 100'000);
  expect_refusal(2, (model() / "model.safetensors").string());
}

TEST_F(TpExport, refuses_an_index_that_leads_to_another_folder) {
  std::ofstream(model() / "model.safetensors.index.json")
      << R"({"weight_map": {"model.norm.weight": "../other.safetensors"}})";
  expect_refusal(2, "../other.safetensors");
}

TEST_F(TpExport, never_replaces_a_checkpoint) {
  fs::create_directory(out());
  std::ofstream(out() / "model.safetensors") << "precious";

  auto const end = run(2);

  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.out, HasSubstr("already exists"));
  EXPECT_EQ(contents(out() / "model.safetensors"), "precious");
}

TEST_F(TpExport, writes_a_checkpoint_that_the_python_package_opens) {
  auto const* const chosen = std::getenv("CROSSRANK_TEST_PYTHON");
  std::string const python = chosen != nullptr ? chosen : "python3";
  if (std::system(("'" + python + "' -c 'import numpy, safetensors' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << python << " has no package safetensors; $CROSSRANK_TEST_PYTHON may name another";
  }
  auto changed = weights();
  changed.insert_or_assign("model.norm.weight",
                           Tensor::of<float>(std::vector<float>(64, 1.5F), {64}));  // numpy has no bfloat16
  change_weights(changed);
  ASSERT_EQ(run(4).exit_code, 0);
  auto const script = folder_.path() / "check.py";
  std::ofstream(script) << "import sys\nfrom safetensors import safe_open\n"
                           "with safe_open(sys.argv[1], 'numpy') as f:\n"
                           "    assert len(f.keys()) == 20 and f.metadata() == {'format': 'pt'}\n"
                           "    assert (f.get_tensor('model.norm.weight') == 1.5).all()\n"
                           "    assert f.get_slice('model.layers.1.mlp.down_proj.weight').get_shape() == [64, 172]\n";

  EXPECT_EQ(
      std::system(
          ("'" + python + "' '" + script.string() + "' '" + (out() / "model.safetensors").string() + "'").c_str()),
      0);
}

}  // namespace
}  // namespace crossrank::test
