#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

#include "lib/codec/torch/pickle/torch_dtype.hpp"

namespace crossrank::codec {

/// Writes a pickle of protocol 2 with dicts, plain values and tensors, which torch can open with `weights_only`, and
/// with objects of classes that the reader has.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}
  /// Begins a dict. Write keys and values alternately until `end_dict`.
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  void begin_list() { out_ += "]("; }
  void end_list() { out_ += 'e'; }
  void begin_tuple() { out_ += '('; }
  void end_tuple() { out_ += 't'; }
  /// Begins an object. Write the names and values of its fields alternately until `end_object`.
  void begin_object(std::string_view type);
  void end_object() { out_ += "ub"; }
  /// Begins an object whose class restores it from one value. Write the value, then `end_state`.
  void begin_state(std::string_view type);
  void end_state() { out_ += 'b'; }
  /// Begins the result of a call. Write the arguments until `end_call`.
  void begin_call(std::string_view function);
  void end_call() { out_ += "tR"; }
  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  /// Writes a text or the name of a class or function. After the first time, it is only a reference.
  void shared_text(std::string_view utf8);
  void shared_global(std::string_view name);
  void text(std::string_view utf8);
  /// Writes a tuple of integers.
  void numbers(std::span<std::int64_t const> values);
  void integer(std::int64_t value);
  /// Writes any JSON value; a binary value as bytes.
  void value(Json const& value);
  /// Writes a dense tensor that covers storage `key`. `lengths` count torch's elements.
  void tensor(TorchDtype const& dtype, std::string_view key, std::span<std::int64_t const> lengths);
  [[nodiscard]] std::string finish() &&;

 private:
  void natural(std::uint64_t value);
  void real(double value);
  void bytes(Json::binary_t const& value);
  void global(std::string_view name);
  [[nodiscard]] bool recall(std::string const& key);
  void remember(std::string key);

  std::string out_;
  std::map<std::string, std::uint32_t> memo_{};  ///< numbers of what is written once
};

}  // namespace crossrank::codec
