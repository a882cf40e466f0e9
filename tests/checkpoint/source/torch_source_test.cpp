#include "workspace/checkpoint/source/torch/torch_source.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/codec/torch/torch_fixture.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/source/model_key.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

class TorchSourceTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path put(std::string const& bytes) const {
    auto path = root_.path() / "file.pt";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  test::TemporaryDirectory root_{};
};

std::string tensor() { return codec::pickled_tensor(codec::pickled_storage("ByteStorage", "0", 4), 0, {4}, {1}); }
std::string entry(std::string const& key, std::string const& value) { return codec::pickled(key) + value; }

TEST_F(TorchSourceTest, removes_the_path_to_the_model_from_names) {
  auto const inner = "}(" + entry("a.weight", tensor()) + "u";
  auto const source = open_torch_archive(
      put(codec::torch_of("\x80\x02}(" + entry("epoch", "K\x03") + entry("state_dict", inner) + "u.", {"wxyz"})));
  ASSERT_EQ(source->tensors().size(), 1U);
  EXPECT_EQ(source->tensors()[0].name, "a.weight");
  EXPECT_EQ(source->attributes().at("epoch"), 3);
  std::vector<std::byte> bytes(2);
  source->read(0, 1, bytes);
  EXPECT_EQ(bytes, codec::to_bytes("xy"));
  EXPECT_THROW(source->read(0, 3, bytes), UsageError);
  EXPECT_THROW(source->read(1, 0, bytes), UsageError);
}

class TrainingState : public TorchSourceTest {
 protected:
  /// Saves a dict that has one tensor "a" under each key, as scripts do.
  [[nodiscard]] fs::path save(std::vector<std::string> const& keys, std::string const& more = {}) const {
    std::string root = "}(";
    for (auto const& key : keys) root += entry(key, "}(" + entry("a", tensor()) + "u");
    return put(codec::torch_of("\x80\x02" + root + more + "u.", {"wxyz"}));
  }
  /// Returns the names of the tensors, or the text of the error.
  [[nodiscard]] static std::string names(fs::path const& path, std::string const& key = {}) {
    try {
      std::string text;
      auto const source = open_torch_archive(path, {.model_key = key});
      for (auto const& one : source->tensors()) text += one.name + " ";
      return text;
    } catch (Error const& error) {
      return error.what();
    }
  }
};

TEST_F(TrainingState, is_left_out_and_listed) {
  auto const file = save({"model", "optimizer", "ema_state_dict", "cuda_rng_state"}, entry("epoch", "K\x03"));
  auto const source = open_torch_archive(file);
  ASSERT_EQ(source->tensors().size(), 1U);
  EXPECT_EQ(source->tensors()[0].name, "a");
  EXPECT_EQ(source->attributes(),
            Json::parse(R"({"epoch": 3, "left_out_keys": ["optimizer", "ema_state_dict", "cuda_rng_state"]})"));
}

TEST_F(TrainingState, is_read_on_request) {
  auto const file = save({"model", "ema_state_dict"});
  EXPECT_EQ(names(file, "ema_state_dict"), "a ");
  EXPECT_EQ(names(file, "."), "model.a ema_state_dict.a ");
  EXPECT_THAT(names(file, "mdoel"), testing::HasSubstr("tensors under model, ema_state_dict"));
}

TEST_F(TrainingState, throws_when_several_parts_might_be_the_model) {
  EXPECT_THAT(names(save({"model", "discriminator"})), testing::HasSubstr("`model_key` model "));
  EXPECT_THAT(names(save({"model", "state_dict"})), testing::HasSubstr("several parts of the file might be the model"));
  EXPECT_THAT(names(save({"net", "optimizer"})), testing::HasSubstr("`model_key` net "));
  EXPECT_THAT(names(save({"optimizer"})), testing::HasSubstr("training state but no model"));
  EXPECT_THAT(names(save({"model"}, entry("prior", tensor()))), testing::HasSubstr("model, prior"));
}

TEST_F(TrainingState, is_not_assumed_when_all_keys_are_modules) {
  EXPECT_EQ(names(save({"encoder", "decoder"})), "encoder.a decoder.a ");
  EXPECT_EQ(names(put(codec::torch_of("\x80\x02}(" + entry("a.weight", tensor()) + entry("step", tensor()) + "u.",
                                      {"wxyz"}))),
            "a.weight step ");
}

