#include <crossrank/spi/storage.hpp>

namespace crossrank::spi {

Storage::~Storage() = default;

Device Storage::device() const noexcept { return {}; }

std::string Storage::frozen_by() const { return {}; }

std::string Storage::revoked_by() const { return {}; }

std::optional<int> Storage::revoked_by_rank() const { return {}; }

bool Storage::hold(std::function<std::string()> /*who*/) { return false; }

bool Storage::is_pinned() const noexcept { return false; }

bool Storage::used_on(Stream const& /*stream*/) { return false; }

}  // namespace crossrank::spi
