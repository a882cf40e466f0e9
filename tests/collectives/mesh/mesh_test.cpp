#include <crossrank/mesh.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

TEST(Mesh, varies_the_last_axis_fastest) {
  run_thread_ranks(4, [](Collective world) {
    Mesh const mesh(world, {{"dp", 2}, {"tp", 2}});
    EXPECT_EQ(mesh.coordinate("dp"), world.rank() / 2);
    EXPECT_EQ(mesh.coordinate("tp"), world.rank() % 2);
    EXPECT_EQ(mesh.groups("tp"), (Groups{{0, 1}, {2, 3}}));
    EXPECT_EQ(mesh.groups("dp"), (Groups{{0, 2}, {1, 3}}));
    EXPECT_EQ(mesh["tp"].name(), "tp");
    EXPECT_EQ(mesh["tp"].rank(), world.rank() % 2);
    std::vector<std::int64_t> sum{world.rank()};
    mesh["dp"].all_reduce(std::span(sum));
    EXPECT_EQ(sum.front(), 2 * (world.rank() % 2) + 2);
    world.close();
  });
}

TEST(Mesh, accepts_any_number_of_axes) {
  run_thread_ranks(6, [](Collective world) {
    Mesh const mesh(world, {{"pp", 3}, {"one", 1}, {"tp", 2}});
    EXPECT_EQ(mesh.groups("pp"), (Groups{{0, 2, 4}, {1, 3, 5}}));
    EXPECT_EQ(mesh["one"].world_size(), 1);
    EXPECT_EQ(mesh["pp"].rank(), mesh.coordinate("pp"));
    world.close();
  });
}

TEST(Mesh, refuses_wrong_sizes_and_duplicate_names) {
  run_thread_ranks(2, [](Collective world) {
    auto const text = [&](std::vector<Axis> const& axes) {
      try {
        Mesh const mesh(world, axes);
      } catch (UsageError const& e) {
        return std::string(e.what());
      }
      return std::string("none");
    };
    EXPECT_THAT(text({{"a", 3}}), AllOf(HasSubstr("a 3 = 3"), HasSubstr("start as many ranks")));
    EXPECT_THAT(text({{"a", 2}, {"a", 1}}), AllOf(HasSubstr("twice"), HasSubstr("a name of its own")));
    EXPECT_THAT(text({{"a", 2}, {"b", 0}}), AllOf(HasSubstr("b = 0"), HasSubstr("a size of at least 1")));
    EXPECT_THAT(text({{"a", 1 << 30}, {"b", 1 << 30}, {"c", 16}}), HasSubstr("expected 2"));
    Mesh const mesh(world, {{"x", 2}});
    EXPECT_THAT([&] { static_cast<void>(mesh["y"]); }, testing::ThrowsMessage<UsageError>(HasSubstr("x")));
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test
