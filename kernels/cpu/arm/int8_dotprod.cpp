// The product of int8 matrices with sdot.
#include "shared.h"

#define int8_linear int8_linear_dotprod

namespace with_dotprod {
#include "../int8.cpp"
}
