// The end of a merge in parts: complete parts are published, and others are named.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>

#include "lib/platform/system.hpp"
#include "tests/checkpoint/parts/planned_parts.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::consolidate_part;
using checkpoint::finish_parts;
using checkpoint::PartCheck;
using checkpoint::PartsPlan;
using test::names_in;
using testing::Each;
using testing::ElementsAre;
using testing::Not;
using testing::StartsWith;

class FinishParts : public test::PlannedParts {};

TEST_F(FinishParts, names_missing_parts) {
  save_plan();
  auto const loaded = load_plan();
  (void)consolidate_part(loaded, 1);
  EXPECT_THAT(loaded.missing(), ElementsAre(0, 2));
  try {
    (void)finish_parts(loaded);
    FAIL() << "published";
  } catch (FormatError const& error) {
    EXPECT_EQ(error.info().details.size(), 2U);
    EXPECT_THAT(error.info().message, testing::HasSubstr("0, 2"));
  }
  EXPECT_EQ(state(), "old");
  EXPECT_EQ(consolidate_part(loaded, 1).resumed_files, static_cast<int>(loaded.files(1).size())) << "nothing is lost";
}

TEST_F(FinishParts, names_damaged_parts_that_can_run_again) {
  enum class Damage { flipped, shorter, record, no_record };
  for (auto const damage : {Damage::flipped, Damage::shorter, Damage::record, Damage::no_record}) {
    put_old();
    auto const loaded = run_all_parts();
    auto const name = loaded.files(2).front();
    auto const record = in_plan_folder(".finished." + name);
    if (damage == Damage::flipped) flip_last_byte(in_plan_folder(name));
    if (damage == Damage::shorter) fs::resize_file(in_plan_folder(name), 5);
    if (damage == Damage::record) flip_last_byte(record);
    if (damage == Damage::no_record) fs::remove(record);
    try {
      (void)finish_parts(loaded);
      ADD_FAILURE() << "published";
    } catch (FormatError const& error) {
      ASSERT_EQ(error.info().details.size(), 1U);
      EXPECT_THAT(error.info().details.front(), StartsWith("part 2: "));
    }
    EXPECT_EQ(state(), "old");
    (void)consolidate_part(loaded, 2);
    (void)finish_parts(loaded);
    EXPECT_EQ(state(), "new");
  }
}

// The time of modification says nothing about a disk that loses bits.
TEST_F(FinishParts, reads_all_parts_on_request) {
  auto const loaded = run_all_parts();
  auto const file = in_plan_folder(loaded.files(2).front());
  auto const time = fs::last_write_time(file);
  flip_last_byte(file);
  fs::last_write_time(file, time);
  EXPECT_THROW((void)finish_parts(loaded, {.check = PartCheck::all}), FormatError);
  (void)consolidate_part(loaded, 2);
  (void)finish_parts(loaded, {.check = PartCheck::all});
  EXPECT_EQ(state(), "new");
}

TEST_F(FinishParts, reads_no_file_but_checks_sizes_and_records_on_request) {
  constexpr auto no_file = PartCheck::none;
  auto const loaded = run_all_parts();
  auto const shorter = in_plan_folder(loaded.files(1).front());
  auto const bytes = fs::file_size(shorter);
  fs::resize_file(shorter, bytes - 1);
  EXPECT_THROW((void)finish_parts(loaded, {.check = no_file}), FormatError);
  EXPECT_EQ(state(), "old");
  (void)consolidate_part(loaded, 1);

  flip_last_byte(in_plan_folder(loaded.files(2).front()));
  EXPECT_THROW((void)finish_parts(loaded, {.dry_run = true}), FormatError);
  EXPECT_NO_THROW((void)finish_parts(loaded, {.check = no_file}));
  EXPECT_EQ(fs::file_size(out() / loaded.files(1).front()), bytes);
}

TEST_F(FinishParts, reads_parts_that_were_not_read_back) {
  save_plan();
  auto const loaded = load_plan();
  for (int part = 0; part < parts; ++part)
    (void)consolidate_part(loaded, part, {.read_back = checkpoint::ReadBack::none});
  auto const file = in_plan_folder(loaded.files(1).front());
  auto const time = fs::last_write_time(file);
  flip_last_byte(file);
  fs::last_write_time(file, time);
  EXPECT_THROW((void)finish_parts(loaded), FormatError);
}

