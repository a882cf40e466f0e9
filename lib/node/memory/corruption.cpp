#include "lib/node/memory/corruption.hpp"

#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::node {

void throw_corrupt(CorruptField word) {
  throw FormatError({.operation = std::move(word.operation),
                     .message = "the control segment is corrupt: " + word.place + ", field " + word.field,
                     .expected = std::move(word.expected),
                     .got = std::move(word.got),
                     .resource = "control segment, " + word.place,
                     .hint = "a process has written over the memory that the ranks of this job share: restart the job",
                     .group_usable = false,
                     .section = word.field});
}

std::string block_text(std::uint32_t block) { return "group block " + std::to_string(block); }

}  // namespace crossrank::node
