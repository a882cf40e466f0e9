#include "lib/codec/torch/torch_archive.hpp"

#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "tests/codec/torch/torch_fixture.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank::codec {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

std::string floats(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += little(static_cast<float>(i));
  return out;
}

std::string tensor_file(std::int64_t offset, std::vector<std::int64_t> const& lengths,
                        std::vector<std::int64_t> const& strides, std::int64_t numel = 12) {
  return torch_of(
      pickled_dict("w", pickled_tensor(pickled_storage("FloatStorage", "0", numel), offset, lengths, strides)),
      {floats(12)});
}

std::string message_of(std::string const& file) {
  return test::refusal_of<FormatError>([&] { static_cast<void>(load_torch(to_bytes(file))); });
}

TEST(TorchArchive, reads_views_in_row_major_order) {
  auto const weights = load_torch(to_bytes(tensor_file(1, {2, 3}, {1, 4})));
  EXPECT_THAT(weights.at("w").as<float>(), testing::ElementsAre(1, 5, 9, 2, 6, 10));
  EXPECT_THAT(load_torch(to_bytes(tensor_file(11, {2, 2}, {0, 0}))).at("w").as<float>(), testing::Each(11));
  EXPECT_EQ(load_torch(to_bytes(tensor_file(50, {0, 3}, {3, 1}))).at("w").numel(), 0);
}

TEST(TorchArchive, refuses_views_past_their_storage_with_numbers_of_any_size) {
  auto const big = INT64_MAX;
  EXPECT_THAT(message_of(tensor_file(1, {12}, {1})), HasSubstr("past the end"));
  EXPECT_THAT(message_of(tensor_file(big, {1}, {1})), HasSubstr("past the end"));
  EXPECT_THAT(message_of(tensor_file(0, {big, big}, {big, big})), HasSubstr("past the end"));
  EXPECT_THAT(message_of(tensor_file(0, {2, 2}, {big, big})), HasSubstr("past the end"));
  EXPECT_THAT(message_of(tensor_file(0, {big}, {0})), HasSubstr("past the end"));
  EXPECT_THAT(message_of(tensor_file(-1, {1}, {1})), HasSubstr("invalid numbers"));
  EXPECT_THAT(message_of(tensor_file(0, {-1}, {1})), HasSubstr("invalid numbers"));
  EXPECT_THAT(message_of(tensor_file(0, {2}, {-1})), HasSubstr("invalid numbers"));
  EXPECT_THAT(message_of(tensor_file(0, {2}, {1, 1})), HasSubstr("invalid numbers"));
  EXPECT_THAT(message_of(tensor_file(0, {1}, {1}, 13)), HasSubstr("52 bytes and its record 48"));
  EXPECT_THAT(message_of(tensor_file(0, {1}, {1}, 11)), HasSubstr("44 bytes and its record 48"));
  EXPECT_THAT(message_of(tensor_file(0, {1}, {1}, INT64_MAX)), HasSubstr("more bytes"));
  EXPECT_THAT(message_of(tensor_file(0, {1 << 30, 64}, {0, 0})), HasSubstr("repeat their elements"));
}

TEST(TorchArchive, refuses_a_storage_that_is_described_in_two_ways) {
  auto const first = pickled_tensor(pickled_storage("FloatStorage", "0", 12), 0, {1}, {1});
  auto const other = pickled_tensor(pickled_storage("IntStorage", "0", 12), 0, {1}, {1});
  EXPECT_THAT(message_of(torch_of("\x80\x02}(" + pickled("a") + first + pickled("b") + other + "u.", {floats(12)})),
              HasSubstr("described in two ways"));
}

TEST(TorchArchive, names_the_tensor_with_an_unsupported_dtype) {
  auto const file = torch_of(
      pickled_dict("w", pickled_tensor(pickled_storage("ComplexDoubleStorage", "0", 3), 0, {3}, {1})), {floats(12)});
  EXPECT_THAT(message_of(file), testing::AllOf(HasSubstr("\"w\""), HasSubstr("torch.complex128")));
}

TEST(TorchArchive, names_the_tensor_that_is_sparse_nested_or_quantized) {
  auto const inner = pickled_tensor(pickled_storage("FloatStorage", "0", 12), 0, {3}, {1});
  auto const made_by = [&](std::string const& function, std::string const& arguments) {
    return message_of(
        torch_of(pickled_dict("w", "ctorch._utils\n_rebuild_" + function + "\n(" + arguments + "tR"), {floats(12)}));
  };
  auto const layout = "ctorch.serialization\n_get_layout\n" + pickled("torch.sparse_coo") + "\x85R";
  EXPECT_THAT(made_by("sparse_tensor", layout + "(" + inner + inner + "t"),
              testing::AllOf(HasSubstr("\"w\""), HasSubstr("sparse"), HasSubstr("to_dense()")));
  EXPECT_THAT(made_by("sparse_csr_tensor", layout + "(" + inner + inner + "t"), HasSubstr("to_dense()"));
  EXPECT_THAT(made_by("nested_tensor", inner), HasSubstr("unbind()"));
  EXPECT_THAT(made_by("qtensor",
                      pickled_storage("QInt8Storage", "0", 48) + "K\x00(K\x30t(K\x01t(ctorch\nper_tensor_affine\nt"s),
              testing::AllOf(HasSubstr("\"w\""), HasSubstr("dequantize()")));
}

