// The gate of SwiGLU.
#pragma once

#include "vector.h"

// x / (1 + e^-x), from e^-|x| so that nothing overflows.
inline vfloat silu(vfloat x) {
    const vfloat e = exp_nonpositive(select(x < 0.0f, x, -x));
    return x * select(x < 0.0f, e, splat(1.0f)) / (1.0f + e);
}
