// Parts of a merge, as a scheduler runs them: in any order, repeated, at the same time, on hosts that know nothing of
// each other.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/parts/planned_parts.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/error_of.hpp"
#include "workspace/checkpoint/write/job/dead_jobs.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::consolidate_part;
using checkpoint::finish_parts;
using checkpoint::PartsPlan;
using test::error_of;
using test::names_in;
using test::text_of_file;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class Parts : public test::PlannedParts {};

TEST_F(Parts, end_in_the_files_of_a_plain_consolidate) {
  (void)checkpoint::consolidate(world_, plan(), folder_.path() / "plain", test::options_for("safetensors"));

  auto const loaded = run_all_parts();
  EXPECT_EQ(state(), "old") << "before finish";
  auto const summary = finish_parts(loaded);

  EXPECT_EQ(bytes_of(out()), bytes_of(folder_.path() / "plain"));
  EXPECT_EQ(state(), "new");
  EXPECT_GT(summary.files, parts);
}

TEST_F(Parts, say_that_their_plan_was_not_saved) {
  auto const made = PartsPlan::make(plan(), folder_.path() / "new", {.parts = parts, .max_shard_bytes = 1100});
  for (auto const& call : std::vector<std::function<void()>>{
           [&] { (void)consolidate_part(made, 0); }, [&] { (void)made.missing(); }, [&] { (void)finish_parts(made); }})
    EXPECT_THAT(test::refusal_of<UsageError>(call), testing::HasSubstr("was not saved"));

  made.save(plan_file());
  EXPECT_EQ(made.missing().size(), std::size_t{parts});
  for (int part = 0; part < parts; ++part) (void)consolidate_part(made, part);
  EXPECT_GT(finish_parts(made).files, 0);
}

TEST_F(Parts, end_in_the_torch_archives_of_a_plain_consolidate) {
  (void)checkpoint::consolidate(world_, plan(), folder_.path() / "plain", test::options_for("torch"));

  (void)finish_parts(run_all_parts(parts, checkpoint::OutputFormat::torch));

  EXPECT_EQ(bytes_of(out()), bytes_of(folder_.path() / "plain"));
  EXPECT_TRUE(fs::exists(out() / "pytorch_model.bin.index.json"));
}

TEST_F(Parts, end_in_a_single_file_on_request) {
  auto const made =
      PartsPlan::make(plan(), out(), {.parts = parts, .max_shard_bytes = 1100, .single_file = true, .force = true});
  made.save(plan_file());
  auto const loaded = load_plan();
  for (int part = 0; part < parts; ++part) (void)consolidate_part(loaded, part);
  (void)finish_parts(loaded);

  auto options = test::options_for("safetensors");
  options.single_file = true;
  (void)checkpoint::consolidate(world_, plan(), folder_.path() / "plain", options);
  EXPECT_EQ(bytes_of(out()), bytes_of(folder_.path() / "plain"));
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
}

TEST_F(Parts, end_in_a_state_image) {
  auto const made = run_all_parts(1, checkpoint::OutputFormat::images);
  auto const files = made.files(0);
  (void)finish_parts(made);

  ASSERT_EQ(files.size(), 1U);
  EXPECT_THAT(files.front(), StartsWith("rank_0_state."));
  auto const image = load_safetensors(out() / files.front());
  auto const model = load_safetensors(in() / "model.safetensors");
  ASSERT_EQ(image.size(), model.size());
  for (auto const& [name, tensor] : model)
    EXPECT_TRUE(std::ranges::equal(image.at(name).bytes(), tensor.bytes())) << name;
}

