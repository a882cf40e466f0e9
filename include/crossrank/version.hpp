#pragma once

// The only definition of the version. CMake reads the three numbers here.
#define CROSSRANK_VERSION_MAJOR 0
#define CROSSRANK_VERSION_MINOR 1
#define CROSSRANK_VERSION_PATCH 0

#define CROSSRANK_VERSION_TEXT_OF(number) #number
#define CROSSRANK_VERSION_TEXT(number) CROSSRANK_VERSION_TEXT_OF(number)
/// The version as text: "1.2.3".
#define CROSSRANK_VERSION                         \
  CROSSRANK_VERSION_TEXT(CROSSRANK_VERSION_MAJOR) \
  "." CROSSRANK_VERSION_TEXT(CROSSRANK_VERSION_MINOR) "." CROSSRANK_VERSION_TEXT(CROSSRANK_VERSION_PATCH)
