"""Sampling filters and the cost of several completions, on paper."""


def allowed_tokens(
    probs: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[int]:
    """Token by token: keep it if it survives min_p, then top_k among those, then top_p among those."""
    weights = {token: p ** (1 / temperature) for token, p in enumerate(probs)}
    best = max(weights.values())
    left = {token: w for token, w in weights.items() if w >= min_p * best}
    if top_k:
        left = dict(sorted(left.items(), key=lambda entry: -entry[1])[:top_k])
    total, mass, kept = sum(left.values()), 0.0, []
    for token, weight in sorted(left.items(), key=lambda entry: -entry[1]):
        if mass >= top_p * total:
            break
        mass += weight
        kept.append(token)
    return sorted(kept)


def num_allowed(
    probs: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> int:
    return len(allowed_tokens(probs, temperature, top_k, top_p, min_p))


def top_after_filters(
    probs: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> float:
    """Probability of the likeliest token among those that are left."""
    kept = allowed_tokens(probs, temperature, top_k, top_p, min_p)
    return round(softmax_top([probs[token] for token in kept], temperature), 3)


def penalised(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    token: int,
) -> float:
    """The logit of one token behind all three penalties, as OpenAI's and CTRL's definitions have it."""
    value = logits[token]
    if token in prompt or token in output:
        value = value / repetition_penalty if value > 0 else value * repetition_penalty
    return value - frequency_penalty * output.count(token) - (presence_penalty if token in output else 0.0)


def softmax_top(probs: list[float], temperature: float) -> float:
    """Share of the most likely token when odds are raised to 1 / temperature."""
    best = max(probs)
    return 1 / sum(float((p / best) ** (1 / temperature)) for p in probs)


def prefill_tokens(copies: int, prompt: int, block_size: int) -> int:
    """The first copy computes everything, the others what is behind the last full block; never nothing."""
    return prompt + (copies - 1) * (prompt - (prompt - 1) // block_size * block_size)


def blocks_of_family(copies: int, prompt: int, output: int, block_size: int) -> int:
    """Blocks when all copies write their last token: the prompt's full ones once, the rest each its own.

    A hit never covers a whole prompt, so a prompt that ends with a block shares one block less.
    """
    shared = (prompt - 1) // block_size
    return shared + copies * (-(-(prompt + output - 1) // block_size) - shared)


def beam_requests(beam_width: int, max_tokens: int) -> int:
    """One request for the prompt; then each beam asks once per further token. The first step already gives the
    beams, since it ranks twice as many candidates as there are beams."""
    return 1 + beam_width * (max_tokens - 1)