TEST_F(Parts, are_not_saved_over_a_link_or_a_pipe) {
  auto const made = PartsPlan::make(plan(), out(), {.parts = 1, .max_shard_bytes = 1100, .force = true});
  auto const pipe = folder_.path() / "pipe";
  auto const link = folder_.path() / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("plan.json", link);
  EXPECT_THROW(made.save(pipe), UsageError);
  EXPECT_THROW(made.save(link), UsageError);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST_F(Parts, have_each_file_once_and_about_the_same_bytes) {
  auto const made = PartsPlan::make(plan(), out(), {.parts = parts, .max_shard_bytes = 1100, .force = true});
  std::multiset<std::string> names;
  std::uint64_t largest = 0;
  std::uint64_t all = 0;
  for (int part = 0; part < parts; ++part) {
    for (auto const& name : made.files(part)) names.insert(name);
    largest = std::max(largest, made.bytes(part));
    all += made.bytes(part);
  }
  EXPECT_EQ(names.size(), std::set<std::string>(names.begin(), names.end()).size());
  EXPECT_LE(largest, all / parts + 1100 + 512) << "one file more than the average";
  auto const again = PartsPlan::make(plan(), out(), {.parts = parts, .max_shard_bytes = 1100, .force = true});
  for (int part = 0; part < parts; ++part) EXPECT_EQ(made.files(part), again.files(part));
  EXPECT_THROW((void)made.files(parts), UsageError);
  EXPECT_THROW((void)consolidate_part(made, -1), UsageError);
}

TEST_F(Parts, without_files_do_nothing) {
  auto const loaded = run_all_parts(40);
  EXPECT_THAT(loaded.files(39), IsEmpty());
  (void)finish_parts(loaded);
  EXPECT_EQ(state(), "new");
}

TEST_F(Parts, keep_their_files_when_they_run_again) {
  save_plan();
  auto const loaded = load_plan();
  EXPECT_EQ(consolidate_part(loaded, 0).resumed_files, 0);
  auto const again = consolidate_part(loaded, 0);
  EXPECT_EQ(again.resumed_files, again.files);
}

TEST_F(Parts, write_a_file_again_that_has_changed) {
  save_plan();
  auto const loaded = load_plan();
  (void)consolidate_part(loaded, 0);
  flip_last_byte(in_plan_folder(loaded.files(0).front()));
  EXPECT_EQ(consolidate_part(loaded, 0).resumed_files, static_cast<int>(loaded.files(0).size()) - 1);
}

TEST_F(Parts, run_at_the_same_time_do_no_harm) {
  save_plan();
  auto const loaded = load_plan();
  std::vector<std::thread> runs;
  for (int run = 0; run < 3 * parts; ++run)
    runs.emplace_back([&, run] { EXPECT_NO_THROW((void)consolidate_part(loaded, run % parts)); });
  for (auto& run : runs) run.join();
  (void)finish_parts(loaded);
  EXPECT_EQ(state(), "new");
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

TEST_F(Parts, of_changed_inputs_are_refused) {
  auto const loaded = run_all_parts();
  auto const shard = in() / "model.safetensors";
  auto const time = fs::last_write_time(shard);
  auto const refused = [&](char const* what) {
    try {
      (void)finish_parts(load_plan());
      ADD_FAILURE() << what;
    } catch (FormatError const& error) {
      EXPECT_THAT(error.info().details, Not(IsEmpty())) << what;
    }
  };
  fs::last_write_time(shard, time + std::chrono::seconds(2));
  refused("a newer shard");
  fs::last_write_time(shard, time);
  EXPECT_NO_THROW((void)load_plan().merge_plan());
  std::ofstream(in() / "tokenizer.json") << "{\"a\": 1}";
  refused("another tokenizer");
  fs::remove(in() / "tokenizer.json");
  refused("no tokenizer");
  EXPECT_EQ(state(), "old");
}

TEST_F(Parts, of_an_input_with_which_the_merge_fails_are_refused_because_it_has_changed) {
  (void)run_all_parts();
  std::ofstream(in() / "model.safetensors") << "damaged";
  auto const info = error_of<FormatError>([&] { (void)finish_parts(load_plan()); });
  EXPECT_THAT(info.message, HasSubstr("an input has changed since the plan was made"));
  EXPECT_THAT(info.details, Each(HasSubstr("model.safetensors")));
  EXPECT_EQ(state(), "old");
}

// Refused parts are told to restore the inputs, which brings the old stamps back.
TEST_F(Parts, write_their_files_again_after_inputs_changed_during_the_read_and_were_restored) {
  auto const made = PartsPlan::make(plan(), out(), {.parts = parts, .max_shard_bytes = 1100, .force = true});
  made.save(plan_file());
  auto const shard = in() / "model.safetensors";
  auto const time = fs::last_write_time(shard);
  flip_last_byte(shard);
  fs::last_write_time(shard, time + std::chrono::seconds(2));
  for (int part = 0; part < parts; ++part) EXPECT_THROW((void)consolidate_part(made, part), FormatError) << part;

  flip_last_byte(shard);
  fs::last_write_time(shard, time);
  auto const loaded = load_plan();
  EXPECT_THAT(loaded.missing(), ElementsAre(0, 1, 2));
  for (int part = 0; part < parts; ++part) EXPECT_EQ(consolidate_part(loaded, part).resumed_files, 0) << part;
  (void)finish_parts(loaded);

  EXPECT_EQ(state(), "new");
}

TEST_F(Parts, follow_links_before_a_parent_directory) {
  fs::create_directories(folder_.path() / "far" / "deep");
  fs::rename(in(), folder_.path() / "far" / "in");
  fs::create_directory_symlink(folder_.path() / "far" / "deep", folder_.path() / "link");
  auto const above = folder_.path() / "link" / "..";
  PartsPlan::make(checkpoint::MergePlan::make(world_, above / "in"), above / "out", {.parts = 1}).save(plan_file());
  (void)consolidate_part(load_plan(), 0);
  (void)finish_parts(load_plan());
  EXPECT_EQ(test::read_checkpoint(folder_.path() / "far" / "out", true), new_);
  EXPECT_EQ(state(), "old");
}

TEST_F(Parts, of_a_model_with_a_new_description_are_refused) {
  (void)run_all_parts();
  std::ofstream(in() / "quant_config.json") << "{}";
  try {
    (void)finish_parts(load_plan());
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("was added since the plan was made"));
    EXPECT_THAT(error.info().details, ElementsAre(testing::EndsWith("quant_config.json")));
  }
}

TEST_F(Parts, of_an_input_that_changed_within_a_second_are_refused_with_both_times) {
  auto const shard = in() / "model.safetensors";
  auto const time = std::chrono::floor<std::chrono::seconds>(fs::last_write_time(shard)) + std::chrono::milliseconds(1);
  fs::last_write_time(shard, time);
  (void)run_all_parts();
  fs::last_write_time(shard, time + std::chrono::milliseconds(5));
  try {
    (void)finish_parts(load_plan());
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_NE(error.info().expected, error.info().got);
  }
}

TEST_F(Parts, have_no_plan_among_the_shards) {
  auto const plan_of_parts = PartsPlan::make(plan(), out(), {.parts = 2, .force = true});
  EXPECT_THROW(plan_of_parts.save(in() / "plan.json"), UsageError);
  EXPECT_THROW(plan_of_parts.save(in() / "." / "plan.json"), UsageError);
  EXPECT_THAT(names_in(in()), Not(testing::Contains("plan.json")));
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

// A folder of a group, or the root of a network volume.
TEST_F(Parts, have_an_output_below_a_folder_that_others_can_write) {
  auto const shared = folder_.path() / "shared";
  fs::create_directory(shared);
  fs::permissions(shared, fs::perms::all);
  PartsPlan::make(plan(), shared / "model", {.parts = 1}).save(plan_file());
  auto const loaded = load_plan();
  (void)consolidate_part(loaded, 0);
  (void)finish_parts(loaded);
  EXPECT_THAT(names_in(shared / "model"), testing::Contains("model.safetensors"));
}

// The size and the time may be kept, for example by `cp -p`.
TEST_F(Parts, of_inputs_with_another_header_are_refused) {
  save_plan();
  auto const shard = in() / "model.safetensors";
  auto const time = fs::last_write_time(shard);
  auto text = text_of_file(shard);
  auto const at = text.find("F32");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 3, "I32");
  std::ofstream(shard, std::ios::binary) << text;
  fs::last_write_time(shard, time);
  EXPECT_THROW((void)finish_parts(load_plan()), FormatError);
}

TEST_F(Parts, accept_times_that_a_host_sees_in_whole_seconds) {
  save_plan();
  auto const shard = in() / "model.safetensors";
  auto const time = fs::last_write_time(shard);
  fs::last_write_time(shard, std::chrono::floor<std::chrono::seconds>(time));
  EXPECT_NO_THROW((void)load_plan().merge_plan());
  for (int part = 0; part < parts; ++part) EXPECT_NO_THROW((void)consolidate_part(load_plan(), part));
}

TEST_F(Parts, that_were_stopped_can_run_again) {
  save_plan();
  auto const loaded = load_plan();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW((void)consolidate_part(loaded, 0, {.stop = stop.get_token()}), CancelledError);
  EXPECT_THAT(names_in(in_plan_folder()), Each(Not(testing::AnyOf(StartsWith(".run."), StartsWith(".part.")))));
  (void)consolidate_part(loaded, 0);
  EXPECT_THAT(loaded.missing(), ElementsAre(1, 2));
}

TEST_F(Parts, of_a_plan_are_not_removed_by_other_jobs) {
  save_plan();
  auto const loaded = load_plan();
  (void)consolidate_part(loaded, 0);
  fs::remove(out() / "model.safetensors");
  fs::remove(out() / "config.json");
  EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), out(), {.max_shard_bytes = 1100}), UsageError);
  EXPECT_THROW(PartsPlan::make(plan(), out(), {.parts = 2, .max_shard_bytes = 2200}).save(plan_file()), UsageError);
  EXPECT_THAT(loaded.missing(), ElementsAre(1, 2)) << "nothing is lost";

  PartsPlan::make(plan(), out(), {.parts = 2, .max_shard_bytes = 2200, .force = true}).save(plan_file());
  EXPECT_THROW((void)consolidate_part(loaded, 1), UsageError) << "the other plan has replaced this one";
  auto const other = load_plan();
  for (int part = 0; part < 2; ++part) (void)consolidate_part(other, part);
  (void)finish_parts(other);
  EXPECT_EQ(state(), "new");
}

