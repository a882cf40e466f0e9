#include "transforms/ddp/gradient_reducer.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>

#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "transforms/model/common_values.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank::transforms {
namespace {

constexpr std::size_t first_bucket_bytes = std::size_t{1} << 20;
constexpr std::size_t bucket_bytes = std::size_t{25} << 20;

}  // namespace

GradientReducer::GradientReducer(std::vector<std::shared_ptr<Parameter>> parameters, Collective group,
                                 DDPTransformConfig config)
    : group_(std::move(group)), config_(std::move(config)) {
  for (auto& parameter : parameters) {
    if (!parameter->requires_grad) {
      frozen_.push_back(std::move(parameter));
      continue;
    }
    places_[parameter.get()] = entries_.size();
    entries_.push_back({.parameter = std::move(parameter)});
  }
  std::vector<std::size_t> reversed(entries_.size());
  std::iota(reversed.rbegin(), reversed.rend(), std::size_t{0});
  build(reversed);
}

void GradientReducer::refuse(std::string message, std::string got, std::string resource, std::string hint) const {
  throw UsageError(error_in(*group_.transport(), {.operation = "DDPWrappedModel.backward",
                                                  .message = std::move(message),
                                                  .got = std::move(got),
                                                  .resource = std::move(resource),
                                                  .hint = std::move(hint)}));
}

void GradientReducer::build(std::vector<std::size_t> const& order) {
  buckets_.clear();
  std::map<Dtype, std::size_t> open;  // the bucket of a dtype that is not full
  for (auto const place : order) {
    auto& entry = entries_[place];
    auto const& value = entry.parameter->value;
    auto [found, is_new] = open.try_emplace(value.dtype(), buckets_.size());
    if (is_new) buckets_.emplace_back();
    auto& bucket = buckets_[found->second];
    entry.bucket = found->second;
    entry.offset = bucket.elements;
    bucket.members.push_back(place);
    bucket.elements += value.numel();
    auto const limit = found->second == 0 ? first_bucket_bytes : bucket_bytes;
    if (as_size(bucket.elements) * bits_of(value.dtype()) / 8 >= limit) open.erase(found);
  }
  for (auto& bucket : buckets_) {
    auto const& like = entries_[bucket.members.front()].parameter->value;
    bucket.gradients = Tensor::zeros({bucket.elements}, like.dtype(), like.device());
  }
}

Tensor GradientReducer::view_of(Entry const& entry) const {
  auto const& value = entry.parameter->value;
  return buckets_[entry.bucket].gradients.narrow(0, entry.offset, value.numel()).reshape(value.shape());
}

/// Makes the gradient a view of its bucket, with the values that it has.
void GradientReducer::attach(Entry& entry) {
  auto& grad = entry.parameter->grad;
  auto view = view_of(entry);
  if (grad.defined() && grad.data() == view.data() && grad.storage() == view.storage()) return;
  if (grad.defined()) {
    convert(grad, view);
  } else {
    set_zero(view);
  }
  grad = std::move(view);
}

void GradientReducer::begin(bool sync) {
  sync_ = sync;
  next_ = 0;
  order_.clear();
  for (auto const& parameter : frozen_) {
    if (parameter->requires_grad)
      refuse("a parameter that was frozen when DDPTransform was applied requires a gradient now", "", parameter->name,
             "let it require a gradient before DDPTransform::apply, or apply the transform again");
  }
  for (auto& entry : entries_) {
    entry.is_ready = false;
    entry.had_none = !entry.parameter->grad.defined();
    if (entry.had_none) entry.is_used = false;  // zero_grad has dropped what earlier passes added
    if (config_.gradient_as_bucket_view) attach(entry);
  }
  for (auto& bucket : buckets_) bucket.missing = bucket.members.size();
}

void GradientReducer::ready(Parameter& parameter) {
  auto const found = places_.find(&parameter);
  if (found == places_.end()) return;  // frozen
  auto& entry = entries_[found->second];
  auto const& grad = parameter.grad;
  if (!grad.defined() || grad.shape() != parameter.value.shape() || grad.dtype() != parameter.value.dtype())
    refuse("the gradient does not fit its parameter", to_string(grad), parameter.name);
  if (entry.is_ready) refuse("the gradient became ready twice in one backward pass", "", parameter.name);
  entry.is_ready = true;
  entry.is_used = true;
  order_.push_back(found->second);
  if (config_.gradient_as_bucket_view) attach(entry);  // an engine may have put another tensor there
  if (!sync_) return;
  if (!config_.gradient_as_bucket_view) {
    auto view = view_of(entry);
    convert(grad, view);
  }
  --buckets_[entry.bucket].missing;
  start_complete_buckets();
}

void GradientReducer::start_complete_buckets() {
  for (; next_ < buckets_.size() && buckets_[next_].missing == 0; ++next_) {
    auto& bucket = buckets_[next_];
    bucket.sent = hook_.compress ? hook_.compress(bucket.gradients) : bucket.gradients;
    run_on([&] { return names_in(bucket); }, [&] { bucket.request = group_.iall_reduce(bucket.sent, ReduceOp::avg); });
  }
}

