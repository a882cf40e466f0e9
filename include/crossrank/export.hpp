#pragma once

/// Exports a symbol from `libcrossrank`. All other symbols are hidden.
#if defined(CROSSRANK_STATIC)
#define CROSSRANK_EXPORT
#else
#define CROSSRANK_EXPORT __attribute__((visibility("default")))
#endif
