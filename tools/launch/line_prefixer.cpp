#include "tools/launch/line_prefixer.hpp"

namespace crossrank::tools {

LinePrefixer::LinePrefixer(std::string const& prefix)
    : prefix_(prefix.empty() ? std::string() : prefix + " "),
      continued_prefix_(prefix.empty() ? std::string() : prefix + "+ ") {}

void LinePrefixer::add(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    auto const end = bytes.find('\n');
    auto const space = max_line - partial_.size();
    if (end != std::string_view::npos && end <= space) {
      partial_ += bytes.substr(0, end);
      bytes.remove_prefix(end + 1);
      emit(partial_, true, out);
    } else if (bytes.size() > space) {
      partial_ += bytes.substr(0, space);
      bytes.remove_prefix(space);
      emit(partial_, false, out);
    } else {
      partial_ += bytes;
      return;
    }
    partial_.clear();
  }
}

void LinePrefixer::finish(std::string& out) {
  if (partial_.empty()) return;
  out += continued_ ? continued_prefix_ : prefix_;
  out += partial_;
  if (!prefix_.empty()) out += '\n';
  partial_.clear();
  continued_ = false;
}

void LinePrefixer::emit(std::string_view piece, bool whole, std::string& out) {
  out += continued_ ? continued_prefix_ : prefix_;
  out += piece;
  if (whole || !prefix_.empty()) out += '\n';
  continued_ = !whole;
}

}  // namespace crossrank::tools
