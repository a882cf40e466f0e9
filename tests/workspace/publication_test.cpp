#include "workspace/publication.hpp"

#include <gtest/gtest.h>

#include "tests/node/rendezvous_support.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/shared_medium.hpp"

/// Offers of one tensor by several publications: what becomes of one of them is nothing to the others.
namespace crossrank::workspace {
namespace {

struct Received final : Collector {
  std::vector<Tensor> tensors{};
  void expect(std::size_t) override {}
  void config(Json) override {}
  void tensor(std::string_view, Tensor value) override { tensors.push_back(std::move(value)); }
};

/// One writer and one reader of a node, driven by the test's own thread.
struct SharedTensor : testing::TestWithParam<bool> {
  SharedTensor() {
    auto const job = test::random_job_id();
    auto const join = [&](int rank, std::shared_ptr<node::NodeDomain>& to) {
      return [&to, options = test::node_options(job, rank, 2)]() mutable {
        options.threads = true;
        to = node::NodeDomain::join(options);
      };
    };
    for (auto const& error : test::run_threads({join(0, writer), join(1, reader)})) EXPECT_EQ(test::text_of(error), "");
    medium = SharedMedium::of(writer);
    resident = medium->empty({1000}, Dtype::u8);
    copied = Tensor::zeros({1000}, Dtype::u8);
  }

  /// With a tensor that must be copied beside it the publication has a slab; alone it travels in the arrival line.
  [[nodiscard]] Publication publish_it() const {
    std::vector<NamedTensor> tensors{{"resident", &resident}};
    if (GetParam()) tensors.push_back({"copied", &copied});
    auto publication = publish(*writer, {.tensors = tensors}, readers);
    EXPECT_EQ(publication.slab.has_value(), GetParam());
    return publication;
  }
  [[nodiscard]] Located locate(Publication const& publication) const {
    node::Post post;
    publication.describe(post);
    if (!publication.slab) return {0, true, post.slot.id, post.slot.generation, post.inlined};
    return {0, false, post.slot.id, post.slot.generation, {writer->arena_of(0) + post.offset, post.bytes}};
  }
  [[nodiscard]] bool take(Publication const& publication) const {
    Received received;
    return receive(reader, locate(publication), Take::offer, received);
  }
  [[nodiscard]] node::LeaseWord word() const {
    auto const slot = writer->arena().find(resident.data(), resident.nbytes());
    return writer->leases().look(0, slot->id, 1);
  }

  std::shared_ptr<node::NodeDomain> writer;
  std::shared_ptr<node::NodeDomain> reader;
  std::shared_ptr<SharedMedium> medium;
  Tensor resident;
  Tensor copied;
  std::vector<int> const readers{1};
};

TEST_P(SharedTensor, of_a_failed_round_cannot_be_taken_late_from_another) {
  auto const failed = publish_it();
  auto const good = publish_it();
  revoke(*writer, failed, readers);
  EXPECT_FALSE(take(failed));
  EXPECT_TRUE(take(good));
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, that_was_taken_is_not_revoked_from_another) {
  auto const failed = publish_it();
  auto const good = publish_it();
  EXPECT_TRUE(take(failed));
  revoke(*writer, failed, readers);
  EXPECT_TRUE(take(good));
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, that_was_declined_is_not_revoked_from_another) {
  auto const failed = publish_it();
  auto const good = publish_it();
  decline(*reader, locate(failed));
  revoke(*writer, failed, readers);
  decline(*reader, locate(failed));
  EXPECT_EQ(word().offered, 1U);
  EXPECT_TRUE(take(good));
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, of_a_workspace_can_be_read_after_a_gather_of_it_failed) {
  StateDict state;
  state.insert_or_assign("resident", resident);
  medium->write({}, state);
  auto const failed = publish_it();
  EXPECT_TRUE(take(failed));
  revoke(*writer, failed, readers);
  EXPECT_TRUE(SharedMedium::of(reader)->read(0).has_value());
  medium->clean();
  EXPECT_TRUE(word().free());
}

TEST_P(SharedTensor, goes_into_a_slab_when_all_claims_are_open) {
  std::vector<Publication> open;
  NamedTensor const only{"resident", &resident};
  do {
    open.push_back(publish(*writer, {.tensors = {&only, 1}}, readers));
  } while (open.back().claim && open.size() < 100);
  EXPECT_TRUE(open.back().slab.has_value());
  for (auto const& publication : open) {
    EXPECT_TRUE(take(publication));
    release(*writer, publication);
  }
  EXPECT_FALSE(publish(*writer, {.tensors = {&only, 1}}, readers).slab.has_value());
}

INSTANTIATE_TEST_SUITE_P(Published, SharedTensor, testing::Bool(),
                         [](auto const& one) { return one.param ? "in_a_slab" : "in_the_line"; });

}  // namespace
}  // namespace crossrank::workspace
