#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

#include "tests/collectives/connect/trial_plugin.hpp"
#include "tests/support/error_of.hpp"

/// Backends that are plugins beside the shared library.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

ErrorInfo refusal(std::string const& backend) {
  return error_of<UnavailableError>(
      [&] { static_cast<void>(connect({.backend = backend, .rank = 0, .world_size = 1, .job_id = "plugin"})); });
}

spi::PluginRequest last_request() {
  auto* const plugin = ::dlopen(CROSSRANK_TRIAL_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(plugin, nullptr) << "the library has loaded another file";
  if (plugin == nullptr) return {};
  return *reinterpret_cast<LastTrialRequest>(::dlsym(plugin, last_trial_request_name))();
}

TEST(Plugin, is_opened_by_the_name_of_its_backend) {
  ::setenv("MASTER_ADDR", "10.0.0.7", 1);
  ::setenv("MASTER_PORT", "29500", 1);
  auto world = connect({.backend = "trial",
                        .timeout = std::chrono::seconds(17),
                        .connect_timeout = std::chrono::seconds(9),
                        .rank = 0,
                        .world_size = 1,
                        .job_id = "plugin"});
  EXPECT_EQ(world.backend(), "trial");
  auto const request = last_request();
  EXPECT_EQ(request.job, "plugin");
  EXPECT_EQ(request.master, "10.0.0.7:29500");
  EXPECT_EQ(request.rank, 0);
  EXPECT_EQ(request.world_size, 1);
  EXPECT_EQ(request.timeout_policy.timeout, std::chrono::seconds(17));
  EXPECT_EQ(request.connect_timeout, std::chrono::seconds(9));
  auto group = world.split({{0}});
  EXPECT_EQ(group.backend(), "trial") << "its transport makes the other groups";
  group.barrier();
  group.close();
  world.close();
}

TEST(Plugin, of_another_build_is_refused) {
  auto const info = refusal("stale");
  EXPECT_THAT(info.message, HasSubstr("crossrank 0.0.0"));
  EXPECT_THAT(info.resource, HasSubstr("libcrossrank_stale.so"));
  EXPECT_FALSE(info.group_usable);
}

TEST(Plugin, is_a_library_with_the_entry) {
  auto const info = refusal("checkpoint");
  EXPECT_THAT(info.message, HasSubstr("not a plugin"));
  EXPECT_THAT(info.resource, HasSubstr("libcrossrank_checkpoint.so"));
}

TEST(Plugin, that_is_missing_is_an_unknown_backend) {
  auto const info = refusal("nowhere");
  EXPECT_THAT(info.message, HasSubstr("unknown backend \"nowhere\""));
  EXPECT_THAT(info.hint, HasSubstr("libcrossrank_NAME.so"));
}

TEST(Plugin, is_not_looked_for_in_other_folders) {
  auto const folder = std::filesystem::path(CROSSRANK_TRIAL_PLUGIN).parent_path();
  std::filesystem::create_directory(folder / "libcrossrank_");  // so that the kernel can follow the path
  EXPECT_THAT(refusal("/../libcrossrank_trial").message, HasSubstr("unknown backend"));
  std::filesystem::remove(folder / "libcrossrank_");
}

}  // namespace
}  // namespace crossrank::test
