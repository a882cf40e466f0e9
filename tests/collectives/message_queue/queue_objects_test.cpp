#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>

#include "collectives/message_queue/queue_dict.hpp"
#include "lib/core/as_size.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {

struct Batch {
  int number = 0;
  std::string prompt{};
  std::map<std::string, std::vector<double>> weights{};

  bool operator==(Batch const&) const = default;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(number, prompt, weights);
  }
};

}  // namespace crossrank::test

template <>
inline constexpr crossrank::TypeTag crossrank::type_tag<crossrank::test::Batch>{"test_batch", 3};

/// Objects, JSON and tensor dictionaries as messages.
namespace crossrank::test {
namespace {

Batch batch(int number) {
  return {
      .number = number, .prompt = std::string(as_size(number) * 90, 'x'), .weights = {{"a", {1.5, -2.0}}, {"b", {}}}};
}

Tensor ramp(std::int64_t count) {
  std::vector<float> values(as_size(count));
  std::iota(values.begin(), values.end(), 0.25F);
  return Tensor::of<float>(values, {count});
}

TensorDict sample_dict() {
  TensorDict dict;
  dict.set("small", ramp(3));
  dict.set("large", ramp(5000));
  dict.set("none", Tensor{});
  dict.set("text", "hello");
  dict.set("nested",
           TensorDict{{"list", TensorDict::List{ramp(700), Json{{"k", 1}}, Tensor::zeros({0, 4}, Dtype::bf16)}}});
  dict.set("bytes", Tensor::of<std::uint8_t>(std::vector<std::uint8_t>(2001, 7), {2001}));
  return dict;
}

void expect_sample(TensorDict const& dict) {
  EXPECT_EQ(dict.size(), 6U);
  EXPECT_THAT(dict.tensor("small").as<float>(), testing::ElementsAre(0.25F, 1.25F, 2.25F));
  EXPECT_THAT(dict.tensor("large").as<float>(), testing::ElementsAreArray(ramp(5000).as<float>()));
  EXPECT_FALSE(dict.tensor("none").defined());
  EXPECT_EQ(dict.get<std::string>("text"), "hello");
  auto const& list = dict.dict("nested").list("list");
  ASSERT_EQ(list.size(), 3U);
  EXPECT_THAT(list[0].tensor()->as<float>(), testing::ElementsAreArray(ramp(700).as<float>()));
  EXPECT_EQ(*list[1].json(), (Json{{"k", 1}}));
  EXPECT_EQ(list[2].tensor()->shape(), (Shape{0, 4}));
  EXPECT_EQ(dict.tensor("bytes").as<std::uint8_t>()[2000], 7);
}

TEST(MessageQueue, carries_objects_of_every_kind_in_order) {
  run_thread_ranks(3, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.writer_rank = 1, .chunk_bytes = 512, .chunks = 2});
    if (queue.is_writer()) {
      for (int i = 0; i < 20; ++i) queue.enqueue(batch(i));
      queue.enqueue("a literal");
      queue.enqueue(Json{{"step", 4}, {"list", {1, 2}}});
      queue.enqueue(std::vector<int>{1, 2, 3});
      queue.enqueue(2.5);
      queue.enqueue(ramp(4));
      queue.close();
      EXPECT_TRUE(queue.wait_for(step_timeout));
    } else {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(queue.dequeue<Batch>(), batch(i));
      EXPECT_EQ(queue.dequeue<std::string>(), "a literal");
      EXPECT_EQ(queue.dequeue<Json>(), (Json{{"step", 4}, {"list", {1, 2}}}));
      EXPECT_EQ(queue.dequeue<std::vector<int>>(), (std::vector<int>{1, 2, 3}));
      EXPECT_EQ(queue.dequeue<double>(), 2.5);
      EXPECT_EQ(queue.dequeue<Tensor>().value().shape(), (Shape{4}));
      EXPECT_EQ(queue.dequeue<Batch>(), std::nullopt);
    }
    world.barrier();
    world.close();
  });
}

/// The error of every read names what it read and where.
TEST(MessageQueue, names_the_queue_and_the_rank_when_a_message_is_of_another_type) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.name = "tokens"});
    if (queue.is_writer()) {
      queue.enqueue(5);
      queue.enqueue(ramp(3));
      queue.enqueue(5);
      queue.enqueue(5);
    } else {
      auto const object = error_of<FormatError>([&] { static_cast<void>(queue.dequeue<std::string>()); });
      EXPECT_EQ(object.expected, "string");
      EXPECT_EQ(object.got, "i32");
      auto const none = error_of<FormatError>([&] { static_cast<void>(queue.dequeue<int>()); });
      auto const tensor = error_of<FormatError>([&] { static_cast<void>(queue.dequeue_tensor()); });
      EXPECT_EQ(tensor.operation, "dequeue_tensor");
      auto const dict = error_of<FormatError>([&] { static_cast<void>(queue.dequeue_dict()); });
      EXPECT_EQ(dict.operation, "dequeue_dict");
      for (auto const& info : {object, none}) EXPECT_EQ(info.operation, "dequeue");
      for (auto const& info : {object, none, tensor}) {
        EXPECT_NE(info.expected, "");
        EXPECT_NE(info.got, "");
      }
      for (auto const& info : {object, none, tensor, dict}) {
        EXPECT_EQ(info.resource, "queue \"tokens\"");
        EXPECT_EQ(info.rank, 1);
        EXPECT_EQ(info.world_size, 2);
        EXPECT_NE(info.hint, "");
      }
    }
    world.barrier();
    world.close();
  });
}

