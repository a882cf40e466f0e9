#include "lib/codec/safetensors/header_schema.hpp"

#include <limits>
#include <utility>

#include "lib/codec/json/json_text.hpp"

namespace crossrank::codec {
namespace {

constexpr std::string_view metadata_name = "__metadata__";
constexpr std::size_t deepest_skip = 128;

constexpr unsigned bit_of(unsigned field) { return 1U << field; }

}  // namespace

void refuse_header(ParseOptions const& options, char const* section, std::uint64_t offset, std::string message,
                   std::string_view key, std::string system, std::string hint) {
  if (!key.empty()) message += " (\"" + std::string(key) + "\")";
  throw FormatError({.operation = "safetensors",
                     .message = std::move(message),
                     .resource = options.source,
                     .system = std::move(system),
                     .hint = std::move(hint),
                     .section = section,
                     .offset = offset});
}

void HeaderSchema::refuse(std::string message) const {
  refuse_header(options_, "header", offset(), std::move(message), name_);
}

void HeaderSchema::refuse_limit(std::string message) const {
  refuse_header(options_, "header", offset(), std::move(message), name_, {}, limit_hint);
}

/// Refuses a value that the schema does not allow, unless it is skipped.
bool HeaderSchema::scalar(char const* what) {
  if (position_ == Position::skipped) return true;
  if (position_ == Position::entry && field_ == Field::unknown) {
    field_ = Field::none;
    return true;
  }
  refuse(std::string(what) + " is not allowed here");
}

bool HeaderSchema::null() {
  if (position_ == Position::top && name_ == metadata_name && lenient()) return true;
  return scalar("null");
}

bool HeaderSchema::boolean(bool) { return scalar("a boolean"); }
bool HeaderSchema::number_integer(std::int64_t) { return scalar("a negative number"); }
bool HeaderSchema::number_float(double, std::string const&) {
  return scalar("a number that is not an unsigned 64-bit integer");
}
bool HeaderSchema::binary(Json::binary_t&) { return scalar("a binary value"); }

bool HeaderSchema::number_unsigned(std::uint64_t value) {
  if (position_ == Position::shape) {
    if (lengths_.size() == Shape::max_rank)
      refuse_limit("a tensor has more than " + std::to_string(Shape::max_rank) + " dimensions");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse("a length overflows 63 bits");
    lengths_.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (position_ == Position::offsets) {
    if (offsets_.size() == 2) refuse("there are more than two data offsets");
    offsets_.push_back(value);
    return true;
  }
  return scalar("a number");
}

bool HeaderSchema::string(std::string& value) {
  if (position_ == Position::metadata) {
    if (out_.metadata.size() == max_metadata_entries)
      refuse_limit("there are more than " + std::to_string(max_metadata_entries) + " metadata entries");
    out_.metadata.emplace_back(std::move(metadata_key_), std::move(value));
    return true;
  }
  if (position_ == Position::entry_list && next_in_list() == Field::dtype) begin_field(Field::dtype);
  if ((position_ == Position::entry || position_ == Position::entry_list) && field_ == Field::dtype) {
    take_dtype(value);
    return true;
  }
  return scalar("a string");
}

void HeaderSchema::take_dtype(std::string const& name) {
  auto const dtype = parse_dtype(name);
  if (!dtype) refuse("unknown dtype " + printable(name.substr(0, 40)));
  entry_.dtype = *dtype;
  field_ = Field::none;
}

bool HeaderSchema::start_object(std::size_t) {
  switch (position_) {
    case Position::outside: position_ = Position::top; return true;
    case Position::top:
      if (name_ == metadata_name) {
        position_ = Position::metadata;
      } else {
        begin_entry();
        position_ = Position::entry;
      }
      return true;
    case Position::entry:
      if (field_ != Field::unknown) break;
      skip_parent_ = position_;
      position_ = Position::skipped;
      skip_depth_ = 1;
      return true;
    case Position::skipped:
      if (++skip_depth_ > deepest_skip) refuse("the nesting is too deep");
      return true;
    default: break;
  }
  refuse("an object is not allowed here");
}

bool HeaderSchema::key(std::string& value) {
  if (position_ == Position::top) {
    take_top_key(value);
  } else if (position_ == Position::metadata) {
    metadata_key_ = std::move(value);
  } else if (position_ == Position::entry) {
    take_entry_key(value);
  }
  return true;
}

void HeaderSchema::take_top_key(std::string& value) {
  name_ = std::move(value);
  name_at_ = offset();
  if (name_ == metadata_name) {
    if (std::exchange(has_metadata_, true)) refuse("the metadata occurs twice");
    return;
  }
  if (lenient()) return;
  if (name_.size() > max_name_bytes) {
    auto const bytes = name_.size();
    name_.clear();
    refuse_limit("a name has " + std::to_string(bytes) + " bytes, more than " + std::to_string(max_name_bytes));
  }
  if (name_.find('\0') != std::string::npos) {
    name_.clear();
    refuse("a name contains NUL");
  }
}

void HeaderSchema::take_entry_key(std::string const& value) {
  if (value == "dtype") return begin_field(Field::dtype);
  if (value == "shape") return begin_field(Field::shape);
  if (value == "data_offsets") return begin_field(Field::offsets);
  if (!lenient()) refuse("unknown key " + printable(value.substr(0, 40)) + " in an entry");
  field_ = Field::unknown;
}

void HeaderSchema::begin_field(Field field) {
  auto const bit = bit_of(static_cast<unsigned>(field));
  if ((seen_ & bit) != 0) refuse("an entry repeats a key");
  seen_ |= bit;
  field_ = field;
}

void HeaderSchema::begin_entry() {
  if (out_.entries.size() == max_tensors)
    refuse_limit("there are more than " + std::to_string(max_tensors) + " tensors");
  entry_ = {};
  entry_.at = name_at_;
  lengths_.clear();
  offsets_.clear();
  seen_ = 0;
  field_ = Field::none;
}

HeaderSchema::Field HeaderSchema::next_in_list() const noexcept {
  for (auto const field : {Field::dtype, Field::shape, Field::offsets}) {
    if ((seen_ & bit_of(static_cast<unsigned>(field))) == 0) return field;
  }
  return Field::none;
}

bool HeaderSchema::start_array(std::size_t) {
  if (position_ == Position::skipped || (position_ == Position::entry && field_ == Field::unknown))
    return start_object(0);
  if (position_ == Position::top && name_ != metadata_name && lenient()) {
    begin_entry();
    position_ = Position::entry_list;
    return true;
  }
  if (position_ == Position::entry_list && next_in_list() != Field::dtype && next_in_list() != Field::none)
    begin_field(next_in_list());
  if ((position_ == Position::entry || position_ == Position::entry_list) &&
      (field_ == Field::shape || field_ == Field::offsets)) {
    array_parent_ = position_;
    position_ = field_ == Field::shape ? Position::shape : Position::offsets;
    return true;
  }
  refuse("an array is not allowed here");
}

bool HeaderSchema::end_array() {
  if (position_ == Position::skipped) return end_object();
  if (position_ == Position::entry_list) {
    finish_entry();
  } else {
    leave_array();
  }
  return true;
}

void HeaderSchema::leave_array() {
  if (position_ == Position::offsets && offsets_.size() != 2) refuse("there are fewer than two data offsets");
  position_ = array_parent_;
  field_ = Field::none;
}

bool HeaderSchema::end_object() {
  switch (position_) {
    case Position::skipped:
      if (--skip_depth_ == 0) {
        position_ = skip_parent_;
        field_ = Field::none;
      }
      return true;
    case Position::entry: finish_entry(); return true;
    case Position::metadata: position_ = Position::top; return true;
    default: position_ = Position::outside; return true;
  }
}

void HeaderSchema::finish_entry() {
  if (auto const missing = next_in_list(); missing != Field::none) {
    refuse(missing == Field::dtype   ? "an entry has no dtype"
           : missing == Field::shape ? "an entry has no shape"
                                     : "an entry has no data offsets");
  }
  entry_.name = std::move(name_);
  name_.clear();
  entry_.shape = Shape(lengths_);
  entry_.begin = offsets_[0];
  entry_.end = offsets_[1];
  out_.entries.push_back(std::move(entry_));
  position_ = Position::top;
}

bool HeaderSchema::parse_error(std::size_t position, std::string const&, Json::exception const& e) {
  refuse_header(options_, "header", 8 + position, "malformed JSON", name_, printable(e.what()));
}

}  // namespace crossrank::codec
