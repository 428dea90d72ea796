"""Quantised shop models: errors of outputs and answers."""

from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy, worker_of


def texts(folder: Any, language: str, count: int, seed: int, split: str = "train") -> list[Any]:
    """Conversations in one language as token ids int64 [1, n]."""
    from engine.quant.quantizer.calibration import tokenized
    from engine.zoo.corpus import conversations, to_text
    from engine.zoo.tokenizer import load_tokenizer

    matching = (c for c in conversations(split, seed, 40 * count) if c.language == language)
    chosen = [to_text(conversation) for conversation, _ in zip(matching, range(count), strict=False)]
    return tokenized(chosen, load_tokenizer(folder))


def quantised(
    folder: Any, method: str, samples: list[Any], group_size: int, **options: Any
) -> tuple[Any, Any]:
    """Return the float model with quantised matrices, and the quantiser's report."""
    from engine.quant.quantizer.recipe import Recipe
    from engine.quant.quantizer.run import Report, load_float_model, quantize

    model, original = load_float_model(folder)
    recipe = Recipe.create(method, group_size=group_size, **options)
    report = Report(folder.name, recipe)
    quantize(model, recipe, samples, original, report)
    return model, report


def divergence(exact: Any, model: Any, samples: list[Any]) -> float:
    """KL(exact || model) of the next token, nats per token."""
    import torch

    total = 0.0
    with torch.no_grad():
        for sample in samples:
            expected = exact.logits(exact.hidden(sample)[0]).log_softmax(-1)
            logprobs = model.logits(model.hidden(sample)[0]).log_softmax(-1)
            total += float((expected.exp() * (expected - logprobs)).sum())
    return total / sum(int(sample.shape[1]) for sample in samples)


def exact_match(folder: Any, model: Any, language: str, count: int) -> list[bool]:
    """Whether each unseen test question in one language is answered right to the last character."""
    from engine.zoo.corpus import draw_cases
    from engine.zoo.evaluate import forced_match
    from engine.zoo.tokenizer import load_tokenizer

    cases = [case for case in draw_cases(6 * count, seed=5) if case.language == language][:count]
    return forced_match(model, load_tokenizer(folder), cases) if cases else []


LAYER = 2


@experiment("E31")
def outliers(factor: int = arg(64, 1, 4096), tokens: int = arg(256, 8, 1024)) -> Result:
    """Multiply real activations with outlier channels in several 8-bit ways and compare the errors.

    Inputs of the query projection of layer 2 of `shop` on a shop conversation. `factor` (a power of two) enlarges two
    channels and shrinks the weights that read them by the same factor, so the float model stays the same bit for bit.

    Returns: |y - exact| / |exact| over all outputs of one projection (Frobenius norms).
        weight_only: W8A16: int8 weights per output channel, activations as they are.
        w8a8_tensor: int8 weights; one scale for all activations of the batch.
        w8a8_token: One scale for each token: what int8 kernels do.
        llm_int8: Per token, but activations beyond 6 and the weights that they meet stay floats.
        smoothquant: Per token, after outliers were moved into the weights.
        fp8: e4m3 weights per channel, activations per token.
        order: Names from the smallest error to the largest.
        outlier_ratio [x]: Largest |activation| over the median one.
    """
    import torch

    from engine.quant.matrices import llm_int8_linear
    from engine.quant.quantizer.folding import inject_outliers
    from engine.quant.quantizer.methods import smoothing_scale
    from engine.zoo.export import load_model
    from engine.zoo.registry import resolve
    from kernels import ops
    from kernels.ops import dequantise_int8, quantise_fp8, quantise_int8

    folder = resolve("shop")
    model: Any = load_model(folder)
    if factor > 1:
        inject_outliers(model, factor=float(factor))
    projection = model.model.layers[LAYER].self_attn.q_proj
    seen: list[Any] = []
    projection.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0].detach()))
    with torch.no_grad():
        for sample in texts(folder, "en", 3, seed=3):
            model.hidden(sample)
    x, weight = torch.cat(seen)[:tokens].contiguous(), projection.weight.detach()
    exact = x.double() @ weight.double().T
    qweight, scale = quantise_int8(weight)
    restored, flat = dequantise_int8(qweight, scale), quantise_int8(x.reshape(1, -1))
    smooth = smoothing_scale([weight], x.abs().amax(0), 0.5)
    with torch.no_grad():
        outputs = {
            "weight_only": x @ restored.T,
            "w8a8_tensor": dequantise_int8(*flat).reshape(x.shape) @ restored.T,
            "w8a8_token": ops.int8_linear(x, qweight, scale),
            "llm_int8": llm_int8_linear(x, qweight, scale, weight=weight),
            "smoothquant": ops.int8_linear(x / smooth, *quantise_int8(weight * smooth)),
            "fp8": ops.fp8_linear(x, *quantise_fp8(weight)),
        }
    errors = {name: float((y.double() - exact).norm() / exact.norm()) for name, y in outputs.items()}
    ratio = float(x.abs().max() / x.abs().median())
    return Result(**errors, order=sorted(errors, key=errors.__getitem__), outlier_ratio=ratio)