/// A nearly full file system that compresses all files away.
class CompressingSystem final : public platform::System {
 public:
  int fstatat(int directory, char const* path, struct stat* out, int flags) override {
    auto const result = System::fstatat(directory, path, out, flags);
    if (result == 0) out->st_blocks = 0;
    return result;
  }
  int fstatvfs(int fd, struct statvfs* out) override {
    auto const result = System::fstatvfs(fd, out);
    out->f_frsize = 4096;
    out->f_bavail = 1;
    return result;
  }
};

TEST_F(FinishParts, publishes_on_a_full_file_system_that_compresses) {
  (void)run_all_parts();
  CompressingSystem compressing;
  platform::ScopedSystem const installed(compressing);
  (void)finish_parts(load_plan());
  EXPECT_EQ(state(), "new");
}

TEST_F(FinishParts, names_missing_parts_on_a_full_file_system) {
  auto const loaded = run_all_parts();
  fs::remove(in_plan_folder(loaded.files(1).front()));
  CompressingSystem full;
  platform::ScopedSystem const installed(full);
  auto const refused = test::error_of<FormatError>([&] { (void)finish_parts(loaded); });
  EXPECT_THAT(refused.message, testing::HasSubstr("1 of 3 parts are missing or damaged: 1"));
}

// Slurm writes the logs of jobs into the directory in which they were submitted.
TEST_F(FinishParts, ignores_files_that_appeared_among_the_shards) {
  (void)checkpoint::consolidate(world_, plan(), folder_.path() / "plain", test::options_for("safetensors"));
  (void)run_all_parts();
  std::ofstream(in() / "slurm-7_0.out") << "part 0";
  (void)finish_parts(load_plan());
  EXPECT_EQ(bytes_of(out()), bytes_of(folder_.path() / "plain"));
}

TEST_F(FinishParts, says_why_the_only_damaged_part_is_damaged) {
  auto const loaded = run_all_parts();
  auto const file = loaded.files(1).front();
  fs::remove(in_plan_folder(file));
  try {
    (void)finish_parts(loaded);
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_EQ(error.info().got, file + " is missing or incomplete");
  }
}

TEST_F(FinishParts, can_be_called_again_and_parts_can_run_again) {
  auto const loaded = run_all_parts();
  (void)finish_parts(loaded);
  EXPECT_NO_THROW((void)finish_parts(loaded));
  auto const again = consolidate_part(loaded, 1);
  EXPECT_EQ(again.resumed_files, again.files);
  EXPECT_THAT(loaded.missing(), testing::IsEmpty());
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));

  flip_last_byte(out() / loaded.files(1).front());
  EXPECT_THROW((void)consolidate_part(loaded, 1), UsageError);
  EXPECT_THROW((void)finish_parts(loaded), UsageError);

  fs::remove(out() / loaded.files(1).front());
  EXPECT_THROW((void)loaded.missing(), UsageError);
}