void GradientReducer::complete_missing(std::vector<std::size_t> const& missing) {
  if (!missing.empty() && !config_.find_unused_parameters) {
    std::string names;
    for (auto const place : missing) names += (names.empty() ? "" : ", ") + entries_[place].parameter->name;
    refuse("parameters got no gradient in this backward pass", std::to_string(missing.size()) + " without a gradient",
           names, "set find_unused_parameters, or freeze them with requires_grad = false before DDPTransform::apply");
  }
  for (auto const place : missing) {
    auto& entry = entries_[place];
    if (!config_.gradient_as_bucket_view) {
      auto view = view_of(entry);
      if (entry.parameter->grad.defined()) {
        convert(entry.parameter->grad, view);
      } else {
        set_zero(view);
      }
    }
    --buckets_[entry.bucket].missing;
  }
  start_complete_buckets();
}

/// With a static graph, each pass has the order of the first one.
void GradientReducer::check_order() const {
  if (!config_.static_graph || first_order_.empty() || order_ == first_order_) return;
  for (std::size_t i = 0; i < std::max(order_.size(), first_order_.size()); ++i) {
    auto const name = [&](std::vector<std::size_t> const& order) {
      return i < order.size() ? entries_[order[i]].parameter->name : std::string("nothing");
    };
    if (name(order_) == name(first_order_)) continue;
    refuse(
        "the graph is not static: gradient " + std::to_string(i) + " was " + name(first_order_) + " in the first step",
        name(order_), name(order_), "leave out static_graph");
  }
}

/// Takes the averaged gradient out of the bucket. A parameter that no rank has used since the last reduction keeps what
/// it had. In a view of its bucket, the average of equal values may round it.
void GradientReducer::take_back(Entry& entry, bool used) {
  auto& grad = entry.parameter->grad;
  if (!used && entry.had_none) {
    grad = {};
  } else if (used && !config_.gradient_as_bucket_view) {
    auto const& value = entry.parameter->value;
    if (!grad.defined()) grad = Tensor::empty(value.shape(), value.dtype(), value.device());
    convert(view_of(entry), grad);
  }
}

void GradientReducer::finish() {
  std::vector<std::size_t> missing;
  for (std::size_t place = 0; place < entries_.size(); ++place) {
    if (!entries_[place].is_ready) missing.push_back(place);
  }
  if (!sync_) {
    for (auto const place : missing) {
      if (entries_[place].had_none) entries_[place].parameter->grad = {};
    }
    return;
  }
  check_order();
  complete_missing(missing);
  auto used = Tensor::zeros({static_cast<std::int64_t>(entries_.size())}, Dtype::u8);
  for (std::size_t place = 0; place < entries_.size(); ++place)
    used.as_mutable<std::uint8_t>()[place] = entries_[place].is_used ? 1 : 0;
  if (config_.find_unused_parameters && !entries_.empty()) group_.all_reduce(used, ReduceOp::max);
  for (auto& bucket : buckets_) {
    run_on([&] { return names_in(bucket); }, [&] { bucket.request.wait(); });
    if (hook_.decompress) hook_.decompress(bucket.sent, bucket.gradients);
    bucket.sent = {};
  }
  for (std::size_t place = 0; place < entries_.size(); ++place) {
    take_back(entries_[place], used.as<std::uint8_t>()[place] != 0);
    entries_[place].is_used = false;
  }
  if (first_order_.empty()) first_order_ = order_;
  if (!rebuilt_ && (config_.static_graph || !config_.find_unused_parameters)) rebuild();
}

void GradientReducer::rebuild() {
  rebuilt_ = true;
  auto order = group_.broadcast_object(std::vector<std::uint64_t>(order_.begin(), order_.end()));
  std::vector<std::size_t> places(order.begin(), order.end());
  std::vector<bool> has_gradient(entries_.size());
  for (auto const place : places) has_gradient.at(place) = true;
  for (std::size_t place = 0; place < entries_.size(); ++place) {  // those without a gradient come last
    if (!has_gradient[place]) places.push_back(place);
  }
  build(places);
  if (!config_.gradient_as_bucket_view) return;
  for (auto& entry : entries_) {
    if (entry.parameter->grad.defined()) attach(entry);
  }
}

void GradientReducer::drop() noexcept {
  for (auto& bucket : buckets_) bucket.request.cancel();
}

void GradientReducer::set_hook(CommunicationHook hook) {
  if (static_cast<bool>(hook.compress) != static_cast<bool>(hook.decompress)) {
    throw UsageError(error_in(*group_.transport(),
                              {.operation = "DDPWrappedModel.register_comm_hook",
                               .message = "a hook needs both of its functions, or none",
                               .expected = "compress and decompress",
                               .got = hook.compress ? "compress" : "decompress",
                               .hint = "set the other function too, or pass an empty hook to remove the current one"}));
  }
  hook_ = std::move(hook);
}

std::vector<std::vector<std::string>> GradientReducer::names() const {
  std::vector<std::vector<std::string>> all;
  for (auto const& bucket : buckets_) all.push_back(names_in(bucket));
  return all;
}

std::vector<std::string> GradientReducer::names_in(Bucket const& bucket) const {
  std::vector<std::string> names;
  for (auto const place : bucket.members) names.push_back(entries_[place].parameter->name);
  return names;
}

}  // namespace crossrank::transforms
