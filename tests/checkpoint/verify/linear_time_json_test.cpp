// Reading a file with many JSON keys takes time linear in its size. The tests compare the processor time of this
// thread, which does not depend on the load of the machine.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/growth.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/discovery/inventory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/model/layer_sizes.hpp"
#include "workspace/checkpoint/rules/rule_file.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::growth;
using test::max_growth;
using test::TemporaryDirectory;

std::string key(int number) { return "model.layers." + std::to_string(number) + ".mlp.down_proj.weight"; }

TEST(LinearJson, reads_metadata_of_a_safetensors_file) {
  EXPECT_LT(growth([](int keys) {
              TemporaryDirectory const folder;
              auto const path = folder.path() / "model.safetensors";
              SafetensorsOptions options;
              for (int i = 0; i < keys; ++i) options.metadata.emplace_back(key(i), "value");
              save_safetensors(path, {{"w", Tensor::zeros({2}, Dtype::f32)}}, options);
              auto const set = open_shard_set(path);
              EXPECT_EQ(set.sources.front()->attributes().at("__metadata__").size(), as_size(keys));
            }),
            max_growth);
}

TEST(LinearJson, reads_the_config_of_a_model) {
  EXPECT_LT(growth([](int keys) {
              TemporaryDirectory const folder;
              save_safetensors(folder.path() / "model.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
              std::ofstream config(folder.path() / "config.json");
              config << R"({"quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {)";
              for (int i = 0; i < keys; ++i)
                config << (i == 0 ? "" : ",") << '"' << key(i) << R"(":{"quant_algo":"FP8"})";
              config << "}}}";
              config.close();
              auto const set = open_shard_set(folder.path());
              EXPECT_EQ(set.config.at("quantization_config").at("quantized_layers").size(), as_size(keys));
            }),
            max_growth);
}

TEST(LinearJson, reads_the_index_of_a_model) {
  EXPECT_LT(growth([](int keys) {
              TemporaryDirectory const folder;
              std::ofstream index(folder.path() / "model.safetensors.index.json");
              index << R"({"weight_map": {)";
              for (int i = 0; i < keys; ++i) index << (i == 0 ? "" : ",") << '"' << key(i) << R"(":"a.safetensors")";
              index << "}}";
              index.close();
              save_safetensors(folder.path() / "a.safetensors", {{key(0), Tensor::zeros({2}, Dtype::f32)}});
              EXPECT_EQ(open_shard_set(folder.path()).absent.size(), as_size(keys) - 1);
              EXPECT_EQ(take_inventory(folder.path()).defects.size(), 21U);
            }),
            max_growth);
}

TEST(LinearJson, reads_the_sizes_of_a_rule_file) {
  EXPECT_LT(growth([&](int keys) {
              std::string text = R"({"sizes": {)";
              for (int i = 0; i < keys; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":1";
              EXPECT_EQ(RuleFile::parse(text + "}}", "rules").sizes.size(), as_size(keys));
            }),
            max_growth);
}

TEST(LinearJson, reads_offsets_of_a_distributed_checkpoint_in_safetensors) {
  EXPECT_LT(growth([](int keys) {
              TemporaryDirectory const folder;
              Json places = Json::array();
              std::string text = "{";
              StateDict weights;
              auto const one = Tensor::zeros({1}, Dtype::u8);
              for (int i = 0; i < keys; ++i) {
                text += (i == 0 ? "\"" : ",\"") + key(i) + R"(":{"saved_offsets":[0]})";
                weights.insert_or_assign(key(i), one);
              }
              save_safetensors(folder.path() / "shard-00001-model-00001-of-00001.safetensors", weights,
                               {.metadata = {{"DCP_SHARDING_INFO", text + "}"}}});
              EXPECT_EQ(open_shard_set(folder.path()).sources.front()->tensors().size(), as_size(keys));
            }),
            max_growth);
}

TEST(LinearJson, rejects_layer_sizes_that_would_not_be_linear) {
  Json config{{"model_type", "llama"}};
  auto& members = static_cast<Json::object_t::Container&>(config.get_ref<Json::object_t&>());
  Json layers = Json::object();
  for (int i = 0; i < 2'000; ++i) layers[std::to_string(i)] = Json{{"head_dim", 64}};
  for (int i = 0; i < 20'000; ++i) members.emplace_back(key(i), 1);
  members.emplace_back("per_layer_config", layers);
  EXPECT_THROW(LayerSizes{config}, FormatError);
}

}  // namespace
}  // namespace crossrank::checkpoint
