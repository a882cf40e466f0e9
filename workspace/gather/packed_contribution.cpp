#include "workspace/gather/packed_contribution.hpp"

#include <cstring>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/codec/message/config_binary.hpp"
#include "lib/codec/message/tensor_table.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/frozen_storage.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/staged_read.hpp"
#include "workspace/shared_memory/contribution_head.hpp"

namespace crossrank::workspace {
namespace {

[[noreturn]] void refuse(int sender, std::string message) {
  throw FormatError({.operation = "receive",
                     .message = std::move(message),
                     .resource = "the contribution of rank " + std::to_string(sender),
                     .section = "head"});
}

}  // namespace

std::vector<std::byte> pack(Contribution const& contribution) {
  std::vector<codec::TableEntry> entries;
  entries.reserve(contribution.tensors.size());
  std::size_t data_bytes = 0;
  for (auto const& named : contribution.tensors) {
    auto& entry = entries.emplace_back(entry_of(named));
    if (!entry.present) continue;
    if (on_gpu(*named.tensor)) require_readable(*named.tensor, "publish");
    entry.offset = data_bytes;
    data_bytes = aligned(data_bytes + entry.nbytes);
  }
  auto const config =
      contribution.config == nullptr ? std::string() : codec::encode_config_binary(*contribution.config);
  codec::TableInput const table{config, entries};
  auto const table_bytes = codec::encoded_size(table);
  auto const head = ContributionHead::before(table_bytes);
  std::vector<std::byte> packed(head.data_offset + data_bytes);
  std::memcpy(packed.data(), &head, sizeof head);
  codec::encode(table, {packed.data() + sizeof head, table_bytes});
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto const& tensor = *contribution.tensors[i].tensor;
    if (entries[i].nbytes != 0) read_to_host(packed.data() + head.data_offset + entries[i].offset, tensor);
  }
  return packed;
}

void unpack(std::shared_ptr<std::vector<std::byte>> bytes, int sender, Collector& collector) {
  auto const parts = divide(*bytes);
  if (!parts) refuse(sender, "the head is cut off, or the table lies outside the payload");
  auto const table = codec::decode(parts->table, parts->data.size());
  std::shared_ptr<spi::Storage> const storage =
      std::make_shared<FrozenStorage>(parts->data, std::move(bytes), "received from rank " + std::to_string(sender));
  collector.expect(table.entries.size());
  if (!table.config.empty()) collector.config(codec::decode_config_binary(std::as_bytes(std::span(table.config))));
  for (auto const& entry : table.entries) {
    if (!entry.present) {
      collector.tensor(entry.name, Tensor());
    } else if (entry.slot != codec::own_payload) {
      refuse(sender, "a tensor refers to another node's memory");
    } else if (entry.nbytes == 0) {
      collector.tensor(entry.name, Tensor::empty(entry.shape, entry.dtype));
    } else {
      collector.tensor(entry.name, spi::tensor_from_storage(storage, entry.offset, entry.shape, entry.dtype));
    }
  }
}

}  // namespace crossrank::workspace
