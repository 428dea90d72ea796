// Attention with bfdot.
#include "shared.h"

#define paged_attention paged_attention_bf16

namespace with_bf16 {
#include "../attention.cpp"
}
