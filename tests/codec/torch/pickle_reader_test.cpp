#include "lib/codec/torch/pickle/pickle_reader.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/codec/torch/torch_fixture.hpp"

namespace crossrank::codec {
namespace {

using namespace std::string_literals;

std::shared_ptr<PickleTree const> read(std::string const& pickle, PickleOptions const& options = {}) {
  return read_pickle(to_bytes(pickle), options);
}

PickleOptions dcp() { return {.allowlist = dcp_allowlist()}; }

/// Returns the byte at which `pickle` is refused, or -1.
std::int64_t refused_at(std::string const& pickle, PickleOptions options = {}) {
  options.base = 1000;
  options.section = "data.pkl";
  try {
    (void)read(pickle, options);
  } catch (FormatError const& e) {
    EXPECT_EQ(e.section(), "data.pkl");
    return static_cast<std::int64_t>(e.offset()) - 1000;
  }
  return -1;
}

TEST(PickleReader, reads_plain_values) {
  auto const tree = read("\x80\x02(NK\x07M\x01\x02J\xff\xff\xff\xff\x8a\x01\x80\x88\x89" + "G\x3f\xe0\0\0\0\0\0\0"s +
                         pickled("text") + "U\x02hi]}\x8f)tq\x05.");
  PickleValue const root(*tree, tree->root);
  ASSERT_EQ(root.kind(), PickleKind::tuple);
  ASSERT_EQ(root.size(), 14U);
  EXPECT_EQ(root[0].kind(), PickleKind::none);
  EXPECT_EQ(root[1].integer(), 7);
  EXPECT_EQ(root[2].integer(), 513);
  EXPECT_EQ(root[3].integer(), -1);
  EXPECT_EQ(root[4].integer(), -128);
  EXPECT_TRUE(root[5].boolean());
  EXPECT_FALSE(root[6].boolean());
  EXPECT_EQ(root[7].real(), 0.5);
  EXPECT_EQ(root[8].text(), "text");
  EXPECT_EQ(root[9].text(), "hi");
  EXPECT_EQ(root[10].kind(), PickleKind::list);
  EXPECT_EQ(root[11].kind(), PickleKind::dict);
  EXPECT_EQ(root[12].kind(), PickleKind::set);
  EXPECT_EQ(root[13].size(), 0U);
}

TEST(PickleReader, keeps_long_integers_that_fit_64_bits) {
  auto const tree = read("\x80\x02(\x8a\0\x8a\x08"s + little(INT64_MIN) + "\x8a\x09" + little(UINT64_MAX) + "\0t."s);
  PickleValue const root(*tree, tree->root);
  EXPECT_EQ(root[0].integer(), 0);
  EXPECT_EQ(root[1].integer(), INT64_MIN);
  EXPECT_EQ(root[2].kind(), PickleKind::natural);
  EXPECT_EQ(root[2].natural(), UINT64_MAX);
  EXPECT_EQ(refused_at("\x80\x02\x8a\x09" + std::string(9, '\x7f') + "."), 2);
}

TEST(PickleReader, keeps_shared_values_shared) {
  auto const tree = read("\x80\x02(]q\x01h\x01h\x01t.");
  PickleValue const root(*tree, tree->root);
  EXPECT_EQ(root[0].id(), root[1].id());
}

TEST(PickleReader, makes_dicts_from_ordered_dicts_and_from_pairs) {
  auto const od = "ccollections\nOrderedDict\n"s;
  auto const tree = read("\x80\x02(" + od + ")R(K\x01K\x02u}" + pickled("_metadata") + "Nsb" + od +
                         "](K\x03K\x04\x86K\x05K\x06\x86" + "e\x85Rt.");
  PickleValue const root(*tree, tree->root);
  ASSERT_EQ(root[0].kind(), PickleKind::dict);
  EXPECT_EQ(root[0].size(), 2U);
  ASSERT_EQ(root[1].kind(), PickleKind::dict);
  EXPECT_EQ(root[1].size(), 4U);
}

TEST(PickleReader, decodes_byte_strings) {
  auto const tree = read(
      "\x80\x02"
      "c_codecs\nencode\n(" +
      pickled("a\xc3\xbf\xc2\x80") + pickled("latin1") + "tR.");
  PickleValue const root(*tree, tree->root);
  EXPECT_EQ(root.kind(), PickleKind::bytes);
  EXPECT_EQ(root.text(), "a\xff\x80");
}

/// Protocol 2 writes an empty byte string as a call.
TEST(PickleReader, decodes_an_empty_byte_string) {
  auto const tree = read(
      "\x80\x02"
      "c__builtin__\nbytes\n)R.");
  PickleValue const root(*tree, tree->root);
  EXPECT_EQ(root.kind(), PickleKind::bytes);
  EXPECT_EQ(root.text(), "");
}

TEST(PickleReader, keeps_calls_and_objects_as_descriptions) {
  auto const tree = read(
      "\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata\x94\x93)\x81}\x8c\x01"
      "aK\x01sb.",
      dcp());
  PickleValue const root(*tree, tree->root);
  EXPECT_EQ(root.kind(), PickleKind::object);
  EXPECT_EQ(root[0].text(), "torch.distributed.checkpoint.metadata.Metadata");
  ASSERT_TRUE(root.find("a"));
  EXPECT_EQ(root.find("a")->integer(), 1);
}

TEST(PickleReader, keeps_other_classes_of_distributed_checkpoints_as_fields) {
  auto const plan = "cmy.plans\nPlan\n)\x81}" + pickled("items") + "K\x05sb";
  auto const kind = "ctorch.distributed.checkpoint.planner\nWriteItemType\nK\x02\x85R"s;
  auto const tree = read("\x80\x02(" + plan + kind + "cmy.plans\nPlan\nt.", dcp());
  PickleValue const root(*tree, tree->root);
  EXPECT_EQ(root[0].kind(), PickleKind::object);
  EXPECT_EQ(root[0][0].text(), "my.plans.Plan");
  ASSERT_TRUE(root[0].find("items"));
  EXPECT_EQ(root[0].find("items")->integer(), 5);
  EXPECT_EQ(root[1].kind(), PickleKind::call);
  EXPECT_EQ(root[1][0].text(), "torch.distributed.checkpoint.planner.WriteItemType");
  EXPECT_EQ(root[2].kind(), PickleKind::global);
  EXPECT_EQ(refused_at("\x80\x02" + plan + "."), 2) << "only distributed checkpoints have such objects";
}

TEST(PickleReader, refuses_calls_of_other_functions_in_distributed_checkpoints) {
  EXPECT_EQ(refused_at("\x80\x02"
                       "cos\nsystem\n)R.",
                       dcp()),
            14);
  EXPECT_EQ(refused_at("\x80\x02"
                       "cmy.plans\nPlan\nq\x01h\x01)R.",
                       dcp()),
            22);
}

TEST(PickleReader, refuses_malformed_pickles_with_their_position) {
  std::vector<std::tuple<char const*, std::string, std::int64_t>> const cases{
      {"nothing", "", 0},
      {"protocol 1", "]q\x01.", 0},
      {"protocol 6", "\x80\x06N.", 0},
      {"no end", "\x80\x02N", 3},
      {"bytes behind the end", "\x80\x02N.N", 3},
      {"values left over", "\x80\x02NN.", 4},
      {"mark left over", "\x80\x02N(.", 4},
      {"nothing to end with", "\x80\x02.", 2},
      {"unknown opcode", "\x80\x02\xff.", 2},
      {"os.system",
       "\x80\x02"
       "cos\nsystem\n.",
       2},
      {"eval by its old name",
       "\x80\x02"
       "c__builtin__\neval\n.",
       2},
      {"endless name",
       "\x80\x02"
       "c" +
           std::string(2000, 'x') + "\ny\n.",
       2},
      {"call of a text", "\x80\x02" + pickled("x") + ")R.", 9},
      {"call without a tuple",
       "\x80\x02"
       "ctorch\nSize\n]R.",
       15},
      {"append to a dict",
       "\x80\x02}K\x01"
       "a.",
       5},
      {"appends to a tuple",
       "\x80\x02)(K\x01"
       "e.",
       6},
      {"item of a list", "\x80\x02]K\x01K\x02s.", 7},
      {"odd number of items", "\x80\x02}(K\x01u.", 6},
      {"mark taken as value", "\x80\x02(R.", 3},
      {"pop below a mark", "\x80\x02N(\x85.", 4},
      {"missing mark", "\x80\x02Nt.", 3},
      {"unknown memo", "\x80\x02h\x01.", 2},
      {"memo beyond all bounds", "\x80\x02Nr\xff\xff\xff\x7f.", 3},
      {"memo of nothing", "\x80\x02q\x01.", 2},
      {"text past the end", "\x80\x02X\xff\xff\xff\x7f.", 2},
      {"state of a list", "\x80\x02]}b.", 4},
      {"key twice", "\x80\x02}(K\x01NK\x01Nu.", 2},
      {"a list as key", "\x80\x02}]Ns.", 3},
      {"a list in itself",
       "\x80\x02]q\x01h\x01"
       "a.",
       2},
      {"encoding of no latin1",
       "\x80\x02"
       "c_codecs\nencode\n(" +
           pickled("\xe2\x82\xac") + pickled("latin1") + "tR.",
       39},
      {"new object of a text", "\x80\x02" + pickled("x") + ")\x81.", 9},
  };
  for (auto const& [what, pickle, at] : cases) EXPECT_EQ(refused_at(pickle), at) << what;
  EXPECT_EQ(refused_at("\x80\x04\x95" + little(std::uint64_t{1000}) + "N.", dcp()), 2);
  EXPECT_EQ(refused_at("\x80\x04K\x01Q.", dcp()), 4);
  EXPECT_EQ(refused_at("\x80\x04K\x01K\x02\x93.", dcp()), 6);
}

TEST(PickleReader, enforces_its_limits) {
  PickleOptions small;
  small.limits = {.pickle_bytes = 4000, .nodes = 50, .expanded = 100, .depth = 10, .made_bytes = 10};
  EXPECT_EQ(refused_at("\x80\x02(" + std::string(5000, ']') + "t.", small), 4000);
  EXPECT_GT(refused_at("\x80\x02(" + std::string(60, ']') + "t.", small), 2);
  EXPECT_GT(refused_at("\x80\x02" + std::string(12, ']') + std::string(11, 'a') + ".", small), 1);
  std::string bomb = "\x80\x02]q" + std::string(1, '\0');
  for (char i = 1; i < 8; ++i)
    bomb += "]q"s + i + "(h" + static_cast<char>(i - 1) + "h" + static_cast<char>(i - 1) + "e0";
  EXPECT_GE(refused_at(bomb + ".", small), 0);
  std::string shared = "\x80\x02)\x85q" + std::string(1, '\0');
  for (char i = 1; i < 8; ++i) shared += "h"s + static_cast<char>(i - 1) + "\x86q" + i;
  EXPECT_GE(refused_at(shared + ".", small), 0);
  // Sets that are made again and again from one list.
  std::string sets = "\x80\x02(" + std::string(10, 'N') + "lq"s + '\0' +
                     "\x85q\x01"
                     "cbuiltins\nset\nq\x02";
  for (int i = 0; i < 8; ++i) sets += "h\x02h\x01R0";
  EXPECT_GE(refused_at(sets + "h\x01.", small), 0);
  EXPECT_EQ(refused_at("\x80\x02" + std::string(9, ']') + std::string(8, 'a') + ".", small), -1);
}

TEST(PickleReader, accepts_more_names_only_on_request) {
  auto const pickle =
      "\x80\x02"
      "cmine\nThing\n)R."s;
  EXPECT_EQ(refused_at(pickle), 2);
  EXPECT_EQ(refused_at(pickle, {.extra_globals = {"mine.Thing"}}), -1);
  EXPECT_EQ(refused_at("\x80\x02"
                       "cargparse\nNamespace\n)\x81}b.",
                       {.allowlist = training_allowlist()}),
            -1);
}

}  // namespace
}  // namespace crossrank::codec
