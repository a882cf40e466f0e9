#pragma once
#include <string>

#include <crossrank/export.hpp>

namespace crossrank::spi {

/// An exception of another language, which a binding throws through the library. Other ranks get the names that it has
/// there. A class that derives from it also derives from `std::exception`.
class CROSSRANK_EXPORT ForeignException {
 public:
  virtual ~ForeignException();
  /// Returns the name of its type, such as "ValueError".
  [[nodiscard]] virtual std::string type_name() const = 0;
  /// Returns its text, without the name of the type.
  [[nodiscard]] virtual std::string message() const = 0;

 protected:
  /// For derived classes.
  ForeignException() = default;
  /// For derived classes, because exceptions are copied.
  ForeignException(ForeignException const&) = default;
  /// For derived classes.
  ForeignException& operator=(ForeignException const&) = default;
};

}  // namespace crossrank::spi