TEST_F(TrainingState, may_wrap_the_model_twice) {
  auto const inner = "}(" + entry("module", "}(" + entry("a", tensor()) + "u") + "u";
  EXPECT_EQ(names(put(codec::torch_of("\x80\x02}(" + entry("state_dict", inner) + "u.", {"wxyz"}))), "a ");
}

TEST_F(TrainingState, is_distinguished_from_the_model_inside_one_unknown_key) {
  auto const part = [](std::string const& key) { return entry(key, "}(" + entry("a", tensor()) + "u"); };
  auto const app = put(codec::torch_of(
      "\x80\x02}(" + entry("checkpoint", "}(" + part("model") + part("optimizer") + "u") + "u.", {"wxyz"}));
  EXPECT_EQ(names(app), "a ");
  EXPECT_EQ(open_torch_archive(app)->attributes(), Json::parse(R"({"left_out_keys": ["checkpoint.optimizer"]})"));
  EXPECT_EQ(names(app, "checkpoint"), "a ");
  EXPECT_EQ(names(app, "checkpoint.model"), "a ");
  EXPECT_EQ(names(app, "checkpoint.optimizer"), "a ");
  EXPECT_EQ(names(app, "."), "checkpoint.model.a checkpoint.optimizer.a ");
  EXPECT_THAT(names(app, "checkpoint.ema"), testing::HasSubstr("tensors under checkpoint.model, checkpoint.optimizer"));
  auto const unknown = put(codec::torch_of(
      "\x80\x02}(" + entry("checkpoint", "}(" + part("net") + part("optimizer") + "u") + "u.", {"wxyz"}));
  EXPECT_THAT(names(unknown), testing::HasSubstr("`model_key` checkpoint.net "));
}

TEST_F(TrainingState, is_distinguished_from_the_model_when_an_unknown_key_has_siblings) {
  auto const part = [](std::string const& key) { return entry(key, "}(" + entry("a", tensor()) + "u"); };
  auto const app = entry("app", "}(" + part("model") + part("optim") + "u");
  auto const count = codec::pickled_tensor(codec::pickled_storage("ByteStorage", "0", 4), 0, {1}, {1});
  auto const file = [&](std::string const& sibling) {
    return put(codec::torch_of("\x80\x02}(" + app + sibling + "u.", {"wxyz"}));
  };
  EXPECT_EQ(names(file(entry("step", count))), "a ");
  EXPECT_THAT(names(file(part("loader"))), testing::HasSubstr("tensors under app, loader"));
  EXPECT_THAT(names(file(entry("prior", tensor()))), testing::HasSubstr("tensors under app, prior"));
  EXPECT_EQ(names(file(part("loader")), "app"), "a ");
}

TEST_F(TrainingState, is_left_out_beside_tensors_in_the_outermost_dict) {
  EXPECT_EQ(names(save({"optimizer"}, entry("a.weight", tensor()))), "a.weight ");
}

TEST_F(TrainingState, lists_left_out_counters) {
  auto const count = codec::pickled_tensor(codec::pickled_storage("ByteStorage", "0", 4), 0, {1}, {1});
  auto const file = save({"model"}, entry("best", count));
  EXPECT_EQ(names(file), "a ");
  EXPECT_EQ(open_torch_archive(file)->attributes(), Json::parse(R"({"left_out_keys": ["best"]})"));
}

TEST(WrappingKey, is_a_known_key_and_never_a_module) {
  auto const key = [](std::vector<std::string> const& names) {
    auto const found = wrapping_key(names);
    return found ? found->keys.front() : std::string("none");
  };
  EXPECT_EQ(key({"model.lm_head.weight", "model.model.norm.weight"}), "model");
  EXPECT_EQ(key({"module.model.norm.weight", "step"}), "module");
  EXPECT_EQ(key({"model.norm.weight", "lm_head.weight"}), "none");
  EXPECT_EQ(key({"model.norm.weight", "model.embed_tokens.weight"}), "none");
  EXPECT_EQ(key({"model.model.norm.weight", "lm_head.weight"}), "none");
  EXPECT_EQ(key({}), "none");
}

TEST_F(TorchSourceTest, reads_a_rank_file_of_modelopt) {
  auto const source =
      open_torch_archive(put(codec::torch_of("\x80\x02}(" + entry("config", "}(" + entry("x", "K\x01") + "u") +
                                                 entry("weight", "}(" + entry("a.b", tensor()) + "u") + "u.",
                                             {"wxyz"})));
  ASSERT_EQ(source->tensors().size(), 1U);
  EXPECT_EQ(source->tensors()[0].name, "a.b");
  EXPECT_EQ(source->attributes(), Json::parse(R"({"config": {"x": 1}})"));
}

