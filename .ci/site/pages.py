"""A hook of MkDocs: the pages of the site are those of the repository, at the places where they lie in it.

`docs/README.md` says which pages there are: its headings and tables become the navigation. A link to another
file of the repository, such as a `.proto`, leads to a page that shows that file; a folder to its README.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INDEX = "docs/README.md"
PLACES = ("", "docs/**/", "conformance/", "examples/", "examples/*/", "proto/**/")
LINK = re.compile(r"(?<=\]\()(?!https?:|#)(?P<path>[^)#\s]+)")
LANGUAGES = {".py": "python", ".proto": "protobuf", ".ts": "ts", ".go": "go", ".cpp": "cpp", ".yml": "yaml"}


def page_paths() -> list[str]:
    """The Markdown files of the repository, relative to its root."""
    found = {page for place in PLACES for page in ROOT.glob(f"{place}*.md")}
    return sorted(page.relative_to(ROOT).as_posix() for page in found)


def target(link: str, page: str) -> str:
    """What a link of a page leads to, relative to the root; a folder is its README."""
    path = os.path.normpath(PurePosixPath(page).parent / link)
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def targets(page: str) -> list[str]:
    """What the links of a page lead to, in order, each once."""
    links = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    return list(dict.fromkeys(target(link, page) for link in links))


def is_shown_as_source(path: str) -> bool:
    """Whether a file gets a page that shows it."""
    return not path.endswith(".md") and (ROOT / path).is_file()


def entry(page: str) -> str | dict[str, list[str]]:
    """A page in the navigation; the README of a folder stands above the pages of that folder it links to."""
    folder = PurePosixPath(page).parent
    if PurePosixPath(page).name != "README.md" or page in ("README.md", INDEX):
        return page
    below = [path for path in targets(page) if path.endswith(".md") and folder in PurePosixPath(path).parents]
    return {title(page): [page, *below]} if below else page


def title(page: str) -> str:
    """The first heading of a page."""
    return (ROOT / page).read_text(encoding="utf-8").split("# ", 1)[1].splitlines()[0]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the headings and tables of the index the navigation."""
    nav: list[dict[str, list[object]]] = []
    listed = {INDEX}
    for section in (ROOT / INDEX).read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, text = section.split("\n", 1)
        pages = [target(link, INDEX) for link in LINK.findall(text)]
        pages = [page for page in dict.fromkeys(pages) if page.endswith(".md") and page not in listed]
        listed.update(pages)
        nav.append({heading.strip(): [entry(page) for page in pages]})
    next(iter(nav[0].values())).insert(1, INDEX)
    config.nav = nav
    config.watch = [str(ROOT / INDEX)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by the pages, pictures and linked sources of the repository."""
    ours = [file for file in files if file.src_dir != config.docs_dir]  # the theme's
    pages = page_paths()
    pictures = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "images").iterdir()]
    ours += [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in pages + pictures]
    ours.append(File("site.css", str(HERE), config.site_dir, config.use_directory_urls))
    for path in sorted({path for page in pages for path in targets(page) if is_shown_as_source(path)}):
        shown = File.generated(config, f"{path}.md", content=source_page(path))
        shown.inclusion = InclusionLevel.NOT_IN_NAV
        ours.append(shown)
    return Files(ours)


def source_page(path: str) -> str:
    """A file of the repository as a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    fence = "`" * (3 + max((len(run) for run in re.findall(r"`{3,}", text)), default=0))
    language = LANGUAGES.get(PurePosixPath(path).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n{fence}{language}\n{text}\n{fence}\n"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to files and folders to their pages."""

    def led(link: re.Match[str]) -> str:
        path = target(link["path"], page.file.src_uri)
        return os.path.relpath(f"{path}.md" if is_shown_as_source(path) else path, start)

    start = PurePosixPath(page.file.src_uri).parent
    return LINK.sub(led, markdown)
