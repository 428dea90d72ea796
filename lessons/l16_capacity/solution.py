"""Reference solutions of lesson 16."""

# ruff: noqa: E402, F811

# exercise 16.1
import math


def max_batch(kv_tokens: int, prompt_len: int, output_len: int, max_num_seqs: int) -> int:
    return min(max_num_seqs, kv_tokens // (prompt_len + output_len // 2))


def replicas_needed(
    rate: float, prefill_s: float, output_len: int, step_s: float, batch: int, utilisation: float
) -> int:
    if batch < 1 or not 0 < utilisation <= 1:
        raise ValueError(
            f"batch is {batch} and utilisation {utilisation}; expected at least 1, and a share in (0, 1]"
        )
    prefill_busy = rate * prefill_s
    decode_busy = rate * output_len * step_s / batch
    return math.ceil((prefill_busy + decode_busy) / utilisation)


# exercise 16.2
def cost_per_million_tokens(dollars_per_hour: float, tokens_per_s: float) -> float:
    return dollars_per_hour / 3600 / tokens_per_s * 1e6


def break_even_load(dollars_per_hour: float, full_tokens_per_s: float, api_price: float) -> float | None:
    share = cost_per_million_tokens(dollars_per_hour, full_tokens_per_s) / api_price
    return share if share <= 1 else None


# exercise 16.3
def diagnose(yesterday: dict[str, float], today: dict[str, float]) -> str:
    def grew(name: str) -> float:
        return today[name] / max(yesterday[name], 1e-9)

    if grew("answer_tokens") > 1.5:
        return "missing_stop"
    if grew("requests_per_s") > 1.5:
        return "overload"
    if grew("hit_rate") < 0.5:
        return "volatile_prompt"
    if today["preemptions"] > yesterday["preemptions"] and today["kv_usage"] > 0.95:
        return "small_pool"
    if grew("itl_p50") > 1.5:
        return "throttled_gpu"
    if grew("itl_max") > 2:
        return "no_chunking"
    if grew("ttft_p50") > 2:
        return "tiny_budget"
    return "none"
