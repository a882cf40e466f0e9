// Flat parameters of FSDP are rejected in every file format.
#include "workspace/checkpoint/discovery/flat_parameters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/dcp_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"

namespace crossrank::checkpoint {
namespace {

using testing::HasSubstr;

void expect_refusal(std::filesystem::path const& path, std::string const& name) {
  try {
    (void)open_shard_set(path);
    ADD_FAILURE() << name << " was taken for a parameter";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().got, HasSubstr(name));
    EXPECT_THAT(error.info().hint, HasSubstr("FULL_STATE_DICT"));
  }
}

TEST(FlatParameters, are_rejected_in_distributed_checkpoints) {
  test::TemporaryDirectory const folder;
  for (auto const* name : {"_flat_param", "flat_param_0"}) {
    DcpFiles files;
    files.add({"model", "_fsdp_wrapped_module", name}, {1, 2, 3});
    files.add({"model", "norm", "weight"}, {1, 2, 3});
    files.write(folder.path() / name);
    expect_refusal(folder.path() / name, name);
  }
}

TEST(FlatParameters, are_rejected_in_rank_archives) {
  test::TemporaryDirectory const folder;
  for (int rank = 0; rank < 2; ++rank) {
    TorchFile file;
    auto const flat = file.filled(6, static_cast<float>(rank));
    file.write(folder.path() / ("pytorch_model_fsdp_rank" + std::to_string(rank) + ".bin"),
               dict_of({{"layers.0._flat_param", flat}}));
  }
  expect_refusal(folder.path() / "pytorch_model_fsdp_rank0.bin", "layers.0._flat_param");
}

TEST(FlatParameters, are_distinguished_from_parameters_with_similar_names) {
  test::TemporaryDirectory const folder;
  std::vector<float> const values(6, 1.0F);
  save_safetensors(folder.path() / "model.safetensors", {{"flat_param_head.weight", Tensor::of<float>(values, {6})},
                                                         {"layers.0._flat_param", Tensor::of<float>(values, {2, 3})}});
  EXPECT_EQ(open_shard_set(folder.path()).sources.size(), 1U);
}

}  // namespace
}  // namespace crossrank::checkpoint