METHODS = ("rtn", "gptq", "awq")
Language = Literal["en", "ja"]


@experiment("E34", "E33", seconds=30)
def int4_methods(
    group_size: Literal[8, 16] = 16,
    calibrate: Language = "ja",
    judge: Language = "ja",
    samples: int = arg(3, 1, 16),
) -> Result:
    """Quantise `shop-draft` to 4 bits with RTN, GPTQ and AWQ; calibrate in one language and evaluate in another.

    Returns: KL of the next token from the float model, nats per token, on texts not used for calibration.
        rtn, gptq, awq
        order: Smallest divergence first.
        rtn_layer_error, gptq_layer_error, awq_layer_error: Squared output error over the outputs' squares on
            calibration inputs, mean over all matrices.
        bits [bits]: Per matrix weight of the AWQ checkpoint, scales and zero points included.
    """
    from engine.quant.quantizer.run import load_float_model
    from engine.zoo.registry import resolve

    folder = resolve("shop-draft")
    seen, judged = texts(folder, calibrate, samples, seed=7), texts(folder, judge, 4, seed=11)
    exact, _ = load_float_model(folder)
    made = {method: quantised(folder, method, seen, group_size) for method in METHODS}
    divergences = {method: divergence(exact, model, judged) for method, (model, _) in made.items()}
    return Result(
        **divergences,
        order=sorted(divergences, key=divergences.__getitem__),
        **{f"{method}_layer_error": report.error for method, (_, report) in made.items()},
        bits=made["awq"][1].bits_per_weight,
    )


@experiment("E33", seconds=30)
def calibration_shift(
    method: Literal["rtn", "gptq", "awq"] = "gptq",
    group_size: Literal[8, 16] = 16,
    samples: int = arg(8, 1, 16),
    cases: int = arg(24, 0, 64),
) -> Result:
    """Calibrate 4-bit weights in English and in Japanese, and evaluate both in Japanese.

    Quantises `shop-draft` twice with the engine's quantiser; rtn does not calibrate and shows no gap.

    Returns: KL of the next token from the float model on Japanese texts, nats per token.
        english: Calibrated on English conversations.
        japanese: Calibrated on Japanese ones.
        gap: english - japanese: what the wrong language costs.
        right_english [answers]: Unseen Japanese questions answered right to the last character.
        right_japanese, right_float, cases [answers]
    """
    from engine.quant.quantizer.run import load_float_model
    from engine.zoo.registry import resolve

    folder = resolve("shop-draft")
    judged = texts(folder, "ja", 4, seed=11)
    models = {"float": load_float_model(folder)[0]}
    for name, language in (("english", "en"), ("japanese", "ja")):
        models[name], _ = quantised(folder, method, texts(folder, language, samples, seed=7), group_size)
    divergences = {
        name: divergence(models["float"], models[name], judged) for name in ("english", "japanese")
    }
    right = {name: exact_match(folder, model, "ja", cases) for name, model in models.items()}
    return Result(
        **divergences,
        gap=divergences["english"] - divergences["japanese"],
        **{f"right_{name}": sum(answers) for name, answers in right.items()},
        cases=len(right["float"]),
    )


@experiment("E31", "E32", seconds=40)
def answers(
    ctx: Context,
    quantization: Literal["none", "rtn", "int8", "fp8", "llm_int8", "mxfp4", "nvfp4"] = "fp8",
    kv_cache_dtype: Literal["auto", "fp8", "int8_per_token_head"] = "auto",
    cases: int = arg(40, 1, 120),
) -> Result:
    """Compare the answers of the model `shop` in fewer bits with its full-precision answers on unseen questions.

    Returns: Two engines answer the same test questions greedily, without calibration.
        right_float, right [answers]: Right to the last character.
        lost [share]: (right_float - right) / cases.
        same [answers]: Word for word what the float model says.
        cases [answers]
        kv_bytes_ratio [x]: KV bytes per block of the float engine over this one's.
    """
    from engine.zoo.corpus import draw_cases

    chosen = draw_cases(cases, seed=9)[:cases]
    prompts = [case.prompt for case in chosen]
    params = greedy(96, ignore_eos=False)

    def say(**settings: Any) -> tuple[list[str], int]:
        """Return the answers, and the bytes of a KV block."""
        with ctx.llm(max_num_seqs=32, num_gpu_blocks_override=2048, **settings) as llm:
            texts = [answer.text for answer in generate(llm, prompts, params)]
            return texts, worker_of(llm).runner.kv_cache.blocks.shape[1]

    method = None if quantization == "none" else quantization
    (expected, whole), (answered, part) = say(), say(quantization=method, kv_cache_dtype=kv_cache_dtype)
    right_float, right = (
        sum(text == case.answer for text, case in zip(said, chosen, strict=True))
        for said in (expected, answered)
    )
    return Result(
        right_float=right_float,
        right=right,
        lost=(right_float - right) / cases,
        same=sum(a == b for a, b in zip(expected, answered, strict=True)),
        cases=cases,
        kv_bytes_ratio=whole / part,
    )