/// Another process publishes and removes the folder between the calls that look for it and open it.
TEST_F(FinishParts, finds_the_result_of_a_process_that_removed_the_folder_meanwhile) {
  class Meanwhile final : public platform::System {
   public:
    explicit Meanwhile(std::function<void()> finish) : finish_(std::move(finish)) {}
    int openat(int directory, char const* path, int flags, mode_t mode) override {
      if (auto const name = fs::path(path).filename().string(); name.starts_with(".crossrank") && finish_)
        std::exchange(finish_, nullptr)();
      return System::openat(directory, path, flags, mode);
    }

   private:
    std::function<void()> finish_;
  };
  auto const loaded = run_all_parts();
  Meanwhile system([&] { (void)finish_parts(loaded); });
  platform::ScopedSystem const installed(system);

  EXPECT_NO_THROW((void)finish_parts(loaded));
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

/// A dry run throws the same error as a call that would publish.
TEST_F(FinishParts, finds_in_a_dry_run_what_keeps_it_from_publishing) {
  auto const expect_refused = [&](checkpoint::FinishOptions options, std::string const& why) {
    SCOPED_TRACE(why);
    auto const finish = [&] { (void)finish_parts(load_plan(), options); };
    options.dry_run = true;
    auto const before = bytes_of(in_plan_folder());
    auto const found = test::refusal_of(finish);
    EXPECT_EQ(bytes_of(in_plan_folder()), before);
    options.dry_run = false;
    EXPECT_EQ(test::refusal_of(finish), found);
    EXPECT_THAT(found, testing::HasSubstr(why));
  };
  auto const loaded = run_all_parts();
  auto const file = in_plan_folder(loaded.files(2).front());
  auto const written = fs::last_write_time(file);
  flip_last_byte(file);
  fs::last_write_time(file, written);
  expect_refused({.check = PartCheck::all}, "does not match its checksums");
  expect_refused({}, "is missing or incomplete");
  (void)consolidate_part(loaded, 2);

  auto const input = in() / "model.safetensors";
  auto const made = fs::last_write_time(input);
  fs::last_write_time(input, made + std::chrono::seconds(1));
  expect_refused({}, "model.safetensors");
  fs::last_write_time(input, made);

  (void)finish_parts(loaded, {.dry_run = true});
  EXPECT_EQ(state(), "old");
  (void)finish_parts(loaded);
  EXPECT_EQ(state(), "new");
  (void)finish_parts(loaded, {.dry_run = true});
}

TEST_F(FinishParts, finds_in_a_dry_run_that_the_output_got_a_checkpoint) {
  fs::remove_all(out());
  save_plan(1, false);
  (void)consolidate_part(load_plan(), 0);
  std::ofstream(out() / "config.json") << "{}";
  EXPECT_THROW((void)finish_parts(load_plan(), {.dry_run = true}), UsageError);
  (void)finish_parts(load_plan(), {.force = true, .dry_run = true});
}

TEST_F(FinishParts, stops_although_no_file_has_to_be_read) {
  auto const loaded = run_all_parts();
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW((void)finish_parts(loaded, {.stop = source.get_token()}), CancelledError);
  EXPECT_EQ(state(), "old");
  (void)finish_parts(loaded);
}

TEST_F(FinishParts, publishes_once_when_several_calls_meet) {
  for (int round = 0; round < 5; ++round) {
    put_old();
    auto const loaded = run_all_parts();
    std::vector<std::thread> finishing;
    for (int i = 0; i < 3; ++i) {
      finishing.emplace_back([&] {
        try {
          (void)finish_parts(loaded);
        } catch (UsageError const&) {
          // Another one is at it.
        }
      });
    }
    for (auto& thread : finishing) thread.join();
    (void)finish_parts(loaded);
    EXPECT_EQ(state(), "new");
    EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
  }
}

// A scheduler may start a part twice. The result does not wait for the slower run.
TEST_F(FinishParts, does_not_wait_for_a_second_run_of_a_part) {
  save_plan();
  auto const loaded = load_plan();
  bool published = false;
  auto const publish = [&](checkpoint::Progress const&) {
    if (std::exchange(published, true)) return;
    std::thread other([&] {
      for (int part = 0; part < parts; ++part) (void)consolidate_part(loaded, part);
      (void)finish_parts(loaded);
    });
    other.join();
  };
  EXPECT_NO_THROW((void)consolidate_part(loaded, 0, {.on_progress = publish, .threads = 1}));
  EXPECT_TRUE(published);
  EXPECT_EQ(state(), "new");
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

TEST_F(FinishParts, replaces_a_checkpoint_only_if_the_plan_or_the_call_says_so) {
  EXPECT_THROW((void)PartsPlan::make(plan(), out(), {.parts = 2}), UsageError);
  fs::remove_all(out());
  save_plan(parts, false);
  auto const loaded = load_plan();
  for (int part = 0; part < parts; ++part) (void)consolidate_part(loaded, part);
  std::ofstream(out() / "config.json") << "{}";
  EXPECT_THROW((void)finish_parts(loaded), UsageError);
  (void)finish_parts(loaded, {.force = true});
  EXPECT_EQ(state(), "new");
}

}  // namespace
}  // namespace crossrank
