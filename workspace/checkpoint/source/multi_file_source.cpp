#include "workspace/checkpoint/source/multi_file_source.hpp"

#include <set>
#include <string_view>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {

MultiFileSource::MultiFileSource(std::string name, std::vector<std::shared_ptr<ShardSource const>> parts,
                                 Json attributes)
    : DescribedSource(std::move(name), std::move(attributes)), parts_(std::move(parts)) {
  std::set<std::string_view> names;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    auto const& source = *parts_[part];
    bytes_on_disk_ += source.bytes_on_disk();
    attributes_.update(source.attributes());
    for (std::size_t i = 0; i < source.tensors().size(); ++i) {
      auto const& tensor = source.tensors()[i];
      if (!names.insert(tensor.name).second) {
        throw FormatError({.operation = open_operation,
                           .message = "the tensor \"" + tensor.name + "\" is in two files of one shard",
                           .got = "a second copy in " + source.name(),
                           .resource = name_,
                           .hint = "remove the file that does not belong to the checkpoint",
                           .section = to_string(ErrorSection::files)});
      }
      tensors_.push_back(tensor);
      places_.emplace_back(part, i);
    }
  }
}

void MultiFileSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  if (tensor >= places_.size()) {
    throw UsageError({.operation = "checkpoint read",
                      .message = "the tensor index is out of range",
                      .got = std::to_string(tensor),
                      .resource = name_});
  }
  parts_[places_[tensor].first]->read(places_[tensor].second, offset, out);
}

}  // namespace crossrank::checkpoint
