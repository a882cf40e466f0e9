#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

namespace crossrank::codec {

/// How large a JSON document may be.
struct JsonLimits {
  std::size_t bytes = 0;   ///< of text
  std::size_t values = 0;  ///< objects, lists and scalars together
  std::size_t depth = 0;   ///< of objects and lists inside each other
};

/// What to do with an object that has the same key twice.
enum class RepeatedKey : std::uint8_t {
  refuse,
  last_counts,  ///< keeps the last value, at the place of the first, as most JSON readers do
};

/// Builds a JSON value from the events of nlohmann's parser. Checks the limits before memory is spent on a value, and
/// takes time linear in the text: the parser's own builder compares each key with all earlier ones of its object.
class JsonBuilder {
 public:
  /// `about` holds operation, resource, hint and section of an error, and must outlive the tree.
  JsonBuilder(JsonLimits limits, RepeatedKey repeated, ErrorInfo const& about)
      : limits_(limits), repeated_(repeated), about_(about) {}
  virtual ~JsonBuilder() = default;
  JsonBuilder(JsonBuilder const&) = delete;
  JsonBuilder& operator=(JsonBuilder const&) = delete;

  /// Parses a document; called once. `FormatError` with the byte for text that is no JSON or passes a limit.
  [[nodiscard]] Json parse(std::string_view text);

  // The events.
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
  /// Called with each object once it is complete.
  virtual void finish_object(Json& object);
  /// Called for an integer that 64 bits do not hold.
  virtual void take_long_integer();

  /// Refuses what was read last.
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
  std::vector<Json*> stack_{};  ///< open objects and lists; none of them grows while one inside it is open
  std::string key_{};
  std::size_t values_ = 0;
};

}  // namespace crossrank::codec
