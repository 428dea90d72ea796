// Storage types by number, as Python passes them.
#pragma once

#include "vector.h"

enum DType : int64_t { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, FLOAT8_E4M3 = 3, INT8 = 4 };

// call(T{}) with the type that `dtype` names. Python checks the number before it comes here.
template <typename Call>
inline void with_float_type(int64_t dtype, Call call) {
    if (dtype == FLOAT32) call(float{});
    if (dtype == FLOAT16) call(float16{});
    if (dtype == BFLOAT16) call(bfloat16{});
}
