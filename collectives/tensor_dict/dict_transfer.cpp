#include "collectives/tensor_dict/dict_transfer.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>

#include "collectives/core/group_state.hpp"
#include "collectives/core/named_calls.hpp"
#include "collectives/core/own_part.hpp"
#include "collectives/core/with_operation_name.hpp"
#include "collectives/objects/peer_exception.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/reserved_tags.hpp"

namespace crossrank {
namespace {

constexpr char const* receiving = "recv_tensor_dict";

/// Tags of the messages of a dictionary. All but the first also contain the dictionary's number.
constexpr Tag dict_head_tag{reserved_tags::dict_head};
Tag dict_body_tag(BlockHeader const& head) {
  return {reserved_tags::dict_body | (head.number & reserved_tags::number_mask)};
}
Tag dict_tensor_tag(BlockHeader const& head) {
  return {reserved_tags::dict_tensor | (head.number & reserved_tags::number_mask)};
}

/// Returns a view of the tensor's bytes from `offset`, as u8.
Tensor bytes_of(Tensor const& tensor, std::size_t offset, std::size_t bytes) {
  return spi::tensor_from_storage(tensor.storage(), tensor.byte_offset() + offset, {static_cast<std::int64_t>(bytes)},
                                  Dtype::u8);
}

/// Calls `use` with each piece of `tensor`, in order.
template <class Use>
void for_each_piece(Tensor const& tensor, Use const& use) {
  for (std::size_t at = 0; at < tensor.nbytes(); at += largest_piece)
    use(bytes_of(tensor, at, std::min(largest_piece, tensor.nbytes() - at)));
}

Tensor part_of(DictTensor const& travelling, int part) {
  auto const bytes = travelling.tensor.nbytes() / as_size(travelling.parts);
  return bytes_of(travelling.tensor, as_size(part) * bytes, bytes);
}

/// Throws `UsageError` unless the tensors on GPUs are all on the one that this rank uses in the group. While the
/// receivers can still be told.
void require_own_device(Collective const& group, std::span<DictTensor const> tensors, char const* operation) {
  std::optional<Device> first;
  for (auto const& travelling : tensors) {
    auto const device = travelling.tensor.device();
    if (device.kind == Device::Kind::cpu || device == first) continue;
    if (first) {
      throw UsageError(detail::usage_in(*group.transport(), operation, "the tensors are on different devices",
                                        to_string(*first), to_string(device)));
    }
    detail::NamedCalls(group, operation).require_own_device(device);
    first = device;
  }
}

/// Returns the device on which this rank receives tensors of a kind of device.
Device receiving_device(Collective const& group, Device::Kind kind, char const* operation) {
  if (kind == Device::Kind::cpu) return Device::cpu();
  auto const used = detail::NamedCalls(group, operation).own_device();
  return used && used->kind == kind ? *used : own_device(kind);
}

/// Returns a tensor that owns `bytes`.
Tensor kept(std::vector<std::byte> bytes) {
  auto const held = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return Tensor::from_blob(held->data(), {static_cast<std::int64_t>(held->size())}, Dtype::u8, [held](void*) {});
}

}  // namespace

TensorDict broadcast_dict_from(Collective const& group, TensorDict dict, int root) {
  DictMetadata metadata;
  bool const mine = group.rank() == root;
  auto const bytes = detail::broadcast_bytes(group, "broadcast_tensor_dict", root, [&] {
    metadata = encode_dict(dict, [](std::string const&, Tensor const&) { return 1; });
    require_own_device(group, metadata.tensors, "broadcast_tensor_dict");
    return std::move(metadata.bytes);
  });
  DecodedDict decoded;
  if (!mine) {
    decoded = run_own_part(group, "broadcast_tensor_dict", [&] {
      return decode_dict(bytes, [&](Shape const& shape, Dtype dtype, Device::Kind kind) {
        auto const device = receiving_device(group, kind, "broadcast_tensor_dict");
        return allocate_result(group, "broadcast_tensor_dict", [&] { return Tensor::empty(shape, dtype, device); });
      });
    });
  }
  for (auto& [tensor, travel, parts] : mine ? metadata.tensors : decoded.tensors) {
    auto view = bytes_of(tensor, 0, tensor.nbytes());
    group.broadcast(view, {root});
  }
  return mine ? std::move(dict) : std::move(decoded.dict);
}

DictSend::DictSend(Collective const& group, TensorDict const& dict, PartsOf const& parts_of, DictRoute const& route) {
  DictMetadata metadata;
  std::exception_ptr error;
  try {
    metadata = encode_dict(dict, parts_of);
    require_own_device(group, metadata.tensors, "send_tensor_dict");
  } catch (...) {
    error = std::current_exception();
    metadata.bytes = encode_exception(error);
  }
  auto head = BlockHeader::of(metadata.bytes, error != nullptr);
  head.number = route.number;
  auto const post = [&](Tensor const& tensor, Tag tag) { messages_.push_back(group.isend(tensor, route.dst, tag)); };
  auto const* const from = reinterpret_cast<std::byte const*>(&head);
  post(kept({from, from + sizeof head}), dict_head_tag);
  if (!head.is_inlined())
    for_each_piece(kept(std::move(metadata.bytes)), [&](Tensor const& piece) { post(piece, dict_body_tag(head)); });
  if (error) {
    try {
      wait();                 // tell the receiver before this rank throws
    } catch (Error const&) {  // the error that it would have been told is the cause
    }
    std::rethrow_exception(error);
  }
  for (auto const& travelling : metadata.tensors) {
    auto const own = travelling.travel == TransferMode::in_parts
                         ? part_of(travelling, route.part)
                         : bytes_of(travelling.tensor, 0, travelling.tensor.nbytes());
    for_each_piece(own, [&](Tensor const& piece) { post(piece, dict_tensor_tag(head)); });
  }
}

bool DictSend::test() {
  while (!messages_.empty() && messages_.front().test()) messages_.pop_front();
  return messages_.empty();
}

void DictSend::wait() {
  for (; !messages_.empty(); messages_.pop_front()) messages_.front().wait();
}

DictReceive::DictReceive(Collective const& group, int src, std::shared_ptr<DictReceiveQueue> receive_queue,
                         std::optional<Collective> all_gather_group)
    : group_(group),
      src_(src),
      receive_queue_(std::move(receive_queue)),
      all_gather_group_(std::move(all_gather_group)),
      head_tensor_(Tensor::empty({static_cast<std::int64_t>(sizeof(BlockHeader))}, Dtype::u8)) {
  receive_queue_->join(*this);
}

DictReceive::~DictReceive() { receive_queue_->leave(*this); }

bool DictReceive::receives_completed(bool may_wait) {
  return with_operation_name(receiving, [&] {
    for (; !messages_.empty(); messages_.pop_front()) {
      if (may_wait) {
        messages_.front().wait();
      } else if (!messages_.front().test()) {
        return false;
      }
    }
    return true;
  });
}

bool DictReceive::post_receives(bool may_wait) noexcept {
  try {
    while (stage_ < Stage::tensors) {
      if (!receives_completed(may_wait)) return false;
      run_own_part(group_, receiving, [&] { next_stage(); });
    }
  } catch (...) {
    failure_ = std::current_exception();
    messages_.clear();
  }
  return true;
}

bool DictReceive::advance(bool may_wait) {
  if (!failure_ && stage_ < Stage::joining) {
    if (!receive_queue_->carry_on(*this, may_wait)) return false;
    try {
      if (!failure_ && !receives_completed(may_wait)) return false;
      stage_ = Stage::joining;
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

void DictReceive::next_stage() {
  if (stage_ == Stage::queued) {
    messages_.push_back(group_.irecv(head_tensor_, src_, dict_head_tag));
    stage_ = Stage::head;
    return;
  }
  if (stage_ == Stage::head) {
    std::memcpy(&head_, head_tensor_.bytes().data(), sizeof head_);
    body_ = head_.inlined_bytes();
    stage_ = Stage::body;
  } else {
    auto const came = piece_.bytes();
    body_.insert(body_.end(), came.begin(), came.end());
  }
  receive_body();
}

void DictReceive::receive_body() {
  if (body_.size() < head_.size) {
    auto const left = std::min<std::uint64_t>(head_.size - body_.size(), largest_piece);
    piece_ = Tensor::empty({static_cast<std::int64_t>(left)}, Dtype::u8);
    messages_.push_back(group_.irecv(piece_, src_, dict_body_tag(head_)));
    return;
  }
  if (head_.failed != 0) throw peer_exception(group_, receiving, {src_}, body_);
  decoded_ = decode_dict(body_, [this](Shape const& shape, Dtype dtype, Device::Kind kind) {
    return memory_on(receiving_device(group_, kind, receiving), shape, dtype);
  });
  receive_tensors();
  stage_ = Stage::tensors;
}

void DictReceive::receive_tensors() {
  for (auto const& travelling : decoded_.tensors) {
    auto const nbytes = travelling.tensor.nbytes();
    // A part has its own memory, because the all-gather reads the parts while it writes the whole tensor.
    auto const& to = parts_.emplace_back(
        travelling.travel == TransferMode::whole
            ? bytes_of(travelling.tensor, 0, nbytes)
            : memory_on(travelling.tensor.device(), {static_cast<std::int64_t>(nbytes) / travelling.parts}, Dtype::u8));
    for_each_piece(to, [&](Tensor piece) { messages_.push_back(group_.irecv(piece, src_, dict_tensor_tag(head_))); });
  }
}

Tensor DictReceive::memory_on(Device device, Shape const& shape, Dtype dtype) {
  auto const allocate = [&] { return Tensor::empty(shape, dtype, device); };
  if (device.kind == Device::Kind::cpu) return allocate_result(group_, receiving, allocate);
  try {
    return allocate();
  } catch (UnavailableError const& e) {
    if (!lacks_memory_) lacks_memory_.emplace(own_part_failure(e, receiving, *group_.transport()));
    return Tensor::empty(shape, dtype);
  }
}

void DictReceive::require_memory() {
  if (!lacks_memory_) return;
  bool const joins = std::any_of(decoded_.tensors.begin(), decoded_.tensors.end(),
                                 [](auto const& one) { return one.travel == TransferMode::in_parts; });
  if (joins && all_gather_group_)
    all_gather_group_->abort(std::string("there is no memory for its part of a call: ") + lacks_memory_->what());
  throw UnavailableError(*lacks_memory_);
}

void DictReceive::join() {
  require_memory();
  for (std::size_t i = 0; i < decoded_.tensors.size(); ++i) {
    auto const& [tensor, travel, parts] = decoded_.tensors[i];
    if (travel != TransferMode::in_parts) continue;
    int const here = all_gather_group_ ? all_gather_group_->world_size() : 0;
    if (here != parts) {
      throw UsageError(
          error_in(*group_.transport(),
                   {.operation = receiving,
                    .message = "the sender sends tensors in parts, but this rank has no matching all_gather_group",
                    .expected = "an all_gather_group of " + std::to_string(parts),
                    .got = here == 0 ? "none" : std::to_string(here),
                    .failed_ranks = {src_}}));
    }
    auto whole = bytes_of(tensor, 0, tensor.nbytes());
    all_gather_group_->all_gather(whole, parts_[i]);
  }
}

TensorDict const& DictReceive::wait() {
  static_cast<void>(advance(true));
  if (stage_ == Stage::done) return decoded_.dict;
  try {
    with_operation_name(receiving, [&] { join(); });
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
  parts_.clear();
  stage_ = Stage::done;
  return decoded_.dict;
}

}  // namespace crossrank
