#pragma once
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "tests/collectives/connected_ranks.hpp"
#include "tests/collectives/coordinator/group_suite.hpp"
#include "tests/collectives/coordinator/group_values.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/thread_ranks.hpp"
