// The product of int8 matrices with sdot and smmla.
#include "shared.h"

#define int8_linear int8_linear_i8mm

namespace with_i8mm {
#include "../int8.cpp"
}
