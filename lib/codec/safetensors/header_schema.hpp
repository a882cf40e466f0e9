#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/codec/safetensors/header_parser.hpp"

namespace crossrank::codec {

/// Throws a `FormatError` for a header, with the position and the tensor or metadata key.
[[noreturn]] void refuse_header(ParseOptions const& options, char const* section, std::uint64_t offset,
                                std::string message, std::string_view key = {}, std::string system = {},
                                std::string hint = {});

/// Fills `Header::entries` and `metadata` from the SAX events of a safetensors header. Accepts exactly the schema,
/// builds no tree, and keeps nothing else.
class HeaderSchema {
 public:
  /// `cursor` follows the lexer through `text`, which begins at byte 8 of the file.
  HeaderSchema(ParseOptions const& options, std::string_view text, char const* const& cursor, Header& out)
      : options_(options), text_(text), cursor_(cursor), out_(out) {}

  bool null();
  bool boolean(bool);
  bool number_integer(std::int64_t);
  bool number_unsigned(std::uint64_t value);
  bool number_float(double, std::string const& digits);
  bool string(std::string& value);
  bool binary(Json::binary_t&);
  bool start_object(std::size_t);
  bool key(std::string& value);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t position, std::string const&, Json::exception const& e);

 private:
  /// Position in the schema of the next event.
  enum class Position : std::uint8_t { outside, top, metadata, entry, entry_list, shape, offsets, skipped };
  enum class Field : std::uint8_t { none, dtype, shape, offsets, unknown };

  [[noreturn]] void refuse(std::string message) const;
  /// Refuses a header that the format allows but that exceeds a limit of this reader.
  [[noreturn]] void refuse_limit(std::string message) const;
  [[nodiscard]] std::uint64_t offset() const noexcept { return 8 + static_cast<std::uint64_t>(cursor_ - text_.data()); }
  [[nodiscard]] bool lenient() const noexcept { return options_.strictness == Strictness::lenient; }
  bool scalar(char const* what);
  void begin_entry();
  void begin_field(Field field);
  void finish_entry();
  void leave_array();
  void take_dtype(std::string const& name);
  void take_top_key(std::string& value);
  void take_entry_key(std::string const& value);
  [[nodiscard]] Field next_in_list() const noexcept;

  ParseOptions const& options_;
  std::string_view text_;
  char const* const& cursor_;
  Header& out_;

  Position position_ = Position::outside;
  Position array_parent_ = Position::entry;
  Position skip_parent_ = Position::entry;
  std::size_t skip_depth_ = 0;
  Field field_ = Field::none;
  unsigned seen_ = 0;  ///< one bit per field of the current entry
  bool has_metadata_ = false;
  std::string name_{};  ///< current top-level key
  std::string metadata_key_{};
  std::uint64_t name_at_ = 0;
  HeaderEntry entry_{};
  std::vector<std::int64_t> lengths_{};
  std::vector<std::uint64_t> offsets_{};
};

}  // namespace crossrank::codec
