"""Repairs of multimodal_merge that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "encodes_again",
        "check_the_same_image_is_encoded_once",
        "forgets what it encoded for earlier requests",
        (
            """\
            raise ValueError(f"the text has room for {places} images, {len(images)} were given")
""",
            """\
            raise ValueError(f"the text has room for {places} images, {len(images)} were given")
        self.encoded.clear()
""",
        ),
    ),
    Mutant(
        "encodes_nothing",
        "check_text_alone_is_text",
        "calls the encoder and adds a placeholder for text alone",
        (
            """\
        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
""",
            """\
        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
        if not images:
            return [*tokens, self.placeholder]
""",
        ),
    ),
    Mutant(
        "extra_images_are_dropped",
        "check_a_count_that_does_not_match_is_refused",
        "refuses only if images are missing",
        (
            "        if places != len(images):\n",
            "        if places > len(images):\n",
        ),
    ),
    Mutant(
        "images_first",
        "check_an_image_stands_where_the_text_says",
        "all images go before the text",
        (
            "        return combined\n",
            """\
        return [x for x in combined if isinstance(x, float)] + [
            x for x in combined if not isinstance(x, float)
        ]
""",
        ),
    ),
    Mutant(
        "last_image_first",
        "check_images_keep_their_order",
        "takes the images from the end",
        (
            "        upcoming = iter(images)\n",
            "        upcoming = iter(images[::-1])\n",
        ),
    ),
    Mutant(
        "one_image_for_all",
        "check_other_images_are_other_features",
        "keeps one entry for all images",
        (
            """\
        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
""",
            "        new = [image for image in dict.fromkeys(images) if not self.encoded]\n",
        ),
        (
            """\
            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
""",
            """\
            combined += (
                (next(upcoming), next(iter(self.encoded.values())))[1]
                if token == self.placeholder
                else [token]
            )
""",
        ),
    ),
)
