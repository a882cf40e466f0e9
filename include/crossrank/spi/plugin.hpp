#pragma once
#include <chrono>
#include <memory>
#include <string>

#include <crossrank/spi/interface.hpp>
#include <crossrank/spi/operation.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/version.hpp>

namespace crossrank {
class Collective;
struct ConnectOptions;
}  // namespace crossrank

namespace crossrank::spi {

/// The group that the library asks a plugin to open: all ranks of the job. Other groups come from `Transport::split` of
/// that one. A plugin that needs this rank's device calls `default_device()`, which opens the driver.
struct PluginRequest {
  std::string job{};                                   ///< the job's id
  std::string backend{};                               ///< what the ranks will open over the group
  std::string master{};                                ///< "host:port" as the launcher announced it; may be empty
  int rank = 0;                                        ///< this rank's number
  int world_size = 0;                                  ///< as the launcher announced it; 0: the backend decides
  TimeoutPolicy timeout_policy{};                      ///< how long calls may wait
  std::chrono::milliseconds connect_timeout{120'000};  ///< longest wait for all ranks to join
};

/// The table that a plugin returns from its only exported function, `crossrank_plugin`, which has C linkage.
struct Plugin {
  char const* stamp;  ///< `build_stamp` of the plugin; the library refuses a plugin whose stamp differs from its own
  std::shared_ptr<Transport> (*open)(PluginRequest const& request);        ///< opens the group
  Collective (*connect)(int communicator, ConnectOptions const& options);  ///< as `connect_mpi`; may be null
};

/// The type of `crossrank_plugin`.
using PluginEntry = Plugin const* (*)() noexcept;
/// The name of the exported function.
inline constexpr char const* plugin_entry_name = "crossrank_plugin";

#define CROSSRANK_SPI_TEXT_OF(number) #number
#define CROSSRANK_SPI_TEXT(number) CROSSRANK_SPI_TEXT_OF(number)
/// Names everything that both sides must have in common: version, interface, compiler and standard library.
inline constexpr char const* build_stamp =
    "crossrank " CROSSRANK_VERSION ", interface " CROSSRANK_SPI_INTERFACE ", " __VERSION__ ", C++ " CROSSRANK_SPI_TEXT(
        __cplusplus) ", library " CROSSRANK_SPI_TEXT(_GLIBCXX_RELEASE) "/" CROSSRANK_SPI_TEXT(_GLIBCXX_USE_CXX11_ABI);
#undef CROSSRANK_SPI_TEXT
#undef CROSSRANK_SPI_TEXT_OF

}  // namespace crossrank::spi
