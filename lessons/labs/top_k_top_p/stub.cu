// Lab cuda-top-k-top-p: one token for each row of logits: temperature, top-k, top-p, one draw; no sort of a row.
//
// The seam is sample of kernels/ops.py, without min_p and with the noise given. Gumbel-max: Maddison et al. 2014
// (1411.0030); nucleus sampling: Holtzman et al. 2019 (1904.09751); filters without a sort: FlashInfer's sampling
// kernels, Qrita (Park et al. 2026, 2602.01518). vLLM 0.32: v1/sample/ops/topk_topp_sampler.py (sorts),
// topk_topp_triton.py (Qrita).
//
//     x[i]     = (logits[i] - highest logit) / temperature        never above 0, so exp(x) never overflows
//     top_k    keeps the tokens whose logit is at least the top_k-th highest
//     top_p    of these it keeps the most probable, up to and including the one with which their sum of exp(x) reaches
//              top_p times the sum over all that top_k keeps
//     token    = the one with the highest x + noise among what stays; the lowest id of equals
//
// With Gumbel noise, -log(-log(u)), that token is a sample of the softmax over what stays. Noise may be any finite
// number.
//
// Tokens with equal logits stay or go together, as in this engine. So each filter is a floor, found without an order.
// (vLLM keeps all that tie with the k-th logit where it sorts; its Triton kernel keeps k, the lowest ids of those that
// tie.)
//
// top_k is 1 to vocab, and vocab switches it off; top_p is above 0 and at most 1, and 1 switches it off. Temperature 0
// takes the highest logit, the lowest id of equals, whatever the rest says; other temperatures are at least 1e-5. A
// logit of -INFINITY forbids a token: it is never drawn, and every row has another. There are no NaN. Sums in fp32 are
// exact enough: in the checks no share of the sum lies within 1e-4 of top_p, and different logits and different scores
// x + noise lie apart.
//
// logits, noise  fp32 [rows, vocab]        temperature, top_p  fp32 [rows]
// token_ids      int32 [rows]              top_k               int32 [rows]
//
// Launched with one block of THREADS = 256 threads for each row: blockIdx.x is the row. It has 48 KB
// (49,152 bytes) of dynamic shared memory, see DYNAMIC_SHARED. vocab is a multiple of 4, so that a thread can load 16
// bytes at once, and at most 1,000,000. The result must not depend on the order in which threads run. common.cuh
// (kernels/cuda) has load, reduce_block and more.
//
// A plan: for numbers >= 0 the bits of a float, read as an integer, have the order of the floats. So with the
// distances -x the floor can be searched digit by digit, from the highest: in each pass the block adds up, for each
// value of the next five bits, the tokens (or their exp) whose higher bits are those found so far. The first digit at
// which the sum from the top reaches the target is the next digit of the floor.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void top_k_top_p(const float* logits, const float* noise, const float* temperature,
                                       const int* top_k, const float* top_p, int* token_ids, int vocab) {
#error "write it: top_k_top_p"
}
