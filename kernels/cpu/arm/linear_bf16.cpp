// The products of bf16 matrices with bfdot and bfmmla.
#include "shared.h"

#define gemm_bf16 gemm_bf16_mmla
#define norm_gemm_bf16 norm_gemm_bf16_mmla

namespace with_bf16 {
#include "../gemm_bf16.cpp"
}
