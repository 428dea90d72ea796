from typing import Literal

from engine.sampling_params import SamplingParams
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._live import Watched


@experiment("E64", seconds=20)
def image_hits(
    ctx: Context,
    same_image: bool = True,
    text_differs: Literal["nowhere", "front", "behind"] = "nowhere",
    words_before: int = arg(20, 0, 60),
    words_behind: int = arg(20, 1, 60),
    block_size: int = arg(16, 4, 64),
) -> Result:
    """Send prompts with images and look at placeholder tokens, cache hits and encoder runs.

    Two prompts with one image each, on the shipped model with the toy encoder of engine.multimodal. text_differs: the
    second prompt has another first word, or another word right after the image.

    Returns:
        Figures of the second prompt.
        prompt_tokens [tokens]
        placeholder_tokens [tokens]: Tokens that stand for the image.
        image_at [position]
        cached_tokens [tokens]
        encoder_runs [runs]: Encoder runs for both prompts.
        same_token_ids: Both prompts have the same token ids.
    """
    import numpy as np

    from engine.multimodal.encoder import NUM_TOKENS

    pictures = [np.full((40, 40, 3), 60, np.uint8), np.full((40, 40, 3), 60 if same_image else 200, np.uint8)]
    words = [
        ("stock", "stock"),
        ("price" if text_differs == "front" else "stock", "price" if text_differs == "behind" else "stock"),
    ]
    with ctx.llm(
        limit_mm_per_prompt={"image": 1}, max_model_len=512, block_size=block_size, enforce_eager=True
    ) as llm:
        outputs = []
        watched = Watched(llm)
        for picture, (first, second) in zip(pictures, words, strict=True):
            text = f"{first}{' manga' * words_before} <image> {second}{' manga' * words_behind}"
            prompt = {"prompt": text, "multi_modal_data": {"image": picture}}
            outputs += llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
    ids = [output.prompt_token_ids for output in outputs]
    return Result(
        prompt_tokens=len(ids[1]),
        placeholder_tokens=NUM_TOKENS,
        image_at=ids[1].index(0),
        cached_tokens=outputs[1].num_cached_tokens,
        encoder_runs=watched.total("encoder_cache_queries") - watched.total("encoder_cache_hits"),
        same_token_ids=ids[0] == ids[1],
    )
