#pragma once
#include <cstdint>
#include <span>

#include <crossrank/collective/check_level.hpp>
#include <crossrank/collective.hpp>
#include <crossrank/tensor.hpp>

#include "collectives/algorithms/call.hpp"
#include "collectives/spi/argument_digest.hpp"
#include "lib/node/memory/call_arguments.hpp"

namespace crossrank {

/// The arguments that all ranks must agree on: their digest, and a note of them for error messages.
class AgreedArguments {
 public:
  explicit AgreedArguments(CheckLevel check) : checked_(check != CheckLevel::off) {}

  AgreedArguments& dtype(Dtype value) {
    if (checked_) arguments_.dtype(value);
    return add(static_cast<std::uint64_t>(value));
  }
  AgreedArguments& shape(Shape const& value) {
    if (!checked_) return *this;
    arguments_.shape(std::span(value.begin(), value.size()));
    digest_.add(std::span(value.begin(), value.size()));
    return *this;
  }
  /// Everything behind the first dimension.
  AgreedArguments& row(Shape const& value) {
    if (!checked_) return *this;
    arguments_.rows_of(std::span(value.begin(), value.size()));
    if (!value.empty()) digest_.add(std::span(value.begin() + 1, value.size() - 1));
    return *this;
  }
  AgreedArguments& rows(std::span<std::int64_t const> value) {
    if (!checked_) return *this;
    arguments_.parts(value);
    digest_.add(value);
    return *this;
  }
  AgreedArguments& root(int value) {
    if (checked_) arguments_.root(value);
    return add(static_cast<std::uint64_t>(value));
  }
  AgreedArguments& tag(Tag value) {
    if (checked_) arguments_.tag(value.tag);
    return add(value.tag);
  }
  AgreedArguments& op(ReduceOp value) {
    if (checked_) arguments_.op(value);
    return add(static_cast<std::uint64_t>(value));
  }
  /// The kind of device is part of what ranks compare; its number is not.
  AgreedArguments& device(Device value) {
    device_ = value;
    if (!checked_ || value.kind == Device::Kind::cpu) return *this;
    arguments_.text("on cuda");
    return add(device_mark).add(static_cast<std::uint64_t>(value.kind));
  }
  /// Call `device` before: tensors on the CPU are always reduced in rank order, so their ranks need not agree.
  AgreedArguments& order(ReduceOrder value) {
    if (device_.kind == Device::Kind::cpu || value == ReduceOrder::any) return *this;
    order_ = value;
    if (checked_) arguments_.text("in rank order");
    return add(order_mark).add(static_cast<std::uint64_t>(value));
  }
  void into(algorithms::Call& call, spi::OpKind op_kind, char const* called = nullptr) {
    call.device = device_;
    call.order = order_;
    call.signature = {op_kind, checked_ ? digest_.value() : 0};
    call.called = called;
    if (checked_ && called != nullptr) arguments_.name(called);
    call.arguments = arguments_;
  }

 private:
  static constexpr std::uint64_t device_mark = 0x6465'7669'6365;  ///< keeps the kind apart from other numbers

  static constexpr std::uint64_t order_mark = 0x6f72'6465'72;  ///< likewise the order

  AgreedArguments& add(std::uint64_t value) {
    if (checked_) digest_.add(value);
    return *this;
  }

  bool checked_;
  Device device_{};
  ReduceOrder order_ = ReduceOrder::any;
  ArgumentDigest digest_;
  CallArguments arguments_{};
};

}  // namespace crossrank
