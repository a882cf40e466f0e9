// A plugin of another build, which the library must refuse before it calls it.
#include <crossrank/export.hpp>
#include <crossrank/spi/plugin.hpp>

extern "C" CROSSRANK_EXPORT crossrank::spi::Plugin const* crossrank_plugin() noexcept {
  static constexpr crossrank::spi::Plugin plugin{"crossrank 0.0.0", nullptr, nullptr};
  return &plugin;
}
