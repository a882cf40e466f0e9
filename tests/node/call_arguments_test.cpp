#include "lib/node/memory/call_arguments.hpp"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lib/core/reserved_tags.hpp"

namespace crossrank {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(CallArguments, are_described_in_text) {
  CallArguments arguments;
  arguments.root(2).dtype(Dtype::f32).op(ReduceOp::max).shape(Numbers{4, 6}).tag(70'000).parts(Numbers{1, 300, -1});
  EXPECT_EQ(describe_call("reduce", arguments.bytes()), "reduce root 2 F32 max [4, 6] with tag 70000 parts 1+300+-1");
  CallArguments own;
  own.tag(reserved_tags::dict_tensor | 7);
  EXPECT_EQ(describe_call("recv", own.bytes()), "recv for a tensor of a dictionary") << "a tag of the library";
  EXPECT_EQ(describe_call("barrier", CallArguments().bytes()), "barrier");
}

TEST(CallArguments, name_the_call_of_a_composed_operation) {
  CallArguments arguments;
  arguments.name("get_tensors_parallel").text("of ranks").ranks(std::vector<int>{0, 1}).text("lazily");
  EXPECT_EQ(describe_call("range_open", arguments.bytes()), "get_tensors_parallel of ranks [0, 1] lazily");
}

TEST(CallArguments, show_only_the_number_of_many_parts) {
  EXPECT_EQ(describe_call("gatherv", CallArguments().parts(Numbers(9, 1)).bytes()), "gatherv 9 parts");
  EXPECT_EQ(describe_call("gatherv", CallArguments().rows_of(Numbers{3, 2}).bytes()), "gatherv rows of [3, 2]");
}

TEST(CallArguments, leave_out_fields_that_do_not_fit) {
  CallArguments arguments;
  arguments.root(1).shape(Numbers(200, INT64_MAX)).text(std::string(200, 'x')).tag(7);
  EXPECT_EQ(describe_call("broadcast", arguments.bytes()), "broadcast root 1 ... ... with tag 7");
  for (int i = 0; i < 100; ++i) arguments.shape(Numbers{INT64_MAX});
  EXPECT_LE(arguments.bytes().size(), CallArguments::max_bytes);
  auto const copy = arguments;
  EXPECT_EQ(copy.bytes(), arguments.bytes());
}

/// The bytes come from another process.
TEST(CallArguments, accept_any_bytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (auto& c : bytes) c = static_cast<char>(random() % (i % 2 == 0 ? 14 : 256));
    for (char const c : describe_call("operation", bytes)) EXPECT_TRUE(c >= 0x20 && c <= 0x7e);
  }
  EXPECT_EQ(describe_call("operation", std::string("\x02\x7f", 2)), "operation ...");
}

}  // namespace
}  // namespace crossrank
