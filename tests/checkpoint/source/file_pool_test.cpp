// A checkpoint may have more files than a process may have descriptors.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::FilePool;
using checkpoint::PooledFile;
using test::TemporaryDirectory;

/// Limits the descriptors of this process during its lifetime.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t max) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit const fewer{max, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &fewer), 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(FewDescriptors const&) = delete;
  FewDescriptors& operator=(FewDescriptors const&) = delete;

 private:
  rlimit before_{};
};

TEST(FilePool, limits_itself_to_an_eighth_of_the_descriptors) {
  FewDescriptors const few(80);
  EXPECT_EQ(FilePool::default_limit(), 10);
}

TEST(FilePool, reads_more_files_than_it_keeps_open) {
  TemporaryDirectory const folder;
  constexpr int files = 20;
  constexpr std::size_t limit = 3;
  auto const pool = std::make_shared<FilePool>(limit);
  std::vector<std::shared_ptr<PooledFile const>> all;
  for (int i = 0; i < files; ++i) {
    auto const path = folder.path() / std::to_string(i);
    std::ofstream(path) << static_cast<char>('a' + i);
    all.push_back(pool->open(path));
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < files; ++i) {
      std::byte read{};
      all[as_size(i)]->read_at(0, {&read, 1});
      EXPECT_EQ(std::to_integer<char>(read), 'a' + i);
      EXPECT_LE(pool->open_files(), limit);
    }
  }
}

TEST(FilePool, verifies_a_checkpoint_with_more_files_than_descriptors) {
  TemporaryDirectory const folder;
  constexpr int files = 90;
  Json map = Json::object();
  for (int i = 0; i < files; ++i) {
    char name[40];
    std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i + 1, files);
    auto const tensor = "block." + std::to_string(i) + ".values";
    save_safetensors(folder.path() / name, {{tensor, Tensor::zeros({4}, Dtype::f32)}});
    map[tensor] = name;
  }
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << Json{{"metadata", {{"total_size", 16 * files}}}, {"weight_map", map}};
  FewDescriptors const few(64);
  auto const report = checkpoint::verify(connect({.backend = "fake"}), folder.path(), {}, {});
  EXPECT_EQ(report.files, files);
  EXPECT_EQ(report.tensors, files);
  EXPECT_TRUE(report.defects.empty()) << report.defects.front().text;
}

}  // namespace
}  // namespace crossrank