/// The names of a module's fields are not those of its weights.
TEST(TorchArchive, refuses_a_whole_module) {
  auto const weight = pickled_tensor(pickled_storage("FloatStorage", "0", 12), 0, {3}, {1});
  auto const parameters = "}" + pickled("weight") + weight + "s";
  auto const object = "cmodel\nNet\n)\x81}(" + pickled("_parameters") + parameters + pickled("_modules") + "}" + "ub";
  auto const refused = [](std::string const& pickle) {
    return test::refusal_of<FormatError>([&] {
      static_cast<void>(load_torch(to_bytes(torch_of(pickle, {floats(12)})), {.extra_globals = {"model.Net"}}));
    });
  };
  EXPECT_THAT(refused("\x80\x02" + object + "."),
              testing::AllOf(HasSubstr("whole module (model.Net)"), HasSubstr("state_dict()")));
  EXPECT_THAT(refused(pickled_dict("net", object)), HasSubstr("\"net\" is a whole module"));
}

TEST(TorchArchive, refuses_files_that_are_not_archives_of_weights) {
  auto const pickle = pickled_dict("a", "N");
  EXPECT_THAT(message_of(zip_of({{"a/data.pkl", pickle}, {"a/version", "3\n"}, {"a/constants.pkl", ""}})),
              HasSubstr("TorchScript"));
  EXPECT_THAT(message_of(zip_of({{"a/data.pkl", pickle}, {"a/version", "3\n"}, {"a/byteorder", "big"}})),
              HasSubstr("byte order"));
  EXPECT_THAT(message_of(zip_of({{"a/data.pkl", pickle}, {"a/version", "11\n"}})), HasSubstr("version"));
  EXPECT_THAT(message_of(zip_of({{"a/data.pkl", pickle}})), HasSubstr("version"));
  EXPECT_THAT(message_of(zip_of({{"a/version", "3\n"}})), HasSubstr("data.pkl"));
  EXPECT_THAT(message_of(zip_of({{"data.pkl", pickle}})), HasSubstr("not one of torch"));
  EXPECT_THAT(message_of(std::string(257, 'x') + "ustar" + std::string(300, 'x')), HasSubstr("tar archive"));
}

TEST(TorchArchive, unwraps_parameters_and_subclasses) {
  auto const tensor = pickled_tensor(pickled_storage("FloatStorage", "0", 12), 0, {12}, {1});
  auto const parameter = "ctorch._utils\n_rebuild_parameter\n(" + tensor + "\x88" + "ccollections\nOrderedDict\n)RtR";
  auto const arguments = tensor.substr(tensor.find('('), tensor.size() - tensor.find('(') - 1);
  auto const subclass =
      "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n" + arguments + "}tR";
  EXPECT_EQ(load_torch(to_bytes(torch_of(pickled_dict("w", parameter), {floats(12)}))).at("w").numel(), 12);
  EXPECT_EQ(load_torch(to_bytes(torch_of(pickled_dict("w", subclass), {floats(12)}))).at("w").numel(), 12);
}

TEST(TorchArchive, refuses_repeated_names) {
  auto const tensor = pickled_tensor(pickled_storage("FloatStorage", "0", 12), 0, {12}, {1});
  auto const nested = "\x80\x02}(" + pickled("a.b") + tensor + pickled("a") + "}" + pickled("b") + tensor + "su.";
  EXPECT_THAT(message_of(torch_of(nested, {floats(12)})), HasSubstr("two tensors have the name"));
  auto const keys = std::string("\x80\x02}(K\x01N") + pickled("1") + "Nu.";
  EXPECT_THAT(message_of(torch_of(keys)), HasSubstr("two keys"));
}

/// The slow reference implementation: element by element.
Bytes gather(Bytes const& storage, StridedView const& view) {
  Bytes out;
  auto const count = view.numel();
  for (std::int64_t n = 0; n < count; ++n) {
    auto rest = n;
    std::int64_t at = 0;
    for (auto dim = view.lengths.size(); dim-- > 0; rest /= view.lengths[dim])
      at += rest % view.lengths[dim] * view.strides[dim];
    auto const from = storage.begin() + static_cast<std::ptrdiff_t>(view.first) +
                      at * static_cast<std::ptrdiff_t>(view.element_bytes);
    out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(view.element_bytes));
  }
  return out;
}

TEST(StridedRead, reads_any_range_of_any_view_like_the_reference) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  auto const below = [&](std::size_t bound) { return static_cast<std::int64_t>(random() % bound); };
  Bytes storage(1 << 16);
  for (auto& b : storage) b = static_cast<std::byte>(random());
  BytesSource const source(storage);
  for (int round = 0; round < 600; ++round) {
    StridedView view{.first = static_cast<std::uint64_t>(below(64)), .element_bytes = std::size_t{1} << below(5)};
    for (auto dims = below(5); dims > 0; --dims) {
      view.lengths.push_back(1 + below(6));
      view.strides.push_back(below(3) == 0 ? below(40) : 0);
    }
    // Some views are dense, some permuted, some arbitrary.
    std::vector<std::size_t> order(view.lengths.size());
    std::iota(order.begin(), order.end(), 0U);
    if (below(2) == 0) std::shuffle(order.begin(), order.end(), random);
    std::int64_t step = 1;
    for (auto i = order.rbegin(); i != order.rend() && round % 3 != 0; ++i) {
      view.strides[*i] = step;
      step *= view.lengths[*i];
    }
    auto const whole = gather(storage, view);
    auto const begin = as_size(below(whole.size()));
    Bytes part(as_size(below(whole.size() - begin + 1)));
    ReadWindow window(source, 0, storage.size());
    read_strided(window, view, begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)))
        << "round " << round;
  }
}

}  // namespace
}  // namespace crossrank::codec