TEST(MessageQueue, refuses_a_read_inside_read_bytes) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world);
    if (queue.is_writer()) {
      queue.enqueue(5);
    } else {
      auto const inner = [&](std::span<std::byte const>) { static_cast<void>(queue.dequeue<int>()); };
      EXPECT_THAT(refusal_of<UsageError>([&] { queue.read_bytes(inner); }), testing::HasSubstr("body of read_bytes"));
    }
    world.barrier();
    world.close();
  });
}

TEST(MessageQueue, refuses_an_object_of_another_type_and_stays_usable) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 512, .chunks = 8});
    if (queue.is_writer()) {
      queue.enqueue(std::string("text"));
      queue.enqueue(ramp(3));
      queue.enqueue(batch(1));
      queue.enqueue(7);
    } else {
      EXPECT_THROW(static_cast<void>(queue.dequeue<Batch>()), FormatError);
      EXPECT_THROW(static_cast<void>(queue.dequeue<std::vector<float>>()), FormatError);
      EXPECT_THROW(static_cast<void>(queue.dequeue<TensorDict>()), FormatError);
      EXPECT_EQ(queue.dequeue<int>(), 7);
    }
    world.barrier();
    world.close();
  });
}

/// With a chunk that holds the dictionary, the reader gets copies. With a smaller one, it gets views of the writer's
/// memory.
TEST(MessageQueue, carries_tensor_dictionaries) {
  for (std::size_t const chunk_bytes : {std::size_t{64}, std::size_t{1} << 20}) {
    run_thread_ranks(2, [chunk_bytes](Collective world) {
      auto const queue = MessageQueue::create(world, {.chunk_bytes = chunk_bytes, .chunks = 2});
      if (queue.is_writer()) {
        queue.enqueue(sample_dict());
        for (int i = 0; i < 6; ++i) queue.enqueue(TensorDict{{"other", Tensor::zeros({9000}, Dtype::f32)}});
      } else {
        auto const dict = queue.dequeue<TensorDict>();
        for (int i = 0; i < 6; ++i) EXPECT_EQ(queue.dequeue<TensorDict>().value().tensor("other").numel(), 9000);
        ASSERT_TRUE(dict);
        expect_sample(*dict);
        auto large = dict->tensor("large");
        if (chunk_bytes == 64) {
          EXPECT_THROW(static_cast<void>(large.as_mutable<float>()), UsageError);
        } else {
          EXPECT_NO_THROW(static_cast<void>(large.clone().as_mutable<float>()));
        }
      }
      world.barrier();
      world.close();
    });
  }
}

std::vector<std::byte> message_of(TensorDict const& dict) {
  queue::DictMessage const message(dict);
  std::vector<std::byte> bytes;
  for (auto const& part : message.parts())
    part.read([&bytes](std::span<std::byte const> piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); });
  return bytes;
}

TEST(QueueDict, aligns_larger_tensors_to_cache_lines) {
  auto const bytes = message_of(sample_dict());
  EXPECT_EQ(bytes.size() % 64, 0U);
  expect_sample(queue::read_dict(bytes, {}));
}

TEST(QueueDict, refuses_a_truncated_extended_or_damaged_message) {
  auto const whole = message_of(TensorDict{{"a", ramp(600)}, {"b", "json"}});
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_THROW(static_cast<void>(queue::read_dict(std::span(whole).first(bytes), {})), FormatError) << bytes;
  auto longer = whole;
  longer.resize(longer.size() + 64);
  EXPECT_THROW(static_cast<void>(queue::read_dict(longer, {})), FormatError);
  auto damaged = whole;
  damaged[15] = std::byte{0xff};  // the highest byte of the length of the metadata
  EXPECT_THROW(static_cast<void>(queue::read_dict(damaged, {})), FormatError);
}

TEST(QueueObjects, refuse_an_undefined_tensor_by_name_and_stay_usable) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
    if (queue.is_writer()) {
      EXPECT_THAT([&] { queue.enqueue(Tensor{}); },
                  testing::ThrowsMessage<UsageError>(testing::HasSubstr("enqueue_tensor: tensor is undefined")));
      queue.enqueue(Tensor::scalar(7));
      queue.close();
    } else {
      EXPECT_EQ(queue.dequeue<Tensor>().value().item<int>(), 7);
    }
  });
}

}  // namespace
}  // namespace crossrank::test
