#include "workspace/shared_memory/published_contribution.hpp"

#include <gtest/gtest.h>

#include "tests/node/rendezvous_support.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/shared_memory/arena_state_store.hpp"
#include "workspace/shared_memory/remote_contribution.hpp"

/// Several contributions offer the same tensor. The fate of one offer must not affect the others.
namespace crossrank::workspace {
namespace {

struct Received final : Collector {
  std::vector<Tensor> tensors{};
  void expect(std::size_t) override {}
  void config(Json) override {}
  void tensor(std::string_view, Tensor value) override { tensors.push_back(std::move(value)); }
};

/// One writer and one reader on a node, both driven by the test's thread.
struct SharedTensor : testing::TestWithParam<bool> {
  SharedTensor() {
    auto const job = test::random_job_id();
    auto const join = [&](int rank, std::shared_ptr<node::NodeComm>& to) {
      return [&to, options = test::node_options(job, rank, 2)]() mutable {
        options.threads = true;
        to = node::NodeComm::join(options);
      };
    };
    for (auto const& error : test::run_threads({join(0, writer), join(1, reader)})) EXPECT_EQ(test::text_of(error), "");
    store = ArenaStateStore::of(writer);
    arena_backed = store->empty({1000}, Dtype::u8);
    copied = Tensor::zeros({1000}, Dtype::u8);
  }

  /// With another tensor that must be copied, the contribution needs a slab; alone it fits into the arrival line.
  [[nodiscard]] PublishedContribution publish_tensors() const {
    std::vector<NamedTensor> tensors{{"arena_backed", &arena_backed}};
    if (GetParam()) tensors.push_back({"copied", &copied});
    auto published = publish(*writer, {.tensors = tensors}, readers);
    EXPECT_EQ(published.slab.has_value(), GetParam());
    return published;
  }
  [[nodiscard]] RemoteContribution locate(PublishedContribution const& published) const {
    node::Post post;
    published.describe(post);
    if (!published.slab) return {0, true, post.slot.id, post.slot.generation, post.inlined};
    return {0, false, post.slot.id, post.slot.generation, {writer->arena_of(0) + post.offset, post.bytes}};
  }
  [[nodiscard]] bool take(PublishedContribution const& published) const {
    Received received;
    return receive(reader, locate(published), LeaseMode::offer, received);
  }
  [[nodiscard]] node::LeaseWord word() const {
    auto const slot = writer->arena().find(arena_backed.data(), arena_backed.nbytes());
    return writer->leases().load(0, slot->id, 1);
  }

  std::shared_ptr<node::NodeComm> writer;
  std::shared_ptr<node::NodeComm> reader;
  std::shared_ptr<ArenaStateStore> store;
  Tensor arena_backed;
  Tensor copied;
  std::vector<int> const readers{1};
};

TEST_P(SharedTensor, rejects_a_revoked_offer_and_keeps_the_other_one) {
  auto const failed = publish_tensors();
  auto const good = publish_tensors();
  revoke(*writer, failed, readers);
  EXPECT_FALSE(take(failed));
  EXPECT_TRUE(take(good));
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, stays_offered_elsewhere_after_it_was_taken) {
  auto const failed = publish_tensors();
  auto const good = publish_tensors();
  EXPECT_TRUE(take(failed));
  revoke(*writer, failed, readers);
  EXPECT_TRUE(take(good));
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, stays_offered_elsewhere_after_it_was_declined) {
  auto const failed = publish_tensors();
  auto const good = publish_tensors();
  decline(*reader, locate(failed));
  revoke(*writer, failed, readers);
  decline(*reader, locate(failed));
  EXPECT_EQ(word().offered, 1U);
  EXPECT_TRUE(take(good));
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, can_be_read_from_a_workspace_after_a_failed_gather) {
  StateDict state;
  state.insert_or_assign("arena_backed", arena_backed);
  store->write({}, state);
  auto const failed = publish_tensors();
  EXPECT_TRUE(take(failed));
  revoke(*writer, failed, readers);
  EXPECT_TRUE(ArenaStateStore::of(reader)->read(0).has_value());
  store->clean();
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, goes_into_a_slab_when_all_claims_are_open) {
  std::vector<PublishedContribution> open;
  NamedTensor const only{"arena_backed", &arena_backed};
  do {
    open.push_back(publish(*writer, {.tensors = {&only, 1}}, readers));
  } while (open.back().claim && open.size() < 100);
  EXPECT_TRUE(open.back().slab.has_value());
  for (auto const& published : open) {
    EXPECT_TRUE(take(published));
    release(*writer, published);
  }
  EXPECT_FALSE(publish(*writer, {.tensors = {&only, 1}}, readers).slab.has_value());
}

INSTANTIATE_TEST_SUITE_P(Published, SharedTensor, testing::Bool(),
                         [](auto const& one) { return one.param ? "in_a_slab" : "in_the_line"; });

}  // namespace
}  // namespace crossrank::workspace
