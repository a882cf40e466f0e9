#include "tests/checkpoint/support/checkpoint_files.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>
#include <crossrank/json.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {

namespace fs = std::filesystem;

namespace {

void add_file(fs::path const& path, ModelBytes& model) {
  for (auto const& [name, tensor] : load_safetensors(path)) {
    auto const bytes = tensor.bytes();
    bool const fresh = model
                           .emplace(name, TensorBytes{std::string(name_of(tensor.dtype())) + to_string(tensor.shape()),
                                                      {bytes.begin(), bytes.end()}})
                           .second;
    EXPECT_TRUE(fresh) << name << " occurs twice";
  }
}

}  // namespace

ModelBytes read_model(fs::path const& path) {
  ModelBytes model;
  if (fs::is_regular_file(path)) {
    add_file(path, model);
    return model;
  }
  for (auto const& name : names_in(path)) {
    if (name.ends_with(".safetensors")) add_file(path / name, model);
  }
  return model;
}

ModelBytes read_checkpoint(fs::path const& directory, bool with_config) {
  if (!fs::exists(directory) || (with_config && !fs::exists(directory / "config.json"))) return {};
  auto const index = directory / "model.safetensors.index.json";
  if (!fs::exists(index)) {
    auto const single = directory / "model.safetensors";
    return fs::exists(single) ? read_model(single) : ModelBytes{};
  }
  std::ifstream in(index);
  auto const parsed = Json::parse(in);
  std::set<std::string> files;
  for (auto const& [name, file] : parsed.at("weight_map").items()) files.insert(file.get<std::string>());
  ModelBytes model;
  for (auto const& file : files) add_file(directory / file, model);
  for (auto const& [name, file] : parsed.at("weight_map").items()) EXPECT_TRUE(model.contains(name)) << name;
  EXPECT_EQ(model.size(), parsed.at("weight_map").size());
  return model;
}

ModelBytes read_any_checkpoint(fs::path const& directory) {
  TemporaryDirectory const folder;
  auto const world = connect({.backend = "fake", .rank = 0, .world_size = 1});
  (void)checkpoint::consolidate(world, checkpoint::MergePlan::make(world, directory), folder.path() / "model");
  return read_checkpoint(folder.path() / "model", false);
}

std::string difference(ModelBytes const& expected, ModelBytes const& got) {
  std::string text;
  for (auto const& [name, tensor] : expected) {
    auto const found = got.find(name);
    if (found == got.end()) {
      text += name + " is missing\n";
    } else if (found->second.type != tensor.type) {
      text += name + ": " + found->second.type + " in place of " + tensor.type + "\n";
    } else if (found->second.bytes != tensor.bytes) {
      text += name + ": other bytes\n";
    }
  }
  for (auto const& [name, tensor] : got) {
    if (!expected.contains(name)) text += name + " is too many\n";
  }
  return text;
}

StateDict sample_weights(int count, std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 random(seed);
  StateDict weights;
  for (int i = 0; i < count; ++i) {
    auto tensor = Tensor::empty({rows, columns}, Dtype::f32);
    for (auto& value : tensor.as_mutable<float>()) value = static_cast<float>(random() % 10'000) / 100.0F;
    weights.insert_or_assign("model.layers." + std::to_string(i) + ".mlp.down_proj.weight", tensor);
  }
  weights.insert_or_assign("model.norm.weight", Tensor::scalar(1.5F));
  return weights;
}

std::vector<std::string> names_in(fs::path const& directory) {
  std::vector<std::string> names;
  if (!fs::exists(directory)) return names;
  for (auto const& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string text_of_file(fs::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace crossrank::test
