// Checking the names of a model with many tensors takes time linear in their number. The tests compare the processor
// time of this thread, which does not depend on the load of the machine.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "tests/support/growth.hpp"
#include "workspace/checkpoint/plan/checks/check_layers.hpp"
#include "workspace/checkpoint/plan/checks/check_model.hpp"

namespace crossrank::checkpoint {
namespace {

TEST(LinearChecks, layers_that_all_differ) {
  EXPECT_LT(test::growth([](int keys) {
              std::vector<std::string> names;
              // Each layer has a tensor of its own, and each pair of layers shares one.
              for (int i = 0; i < keys / 2; ++i) {
                names.push_back("model.layers." + std::to_string(i) + ".w" + std::to_string(i / 2) + ".weight");
                names.push_back("model.layers." + std::to_string(i) + ".gate_proj.weight");
              }
              EXPECT_TRUE(check_siblings(names).empty());
            }),
            test::max_growth);
}

TEST(LinearChecks, layers_that_all_lack_a_matrix) {
  EXPECT_LT(test::growth([](int keys) {
              std::vector<std::string> names;
              for (int i = 0; i < keys / 2; ++i) {
                auto const prefix = "model.layers." + std::to_string(i) + ".mlp" + std::to_string(i) + ".";
                names.push_back(prefix + "gate_proj.weight");
                names.push_back(prefix + "up_proj.weight");
              }
              EXPECT_EQ(check_missing_tensors(names).size(), as_size(keys / 2));
            }),
            test::max_growth);
}

}  // namespace
}  // namespace crossrank::checkpoint
