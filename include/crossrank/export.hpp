#pragma once

/// Marks what `libcrossrank` offers to programs that link it; everything else stays inside.
#if defined(CROSSRANK_STATIC)
#define CROSSRANK_EXPORT
#else
#define CROSSRANK_EXPORT __attribute__((visibility("default")))
#endif
