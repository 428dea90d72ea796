// What all forms of the kernels share. A file that compiles a kernel once more includes this first, then the kernel inside
// of a namespace: its templates must have other names than those for ARMv8.0, or the linker would take either.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "../graph.h"
#include "../threads.h"