TEST_F(Parts, are_kept_when_the_same_plan_is_saved_again_for_other_parts) {
  auto const three = run_all_parts();
  save_plan(2);
  EXPECT_THAT(load_plan().missing(), IsEmpty());
  (void)finish_parts(load_plan());
  EXPECT_EQ(state(), "new");
}

TEST_F(Parts, are_removed_by_clean_only_on_request) {
  save_plan();
  auto const loaded = load_plan();
  (void)consolidate_part(loaded, 0);
  auto const kept = checkpoint::clean_jobs(out());
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_FALSE(kept.front().removed);
  EXPECT_THAT(loaded.missing(), ElementsAre(1, 2));
  ASSERT_EQ(checkpoint::clean_jobs(out(), {.all = true}).size(), 1U);
  EXPECT_THAT(names_in(out()), ElementsAre("config.json", "model.safetensors"));
  EXPECT_THROW((void)consolidate_part(loaded, 0), UsageError);
  EXPECT_THROW((void)finish_parts(loaded), UsageError);
  EXPECT_THAT(names_in(out()), ElementsAre("config.json", "model.safetensors"));
}

TEST_F(Parts, with_replicas_that_differ_are_refused) {
  fs::remove_all(in());
  fs::create_directories(in());
  for (int rank = 0; rank < 2; ++rank) {
    StateDict weights{{"model.layers.0.mlp.down_proj.weight", Tensor::zeros({4, 8}, Dtype::f32)},
                      {"model.norm.weight", Tensor::of<float>({1.0F, static_cast<float>(rank)}, {2})}};
    weights.at("model.layers.0.mlp.down_proj.weight").as_mutable<float>()[0] = static_cast<float>(rank);
    save_safetensors(in() / ("rank" + std::to_string(rank) + ".safetensors"), weights);
  }
  std::ofstream(in() / "config.json") << R"({"num_hidden_layers": 1, "hidden_size": 4, "intermediate_size": 16})";
  PartsPlan::make(plan(), out(), {.parts = 2, .max_shard_bytes = 10, .force = true}).save(plan_file());
  auto const loaded = load_plan();
  int refused = 0;
  for (int part = 0; part < 2; ++part) {
    try {
      (void)consolidate_part(loaded, part);
    } catch (FormatError const& error) {
      EXPECT_EQ(error.info().resource, "model.norm.weight");
      ++refused;
    }
  }
  EXPECT_EQ(refused, 1) << "only the part that has the tensor compares it";
}

}  // namespace
}  // namespace crossrank
