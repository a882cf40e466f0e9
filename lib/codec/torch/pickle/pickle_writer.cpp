#include "lib/codec/torch/pickle/pickle_writer.hpp"

#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "lib/codec/io/append_value.hpp"
#include "lib/codec/torch/pickle/latin1.hpp"

namespace crossrank::codec {
void PickleWriter::text(std::string_view utf8) {
  out_ += 'X';
  append_value(out_, static_cast<std::uint32_t>(utf8.size()));
  out_ += utf8;
}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= 0xff) {
    out_ += 'K';
    append_value(out_, static_cast<std::uint8_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    out_ += 'J';
    append_value(out_, static_cast<std::int32_t>(value));
  } else {
    out_ += "\x8a\x08";
    append_value(out_, value);
  }
}

void PickleWriter::natural(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return integer(static_cast<std::int64_t>(value));
  out_ += "\x8a\x09";
  append_value(out_, value);
  out_ += '\0';
}

void PickleWriter::real(double value) {
  out_ += 'G';
  append_value(out_, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void PickleWriter::bytes(Json::binary_t const& value) {
  global("_codecs.encode");
  out_ += '(';
  text(from_latin1({reinterpret_cast<char const*>(value.data()), value.size()}));
  text("latin1");
  out_ += "tR";
}

void PickleWriter::value(Json const& value) {
  switch (value.type()) {
    case Json::value_t::boolean: return boolean(value.get<bool>());
    case Json::value_t::number_integer: return integer(value.get<std::int64_t>());
    case Json::value_t::number_unsigned: return natural(value.get<std::uint64_t>());
    case Json::value_t::number_float: return real(value.get<double>());
    case Json::value_t::string: return text(value.get_ref<std::string const&>());
    case Json::value_t::binary: return bytes(value.get_binary());
    case Json::value_t::array:
      out_ += "](";
      for (auto const& item : value) this->value(item);
      out_ += 'e';
      break;
    case Json::value_t::object:
      begin_dict();
      for (auto const& [key, item] : value.items()) {
        text(key);
        this->value(item);
      }
      end_dict();
      break;
    default: none();
  }
}

void PickleWriter::global(std::string_view name) {
  auto const dot = name.rfind('.');
  out_ += 'c';
  out_.append(name.substr(0, dot)).append("\n").append(name.substr(dot + 1)).append("\n");
}

/// Writes a reference to what was written before under this key. Returns false if nothing was: the caller writes it,
/// and then `remember` gives it a number.
bool PickleWriter::recall(std::string const& key) {
  auto const found = memo_.find(key);
  if (found == memo_.end()) return false;
  out_ += found->second <= 0xff ? 'h' : 'j';
  if (found->second <= 0xff) {
    append_value(out_, static_cast<std::uint8_t>(found->second));
  } else {
    append_value(out_, found->second);
  }
  return true;
}

void PickleWriter::remember(std::string key) {
  auto const number = static_cast<std::uint32_t>(memo_.size());
  out_ += 'r';
  append_value(out_, number);
  memo_.emplace(std::move(key), number);
}

void PickleWriter::shared_text(std::string_view utf8) {
  auto key = std::string("text ").append(utf8);
  if (recall(key)) return;
  text(utf8);
  remember(std::move(key));
}

void PickleWriter::shared_global(std::string_view name) {
  auto key = std::string("global ").append(name);
  if (recall(key)) return;
  global(name);
  remember(std::move(key));
}

void PickleWriter::begin_object(std::string_view type) {
  begin_state(type);
  begin_dict();
}

void PickleWriter::begin_state(std::string_view type) {
  shared_global(type);
  out_ += ")\x81";
}

void PickleWriter::begin_call(std::string_view function) {
  shared_global(function);
  out_ += '(';
}

void PickleWriter::numbers(std::span<std::int64_t const> values) {
  out_ += '(';
  for (auto const value : values) integer(value);
  out_ += 't';
}

void PickleWriter::tensor(TorchDtype const& dtype, std::string_view key, std::span<std::int64_t const> lengths) {
  auto const typed = !dtype.storage.empty();
  std::vector<std::int64_t> strides(lengths.size());
  std::int64_t numel = 1;
  for (auto dim = lengths.size(); dim-- > 0; numel *= lengths[dim]) strides[dim] = numel;
  global(typed ? "torch._utils._rebuild_tensor_v2" : "torch._utils._rebuild_tensor_v3");
  out_ += "((";
  text("storage");
  global(typed ? dtype.storage : untyped_storage);
  text(key);
  text("cpu");
  integer(typed ? numel : numel * static_cast<std::int64_t>(dtype.element_bytes));
  out_ += "tQ";
  integer(0);
  numbers(lengths);
  numbers(strides);
  out_ += '\x89';
  global("collections.OrderedDict");
  out_ += ")R";
  if (!typed) global(dtype.name);
  out_ += "tR";
}

std::string PickleWriter::finish() && {
  out_ += '.';
  return std::move(out_);
}

}  // namespace crossrank::codec
