#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace crossrank::tools {

/// Turns one stream of a rank into whole lines, each with a prefix. Bytes other than '\n' pass through as they are.
class LinePrefixer {
 public:
  /// A line longer than this is passed on in pieces, each a line of its own whose prefix ends in "+ " but for the
  /// first.
  static constexpr std::size_t max_line = 65'536;

  /// An empty `prefix` adds nothing at all, no line end either.
  explicit LinePrefixer(std::string const& prefix);

  /// Takes bytes in and appends what is complete to `out`.
  void add(std::string_view bytes, std::string& out);
  /// The stream has ended: appends the last line when it had no end.
  void finish(std::string& out);

 private:
  void emit(std::string_view piece, bool whole, std::string& out);
  std::string prefix_;
  std::string continued_prefix_;
  std::string partial_;
  bool continued_ = false;
};

}  // namespace crossrank::tools
