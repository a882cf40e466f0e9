#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/json.hpp>

#include "tests/tools/command_run.hpp"

namespace crossrank {
namespace {

using test::run_command;
using testing::HasSubstr;

/// Sets variables for the commands that a test runs.
class DoctorCommand : public testing::Test {
 protected:
  ~DoctorCommand() override {
    for (auto const* name : {"CROSSRANK_CUDA_LIBRARY", "CROSSRANK_NCCL_LIBRARY", "CUDA_VISIBLE_DEVICES",
                             "EMULATED_GPU_COUNT", "EMULATED_GPU_DRIVER_VERSION", "EMULATED_GPU_FAIL"})
      ::unsetenv(name);
  }
  static void use(char const* library, char const* gpus) {
    ::setenv("CROSSRANK_CUDA_LIBRARY", library, 1);
    ::setenv("EMULATED_GPU_COUNT", gpus, 1);
  }
};

TEST_F(DoctorCommand, says_what_is_missing_without_a_driver) {
  use("/nowhere/libcuda.so.1", "0");
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("CUDA: not used on this machine"));
  EXPECT_THAT(end.out, HasSubstr("/nowhere/libcuda.so.1"));
  auto const report = Json::parse(run_command({"doctor", "--json"}).out);
  EXPECT_EQ(report["ok"], true);
  EXPECT_EQ(report["devices"].size(), 0U);
  EXPECT_THAT(report["cuda"]["unavailable"].get<std::string>(), HasSubstr("/nowhere/libcuda.so.1"));
}

TEST_F(DoctorCommand, reports_a_malformed_variable_as_wrong_use) {
  ::setenv("CROSSRANK_TIMEOUT", "abc", 1);
  auto const plain = run_command({"doctor"});
  auto const json = run_command({"doctor", "--json"});
  ::unsetenv("CROSSRANK_TIMEOUT");
  EXPECT_EQ(plain.exit_code, 2) << plain.err;
  EXPECT_THAT(plain.err, HasSubstr("CROSSRANK_TIMEOUT"));
  EXPECT_EQ(json.exit_code, 2) << json.err;
  auto const answer = Json::parse(json.out);
  EXPECT_EQ(answer["command"], "doctor");
  EXPECT_EQ(answer["exit_code"], 2);
  EXPECT_EQ(answer["error"]["code"], "usage");
}

TEST_F(DoctorCommand, says_why_a_driver_does_not_start) {
  use(CROSSRANK_TEST_CUDA, "2");
  ::setenv("EMULATED_GPU_FAIL", "cuInit:1:999", 1);
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("CUDA: not used on this machine"));
  EXPECT_THAT(end.out, HasSubstr("cuInit failed"));
  EXPECT_THAT(end.out, HasSubstr("NCCL: "));
  EXPECT_THAT(end.out, HasSubstr("restart the machine"));
}

/// Expects that the command tells what was tried, and what to do about a driver without a GPU.
void expect_no_gpu() {
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("CUDA: driver for CUDA 12.8, " CROSSRANK_TEST_CUDA));
  EXPECT_THAT(end.out, HasSubstr("GPUs: none"));
  EXPECT_THAT(end.out, HasSubstr("there is no GPU"));
  EXPECT_THAT(end.out, HasSubstr("CUDA_ERROR_NO_DEVICE"));
  EXPECT_THAT(end.out, HasSubstr("check nvidia-smi"));
  auto const report = Json::parse(run_command({"doctor", "--json"}).out);
  EXPECT_EQ(report["ok"], true);
  EXPECT_EQ(report["devices"].size(), 0U);
  EXPECT_EQ(report["cuda"]["library"], CROSSRANK_TEST_CUDA);
  EXPECT_THAT(report["cuda"]["unavailable"].get<std::string>(), HasSubstr("there is no GPU"));
}

TEST_F(DoctorCommand, says_that_a_driver_finds_no_gpu) {
  use(CROSSRANK_TEST_CUDA, "0");
  expect_no_gpu();
}

TEST_F(DoctorCommand, says_that_a_driver_starts_without_a_gpu) {
  use(CROSSRANK_TEST_CUDA, "2");
  ::setenv("EMULATED_GPU_FAIL", "cuInit:1:100", 1);
  expect_no_gpu();
}

TEST_F(DoctorCommand, says_that_all_gpus_are_hidden) {
  use(CROSSRANK_TEST_CUDA, "2");
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  expect_no_gpu();
}

TEST_F(DoctorCommand, says_that_a_driver_is_too_old) {
  use(CROSSRANK_TEST_CUDA, "2");
  ::setenv("EMULATED_GPU_DRIVER_VERSION", "10020", 1);
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("the driver is too old: expected a driver for CUDA 11.0 or later, got CUDA 10.2"));
  EXPECT_THAT(end.out, HasSubstr("install a newer NVIDIA driver"));
}

TEST_F(DoctorCommand, shows_each_gpu_and_sends_bytes_there_and_back) {
  use(CROSSRANK_TEST_CUDA, "2");
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, HasSubstr("GPU 1: "));
  EXPECT_THAT(end.out, HasSubstr("round trip   1 MiB, equal"));
  auto const report = Json::parse(run_command({"doctor", "--json"}).out);
  ASSERT_EQ(report["devices"].size(), 2U);
  EXPECT_NE(report["devices"][0]["uuid"], report["devices"][1]["uuid"]);
  EXPECT_EQ(report["devices"][1]["error"], "");
}

TEST_F(DoctorCommand, shows_nccl_and_what_it_lacks) {
  use(CROSSRANK_TEST_CUDA, "1");
  ::setenv("CROSSRANK_NCCL_LIBRARY", CROSSRANK_TEST_NCCL_2_18, 1);
  EXPECT_THAT(run_command({"doctor"}).out, HasSubstr("NCCL: 2.18.5"));
  auto const report = Json::parse(run_command({"doctor", "--json"}).out);
  EXPECT_EQ(report["nccl"]["version"], 21805);
  EXPECT_THAT(report["nccl"]["missing"].dump(), HasSubstr("ncclGather"));
  ::setenv("CROSSRANK_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("/nowhere/libnccl.so.2"));
}

TEST_F(DoctorCommand, says_that_nccl_is_too_old) {
  use(CROSSRANK_TEST_CUDA, "1");
  ::setenv("CROSSRANK_NCCL_LIBRARY", CROSSRANK_TEST_NCCL_2_16, 1);
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("NCCL: not used on this machine"));
  EXPECT_THAT(end.out, HasSubstr("expected NCCL 2.18.0 or later, got NCCL 2.16.2"));
  EXPECT_THAT(end.out, HasSubstr("install a newer NCCL"));
}

TEST_F(DoctorCommand, names_the_function_that_nccl_lacks) {
  use(CROSSRANK_TEST_CUDA, "1");
  ::setenv("CROSSRANK_NCCL_LIBRARY", CROSSRANK_TEST_NCCL_INCOMPLETE, 1);
  auto const end = run_command({"doctor"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("NCCL: not used on this machine"));
  EXPECT_THAT(end.out, HasSubstr("NCCL 2.28.9 without ncclReduceScatter"));
}

}  // namespace
}  // namespace crossrank
