#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

namespace crossrank::codec {

/// Limits of a JSON document.
struct JsonLimits {
  std::size_t bytes = 0;   ///< length of the text
  std::size_t values = 0;  ///< objects, lists and scalars together
  std::size_t depth = 0;   ///< nesting of objects and lists
};

/// What to do when an object repeats a key.
enum class RepeatedKey : std::uint8_t {
  refuse,
  last_counts,  ///< keeps the last value, at the position of the first, as most JSON readers do
};

/// Builds a JSON value from the events of nlohmann's parser. Checks the limits before it allocates memory for a value,
/// and takes linear time; the parser's own builder compares each key with all earlier keys of its object.
class JsonBuilder {
 public:
  /// `about` holds operation, resource, hint and section of errors, and must outlive the builder.
  JsonBuilder(JsonLimits limits, RepeatedKey repeated, ErrorInfo const& about)
      : limits_(limits), repeated_(repeated), about_(about) {}
  virtual ~JsonBuilder() = default;
  JsonBuilder(JsonBuilder const&) = delete;
  JsonBuilder& operator=(JsonBuilder const&) = delete;

  /// Parses a document. Call it once. `FormatError` with the byte for malformed JSON, an integer that fits neither in
  /// 64 bits nor exactly in a double, or more than a limit.
  [[nodiscard]] Json parse(std::string_view text);

  // Events of the parser.
  bool null() { return add(nullptr); }
  bool boolean(bool held) { return add(held); }
  bool number_integer(std::int64_t held) { return add(held); }
  bool number_unsigned(std::uint64_t held) { return add(held); }
  bool number_float(double held, std::string const& digits);
  bool string(std::string& held) { return add(std::move(held)); }
  bool binary(Json::binary_t& held);
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& held);
  bool end_object();
  bool end_array();
  bool parse_error(std::size_t position, std::string const& token, Json::exception const& error);

 protected:
  /// Receives each complete object.
  virtual void finish_object(Json& object);
  /// Receives an integer that does not fit in 64 bits, which becomes a double. Refuses it if that changes its value:
  /// int(1e30) of Python stays what it is.
  virtual void take_long_integer(double held, std::string const& digits);
  /// Throws the `FormatError` for it.
  [[noreturn]] void refuse_long_integer() const;

  /// Throws a `FormatError` at the current position.
  [[noreturn]] void refuse_here(std::string message) const;

 private:
  bool open(Json value);
  bool add(Json value);
  Json* place(Json value);
  void resolve_repeats(Json& object) const;
  [[noreturn]] void refuse(std::size_t offset, std::string message, std::string system = {}) const;

  JsonLimits limits_;
  RepeatedKey repeated_;
  ErrorInfo const& about_;
  char const* begin_ = nullptr;
  char const* cursor_ = nullptr;
  Json root_{};
  std::vector<Json*> stack_{};  ///< open objects and lists; only the innermost one grows
  std::string key_{};
  std::size_t values_ = 0;
};

}  // namespace crossrank::codec