/// Allowing such a class would not help, because its contents are not read.
TEST_F(TorchSourceTest, explains_sharded_tensors) {
  for (auto const* const global :
       {"torch.distributed.tensor\nDTensor\n", "torch.distributed._shard.sharded_tensor.api\nShardedTensor\n"}) {
    auto const file =
        put(codec::torch_of("\x80\x02}(" + entry("a", std::string("c") + global + ")\x81}b") + "u.", {"wxyz"}));
    try {
      (void)open_torch_archive(file);
      ADD_FAILURE() << "accepted " << global;
    } catch (FormatError const& error) {
      EXPECT_THAT(error.info().message, testing::HasSubstr("pieces of tensors of one rank"));
      EXPECT_THAT(error.info().hint, testing::HasSubstr("torch.distributed.checkpoint"));
      EXPECT_THAT(error.info().hint, testing::Not(testing::HasSubstr("`extra_globals`")));
    }
  }
}

TEST_F(TorchSourceTest, hints_how_to_allow_an_unknown_class) {
  auto const file = put(
      codec::torch_of("\x80\x02}(" + entry("a", tensor()) +
                          entry("args", "cargparse\nNamespace\n)\x81}" + codec::pickled("lr") + "K\x01" + "sb") + "u.",
                      {"wxyz"}));
  try {
    (void)open_torch_archive(file);
    FAIL() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().hint, testing::HasSubstr("`extra_globals` argparse.Namespace;"));
  }
  auto const source = open_torch_archive(file, {.extra_globals = {"argparse.Namespace"}});
  EXPECT_EQ(source->tensors().size(), 1U);
}

TEST_F(TorchSourceTest, lists_objects_that_are_neither_tensors_nor_plain_values) {
  std::string const array = "cnumpy._core.multiarray\n_reconstruct\n)R";
  auto const file = put(codec::torch_of("\x80\x02}(" + entry("a.weight", tensor()) + entry("arr", array) +
                                            entry("layer._extra_state", array) + entry("steps", "K\x03") + "u.",
                                        {"wxyz"}));
  auto const source = open_torch_archive(file);
  EXPECT_EQ(source->tensors().size(), 1U);
  EXPECT_EQ(source->attributes().at(left_out_objects), Json({"arr"}));
}

/// torch restores them, but no other format has a place for them.
TEST_F(TorchSourceTest, lists_attributes_of_tensors_that_hold_tensors) {
  auto const attributes = "}(" + entry("absmax", tensor()) + entry("nested", "}(" + entry("scale", tensor()) + "u") +
                          entry("frozen", "\x88") + "u";
  auto const rebuild = std::string("ctorch._utils\n_rebuild_tensor_v2\n");
  auto const arguments = tensor().substr(rebuild.size(), tensor().size() - rebuild.size() - 1);
  ASSERT_TRUE(tensor().starts_with(rebuild));
  auto const typed =
      "ctorch._tensor\n_rebuild_from_type_v2\n(" + rebuild + "ctorch\nTensor\n" + arguments + attributes + "tR";
  auto const parameter = "ctorch._utils\n_rebuild_parameter_with_state\n(" + tensor() + "\x88" +
                         "ccollections\nOrderedDict\n)R" + attributes + "tR";
  auto const source = open_torch_archive(
      put(codec::torch_of("\x80\x02}(" + entry("a", typed) + entry("b", parameter) + "u.", {"wxyz"})));
  EXPECT_EQ(source->tensors().size(), 2U);
  EXPECT_EQ(source->attributes().at(left_out_objects), Json({"a.absmax", "a.nested", "b.absmax", "b.nested"}));
}

TEST_F(TorchSourceTest, is_recognised_by_its_first_bytes) {
  EXPECT_TRUE(is_torch_archive(put(codec::torch_of(codec::pickled_dict("a", "N")))));
  EXPECT_TRUE(is_torch_archive(put("\x80\x02\x8a")));
  EXPECT_FALSE(is_torch_archive(put("x")));
  EXPECT_FALSE(is_torch_archive(put(std::string("\x10\0\0\0\0\0\0\0{}", 10))));
}

}  // namespace
}  // namespace crossrank::checkpoint
