#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace crossrank::tools {

/// Splits one stream of a rank into lines and prefixes each. All bytes except '\n' pass through unchanged.
class LinePrefixer {
 public:
  /// A longer line is split. Every piece is a line of its own, and the prefix of each piece but the first ends in "+ ".
  static constexpr std::size_t max_line = 65'536;

  /// With an empty `prefix`, adds nothing, not even a line end.
  explicit LinePrefixer(std::string const& prefix);

  /// Reads bytes and appends complete lines to `out`.
  void add(std::string_view bytes, std::string& out);
  /// Ends the stream: appends the last line if it had no line end.
  void finish(std::string& out);

 private:
  void emit(std::string_view piece, bool whole, std::string& out);
  std::string prefix_;
  std::string continued_prefix_;
  std::string partial_;
  bool continued_ = false;
};

}  // namespace crossrank::tools
