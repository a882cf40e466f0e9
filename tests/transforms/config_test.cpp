#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/config.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "tests/support/error_of.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank {
namespace {

TEST(TransformConfig, keeps_all_fields_in_json) {
  DDPTransformConfig ddp{.find_unused_parameters = true, .gradient_as_bucket_view = false, .static_graph = true};
  ddp.common.name = "ddp";
  EXPECT_EQ(to_json(ddp_config_from_json(to_json(ddp))), to_json(ddp));
  FullyShardTransformConfig sharded{.reshard_after_forward = 2, .use_hybrid_sharding = false, .sync_grad_accum = true};
  sharded.mixed_precision = {
      .param_dtype = Dtype::bf16, .reduce_dtype = Dtype::f32, .fp8_enabled = true, .fp8_format = Dtype::f8_e5m2};
  sharded.offload.cpu_offload = true;
  EXPECT_EQ(to_json(fully_shard_config_from_json(to_json(sharded))), to_json(sharded));
  EXPECT_EQ(to_json(sharded)["mixed_precision"]["param_dtype"], "bfloat16");
}

TEST(TransformConfig, has_the_defaults_of_the_reference) {
  auto const ddp = ddp_config_from_json(Json::object());
  EXPECT_FALSE(ddp.find_unused_parameters);
  EXPECT_TRUE(ddp.gradient_as_bucket_view);
  auto const sharded = fully_shard_config_from_json(Json::object());
  EXPECT_EQ(std::get<bool>(sharded.reshard_after_forward), false);
  EXPECT_TRUE(sharded.use_hybrid_sharding);
  EXPECT_TRUE(sharded.mixed_precision.cast_forward_inputs);
  EXPECT_TRUE(sharded.offload.pin_memory);
}

std::string refusal(Json const& json) {
  return test::refusal_of<UsageError>([&] { static_cast<void>(fully_shard_config_from_json(json)); });
}

TEST(TransformConfig, names_a_wrong_field) {
  EXPECT_THAT(refusal({{"reshard", true}}), testing::HasSubstr("reshard_after_forward"));
  EXPECT_THAT(refusal({{"name, reshard_after_forward", "x"}}), testing::HasSubstr("the field is unknown"));
  EXPECT_THAT(refusal({{"mixed_precision", {{"param_dtype", "int8"}}}}),
              testing::AllOf(testing::HasSubstr("mixed_precision.param_dtype"), testing::HasSubstr("bfloat16")));
  EXPECT_THAT(refusal({{"mixed_precision", {{"param_dtype", ""}}}}),
              testing::AllOf(testing::HasSubstr("mixed_precision.param_dtype"), testing::HasSubstr("bfloat16")));
  EXPECT_THAT(refusal({{"mixed_precision", {{"param_dtype", 16}}}}), testing::HasSubstr("a string or null"));
  EXPECT_THAT(refusal({{"mixed_precision", {{"param_dtype", "bfloat16"}, {"dtype", 1}}}}),
              testing::HasSubstr("the field is unknown"));
  for (auto const& ranks : {Json(4294967298), Json(0), Json(-1), Json(18446744073709551615U)})
    EXPECT_THAT(refusal({{"reshard_after_forward", ranks}}), testing::HasSubstr("out of range"));
  EXPECT_THAT(refusal({{"sync_grad_accum", 1}}), testing::HasSubstr("true or false"));
  EXPECT_THAT(refusal({{"reshard_after_forward", "yes"}}), testing::HasSubstr("number of ranks"));
  EXPECT_THAT(refusal(Json::array()), testing::HasSubstr("object"));
}

/// Applies `FullyShardTransform` on three ranks. The last one has other settings. Returns the error of `rank`.
std::string error_of_other(int rank, FullyShardTransformConfig const& other) {
  std::string text;
  test::run_jobs(3, 3, [&](MeshCollective const& job) {
    bool const is_other = job.rank() == 2;
    auto const model = std::make_shared<test::TinyMlp>();
    auto const error = test::refusal_of<MismatchError>([&] {
      static_cast<void>(
          FullyShardTransform(is_other ? other : FullyShardTransformConfig{.reshard_after_forward = true}, job)
              .apply(model));
    });
    if (job.rank() == rank) text = error;
  });
  return text;
}

TEST(TransformConfig, names_a_setting_that_differs_between_ranks) {
  for (int const rank : {0, 2}) {
    EXPECT_THAT(error_of_other(rank, {.reshard_after_forward = 3}),
                testing::AllOf(testing::HasSubstr("reshard_after_forward true"), testing::HasSubstr("rank 2")));
    EXPECT_THAT(error_of_other(rank, {.reshard_after_forward = true, .use_hybrid_sharding = false}),
                testing::HasSubstr("use_hybrid_sharding false"));
    FullyShardTransformConfig mixed{.reshard_after_forward = true};
    mixed.mixed_precision.param_dtype = Dtype::bf16;
    EXPECT_THAT(error_of_other(rank, mixed), testing::HasSubstr("mixed_precision/param_dtype \"bfloat16\""));
  }
}

TEST(TransformConfig, names_another_transform) {
  test::run_jobs(2, 1, [](MeshCollective const& job) {
    auto const model = std::make_shared<test::TinyMlp>();
    auto const error = test::refusal_of<MismatchError>([&] {
      if (job.rank() == 0) static_cast<void>(DDPTransform({}, job).apply(model));
      static_cast<void>(FullyShardTransform({}, job).apply(model));
    });
    EXPECT_THAT(error, testing::AllOf(testing::HasSubstr("transform DDPTransform.apply"),
                                      testing::HasSubstr("transform FullyShardTransform.apply")));
  });
}

TEST(Transforms, refuse_null_pointers) {
  test::run_jobs(2, 1, [](MeshCollective const& job) {
    EXPECT_THROW(static_cast<void>(DDPTransform({}, job).apply(nullptr)), UsageError);
    EXPECT_THROW(static_cast<void>(FullyShardTransform({}, job).apply(nullptr)), UsageError);
    job.close();
  });
}

}  // namespace
}  // namespace crossrank
