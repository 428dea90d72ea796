"""Masks by brute force, with Python's own regular expressions."""


def allowed_tokens(vocabulary: list[str], texts: list[str], said: list[str]) -> list[str]:
    """Tokens that keep the output a prefix of one of `texts`; "<eos>" at an end."""
    start = "".join(said)
    allowed = [token for token in vocabulary if any(text.startswith(start + token) for text in texts)]
    return [*allowed, "<eos>"] if start in texts else allowed


def num_allowed(vocabulary: list[str], texts: list[str], said: list[str]) -> int:
    return len(allowed_tokens(vocabulary, texts, said))


def mask_words(vocab_size: int) -> int:
    """int32 words of one mask."""
    words = 0
    while 32 * words < vocab_size:
        words += 1
    return words


def mask_bytes(vocab_size: int, requests: int, k: int = 0) -> int:
    """Masks of a step: one after the newest token of each structured request and one after each of k drafts."""
    return sum(4 * mask_words(vocab_size) for _ in range(requests * (k + 1)))


def legal_prefix(texts: list[str], said: list[str], drafts: list[str]) -> int:
    """Drafts from the left that keep the output a beginning of one of `texts`."""
    start, count = "".join(said), 0
    for draft in drafts:
        start += draft
        if not any(text.startswith(start) for text in texts):
            break
        count += 1
    return count


def forced_positions(texts: list[str], said: str) -> int:
    """Places of `said` at which all texts that agree so far go on alike, its end included."""
    count = 0
    for place in range(len(said) + 1):
        following = {text[place : place + 1] for text in texts if text[:place] == said[:place]}
        count += len(following) == 1
    return count


def deferred_mask_period(
    forward: float, sample: float, plan: float, output: float, mask: float, steps: int = 40
) -> float:
    """Time between two tokens when sampling is launched behind the masks and the next step is planned behind it.

    A time line: `host` is when the CPU is free, `done` when the GPU has sampled the step before.
    """
    host = done = 0.0
    ends = []
    for _ in range(steps):
        launched = host + plan
        forwarded = max(launched, done) + forward
        host = max(launched, done) + output + mask
        done = max(forwarded, host) + sample
        ends.append(done)
    return ends[-1] - ends[-2]
