"""Settings of mkdocs, its theme, and mkdocstrings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymdownx.slugs import slugify


def settings(root: Path) -> dict[str, Any]:
    """Return the settings of the site of a checkout, without its folders and navigation."""
    return {
        "site_name": "prep",
        "site_description": "A readable LLM inference engine, and a workbench to prepare for interviews on it",
        "use_directory_urls": False,  # pages link files, so that the site also opens from a disk
        "strict": True,
        "exclude_docs": "!.*",
        "extra_css": ["assets/style.css"],
        "validation": {
            "nav": {"omitted_files": "ignore", "not_found": "warn", "absolute_links": "warn"},
            "links": {
                "not_found": "warn",
                "anchors": "warn",
                "absolute_links": "warn",
                "unrecognized_links": "warn",
            },
        },
        "theme": {
            "name": "material",
            "font": False,  # the reader's own fonts: no other host
            "palette": [
                palette("(prefers-color-scheme: light)", "default", "Switch to dark", "weather-night"),
                palette("(prefers-color-scheme: dark)", "slate", "Switch to light", "weather-sunny"),
            ],
            "features": [
                "navigation.tabs",
                "navigation.indexes",
                "navigation.prune",
                "navigation.top",
                "navigation.footer",
                "content.code.copy",
                "search.highlight",
                "toc.follow",
            ],
        },
        "markdown_extensions": [
            *("attr_list", "tables", "sane_lists", "pymdownx.superfences", "pymdownx.betterem"),
            {"toc": {"permalink": True, "slugify": slugify(case="lower")}},
            {"pymdownx.highlight": {"use_pygments": True}},
        ],
        "plugins": [{"search": {}}, {"mkdocstrings": {"handlers": {"python": python(root)}}}],
    }


def palette(media: str, scheme: str, toggle: str, icon: str) -> dict[str, Any]:
    colors = {"primary": "custom", "accent": "custom"}
    return {
        "media": media,
        "scheme": scheme,
        "toggle": {"icon": f"material/{icon}", "name": toggle},
        **colors,
    }


def python(root: Path) -> dict[str, Any]:
    """Return the settings of the reference: read from the sources, without importing them."""
    options = {
        "allow_inspection": False,
        "docstring_style": None,  # Markdown, with the shapes and errors in sentences
        "heading_level": 2,
        "show_root_heading": True,
        "show_root_full_path": False,
        "show_source": False,
        "show_if_no_docstring": True,
        "show_signature_annotations": True,
        "separate_signature": True,
        "members_order": "source",
        "show_category_heading": False,
        "merge_init_into_class": True,
        "filters": ["!^_"],
    }
    return {"paths": [str(root)], "load_external_modules": False, "options": options}
