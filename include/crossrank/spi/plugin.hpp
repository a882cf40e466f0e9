#pragma once
#include <chrono>
#include <memory>
#include <string>

#include <crossrank/spi/transport.hpp>
#include <crossrank/version.hpp>

namespace crossrank::spi {

/// What a plugin is asked to open: the group of all ranks of the job.
struct PluginRequest {
  std::string job{};                                   ///< the job's id
  int rank = 0;                                        ///< this rank's number
  int world_size = 0;                                  ///< as the launcher announced it; 0: whatever the backend finds
  TimeoutPolicy timeout_policy{};                      ///< how long calls may wait
  std::chrono::milliseconds connect_timeout{120'000};  ///< how long to wait for all ranks to come
};

/// What a plugin exports, by a function called `crossrank_plugin` with C linkage.
struct Plugin {
  char const* stamp;  ///< `build_stamp` of its build, which must be that of the library
  std::shared_ptr<Transport> (*open)(PluginRequest const& request);  ///< opens the group
};

/// The type of that function.
using PluginEntry = Plugin const* (*)() noexcept;
/// The name of that function.
inline constexpr char const* plugin_entry_name = "crossrank_plugin";

#define CROSSRANK_SPI_TEXT_OF(number) #number
#define CROSSRANK_SPI_TEXT(number) CROSSRANK_SPI_TEXT_OF(number)
/// Names everything that both sides must have in common: version, interface, compiler and standard library.
inline constexpr char const* build_stamp =
    "crossrank " CROSSRANK_VERSION ", interface 2, " __VERSION__ ", C++ " CROSSRANK_SPI_TEXT(
        __cplusplus) ", library " CROSSRANK_SPI_TEXT(_GLIBCXX_RELEASE) "/" CROSSRANK_SPI_TEXT(_GLIBCXX_USE_CXX11_ABI);
#undef CROSSRANK_SPI_TEXT
#undef CROSSRANK_SPI_TEXT_OF

}  // namespace crossrank::spi
