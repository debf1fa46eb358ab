"""Can the documents be read? Line length, banned words and reading grade of every page.

Reads README.md, ARCHITECTURE.md and all pages below docs/.

* Lines: at most 120 characters. Parts that a program writes, between `<!-- NAME: written by … -->` and
  `<!-- end of NAME -->`, are left out: their generator decides on their lines.
* Banned words: docs/internals/banned-words.txt, in prose, headings, lists and tables, not in code.
* Grade: Flesch-Kincaid, 0.39 words per sentence + 11.8 syllables per word - 15.59 (Kincaid et al., Navy Research Branch
  Report 8-75, 1975), of prose and lists. Code blocks, tables, headings and generated parts are left out. A piece of
  `code` counts as one word of one syllable; a token without letters, such as a figure, does not count as a word.
  Syllables are counted by groups of vowels, which is right for some nine words in ten.

* Source: the same words in comments, docstrings, messages and identifiers of both halves. `found` and `one` are no
  names either. Names that are stored in files or sent between processes stay: docs/internals/kept-words.txt lists them.

* Messages: every error for users, as far as its text stands where it is raised. It states a remedy, in an argument of
  its own or after "; ". It names its thing or the value: an inserted value, a quotation, an option, a figure or an
  example. It has at most 40 words, and neither a full stop nor a question mark at its end. It says "is not a number",
  not "is no number". A text that another function made is judged there. `TrialError` and `AgentError` need no remedy:
  what failed there is not the user's input, and its cause follows. In the agent, an error needs a remedy if the request
  is at fault; what receives it names the workload or the key.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from frame import Options, Outcome, bench

ROOT = Path(__file__).resolve().parents[1]
BANNED = ROOT / "docs" / "internals" / "banned-words.txt"
KEPT = ROOT / "docs" / "internals" / "kept-words.txt"
NAMES = frozenset({"found", "one"})
"""Words that are fine in a sentence and no name of anything."""
SOURCES = ("src/**/*.py", "benches/**/*.py", "labs/**/*.py")
RUST_SOURCES = ("agent/crates/**/*.rs",)
CONTRACT = ("schema/agent.schema.json", "src/partywall/agent/catalogue.json")
"""Files with the names that the agent shares with others. Of the kept names, the agent may use these."""
LONGEST_LINE = 120
LONGEST_SENTENCE = 40
GRADE_MAX = 11.0

GENERATED = re.compile(r"^<!-- ([\w ]+): written by .*?^<!-- end of \1 -->$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)+(?=\n|\Z)")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()\s]*\)")
ITEM = re.compile(r"^ *(?:[-*+]|\d+\.) +", re.MULTILINE)
TABLE = re.compile(r"^ *\|.*$", re.MULTILINE)
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"”*_]*\s+|\n\s*\n")
WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
# Functions and classes that carry an error's text: with a place and a remedy, with a remedy, and without.
PLACED, REMEDIED, FAILED = ("Problem", "Mistake"), ("UsageError", "CapabilityError"), ("TrialError", "AgentError")
# The last form passes on the text of another error, which states its own remedy.
REMEDY = re.compile(r"; | — |\n|: \{\}$")
# "is no address" instead of "is not an address".
RIDDLE = re.compile(r"(?<!\bthere )(?<!\bhere )\b(?:is|are) no\b(?! longer)")
CONCRETE = re.compile(r"[{'\"`\d]|--|/\w|for example|pip install")
# What an f-string or a format string inserts.
FIELD = re.compile(r"\{[^{}]*\}")
# Full stops that end no sentence.
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|et al|vs|cf|Fig|No)\.")
RUST_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<text>b?r(?P<hash>\#*)".*?"(?P=hash)|b?"(?:\\.|[^"\\])*")
    | (?P<other>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^\\'\n])'|'\w+)
    | (?P<name>[^\W\d]\w*)""",
    re.DOTALL | re.VERBOSE,
)
# A line break in a text of Rust, and the blanks of the next line, which the compiler leaves out.
CONTINUED = re.compile(r"\\\n\s*")
RUST_TESTS = re.compile(r"^ *#\[cfg\((?:all\()?test\b", re.MULTILINE)
# Code before the text of an error, in the same statement. If the request is at fault, the text states a remedy.
USAGE = re.compile(r"\bFault::usage\(|\bproblem\(|\bwrong\w*\(|\bwrong\.push\(")
ERROR = re.compile(
    r"#\[error\(|\bFault::(?:failed|passing|new)\(|\bErr\(|\bok_or(?:_else)?\(|\bmap_err\(|\bwhy[:=] |\blet why\b"
)


@dataclass(frozen=True)
class Fault:
    """A place that breaks a rule."""

    line: int
    text: str


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Removes matches but keeps their line breaks, so that line numbers stay true."""
    return pattern.sub(lambda match: "\n" * match.group().count("\n"), text)


def written(text: str) -> str:
    """What people wrote of a page: without generated parts and comments."""
    return _blank(COMMENT, _blank(GENERATED, text))


def without_code_blocks(text: str) -> str:
    return _blank(INDENTED, _blank(FENCE, text))


def wording(text: str) -> str:
    """Headings, prose, lists and tables, without any code."""
    return LINK.sub(r"\1", _blank(CODE, without_code_blocks(written(text))))


def sentences(text: str) -> list[str]:
    """Sentences of prose and lists. Each item of a list begins one."""
    text = CODE.sub("it", without_code_blocks(written(text)))
    text = HEADING.sub("\n", TABLE.sub("\n", LINK.sub(r"\1", text)))
    text = ABBREVIATION.sub(lambda match: match.group().replace(".", ""), ITEM.sub("\n\n", text))
    return [part for part in SENTENCE_END.split(text) if WORD.search(part)]


def syllables(word: str) -> int:
    """Groups of vowels, less silent endings; at least one."""
    word = word.lower().replace("’", "").replace("'", "")
    if "-" in word:
        return sum(syllables(part) for part in word.split("-") if part)
    count = len(re.findall(r"[aeiouy]+", word))
    if re.search(r"[^aeiouylr]es$|[^aeioutdy]ed$|[^aeiouyl]e$|[aeiouy]le$|[aeiou][lr]es$", word):
        count -= 1
    if re.search(r"(?:s|x|z|ch|sh|c|g)es$", word):
        count += 1
    return max(1, count + len(re.findall(r"[^tcsg]i[ao](?!u)|[^tcsgq]iu|ism$|[aeiou]ing$", word)))


def grade(text: str) -> float:
    """Flesch-Kincaid grade of a page's prose; 0 if it has none."""
    parts = sentences(text)
    words = [word for part in parts for word in WORD.findall(part)]
    if not words:
        return 0.0
    return 0.39 * len(words) / len(parts) + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


def long_lines(text: str) -> list[Fault]:
    lines = enumerate(_blank(GENERATED, text).split("\n"), 1)
    return [Fault(number, f"{len(line)} characters") for number, line in lines if len(line) > LONGEST_LINE]


def phrases(text: str) -> list[str]:
    """The phrases of a list of banned words: one a line, comments after `#`."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def banned(text: str, listed: Sequence[str]) -> list[Fault]:
    """Every banned phrase in the wording of a page, with its line."""
    if not listed:
        return []
    any_of = "|".join(r"\s+".join(map(re.escape, phrase.split())) for phrase in listed)
    prose = wording(text)
    places = re.finditer(rf"(?<![\w-])(?:{any_of})(?![\w-])", prose, re.IGNORECASE)
    return [Fault(prose.count("\n", 0, at.start()) + 1, " ".join(at.group().split())) for at in places]


def in_source(text: str, listed: Sequence[str], kept: Collection[str] = ()) -> list[Fault]:
    """Banned words in identifiers, comments and texts of a Python file.

    kept: allowed as attribute, keyword, field or key, because other programs read them.
    """
    faults = [Fault(line, name) for line, name in _names(ast.parse(text), kept) if _is_banned(name, listed)]
    # A text that is such a key, alone or with further keys after it.
    key = re.compile(rf"[rbf]?[\"']({'|'.join(map(re.escape, kept)) or '(?!)'})(?=[\"'.\[])", re.IGNORECASE)
    for kind, line, string in _texts(text):
        said = string if kind == tokenize.COMMENT else key.sub("", _blank(FIELD, string))
        faults += [Fault(line + at.line - 1, at.text) for at in banned(said, listed)]
    return sorted(faults, key=lambda fault: fault.line)


# From Python 3.12 on, an f-string is several tokens, and the code in its fields has tokens of its own.
FORMATTED = tuple(getattr(tokenize, f"FSTRING_{part}", -1) for part in ("START", "MIDDLE", "END"))


def _texts(text: str) -> Iterator[tuple[int, int, str]]:
    """Kind of token, line and string of each comment and text; not of texts in the fields of an f-string."""
    start, middle, end = FORMATTED
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        depth += (token.type == start) - (token.type == end)
        if token.type in (tokenize.COMMENT, middle) or (token.type == tokenize.STRING and not depth):
            yield token.type, token.start[0], token.string


def _is_banned(name: str, listed: Sequence[str]) -> bool:
    return name.lower().strip("_") in NAMES or not set(name.lower().split("_")).isdisjoint(listed)


def _names(tree: ast.Module, kept: Collection[str]) -> Iterator[tuple[int, str]]:
    """Every identifier with its line, once for each place that could choose another. kept: see `in_source`."""
    fields = {
        id(line.target) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        for line in node.body if isinstance(line, ast.AnnAssign)
    }  # fmt: skip
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if not (id(node) in fields and name in kept):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Attribute(attr=name) if name not in kept:
                yield node.lineno, name
            case ast.keyword(arg=str(name)) if name not in kept:
                yield node.value.lineno, name


def messages(text: str) -> list[Fault]:
    """Errors for users whose message lacks its form."""
    faults = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and (made := _message(node)):
            faults += [Fault(node.lineno, f"{fault}: {made.said[:80]!r}") for fault in made.faults()]
    return faults


@dataclass(frozen=True)
class _Message:
    """said: the text, with {} for inserted values. is_placed: it has a key, an option or a file beside it."""

    said: str
    remedy: str | None
    is_placed: bool
    needs_remedy: bool

    def faults(self) -> Iterator[str]:
        whole = f"{self.said} {self.remedy or ''}"
        if self.needs_remedy and not self.remedy and not REMEDY.search(self.said):
            yield "no remedy"
        if not self.is_placed and not CONCRETE.search(whole):
            yield "neither the thing nor the value is named"
        if len(WORD.findall(whole)) > LONGEST_SENTENCE:
            yield f"more than {LONGEST_SENTENCE} words"
        if re.search(r"[.?!]$", whole.strip()):
            yield "ends with a full stop or a question mark"
        if RIDDLE.search(whole):
            yield "does not say plainly what is wrong"


def _message(call: ast.Call) -> _Message | None:
    """What a call raises for a user, if its text stands there."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name not in (*PLACED, *REMEDIED, *FAILED) or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    own = call.args[name == "Mistake" :]
    said = _text(own[0] if own else keywords.get("message"))
    remedy = (own[1] if len(own) > 1 else keywords.get("remedy")) if name in PLACED else None
    if said is None:
        return None
    is_placed = name == "Mistake" or len(own) > 2 or not keywords.keys().isdisjoint(("key", "file"))
    known = None if remedy is None else (_text(remedy) if _text(remedy) is not None else "{}")
    return _Message(said, known, is_placed, name not in FAILED)


def _text(node: ast.expr | None) -> str | None:
    """The text of an expression, with {} for each value that is inserted; None if it is made elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or "{}" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or "{}") + (_text(right) or "{}")
        case ast.IfExp(body=body):
            return _text(body)
    return None


@dataclass(frozen=True)
class _Token:
    """A comment, a text or a name of Rust. statement: the code before it since the last semicolon or brace."""

    kind: str
    said: str
    line: int
    statement: str


def _rust(text: str) -> Iterator[_Token]:
    """Tokens of Rust, as far as words stand in them."""
    end, code = 0, ""
    for match in RUST_TOKEN.finditer(text):
        code = re.split(r"[;{}]", code + text[end : match.start()])[-1]
        end = match.end()
        kind = str(next(kind for kind in ("comment", "text", "other", "name") if match[kind] is not None))
        yield _Token(kind, match.group(), text.count("\n", 0, match.start()) + 1, code)
        code += match.group() if kind == "name" else ""


def in_rust(text: str, listed: Sequence[str], kept: Collection[str] = (), keys: Collection[str] = ()) -> list[Fault]:
    """Banned words in names, comments and texts of a file of Rust. kept, keys: names and keys that others read."""
    faults, key = [], re.compile(rf'"({"|".join(map(re.escape, keys)) or "(?!)"})"')
    for token in _rust(text):
        if token.kind == "name" and token.said not in kept:
            snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", token.said)
            faults += [Fault(token.line, token.said)] if _is_banned(snake_case, listed) else []
        elif token.kind in ("comment", "text"):
            said = key.sub("", FIELD.sub("", token.said)) if token.kind == "text" else token.said
            faults += [Fault(token.line + at.line - 1, at.text) for at in banned(said, listed)]
    return faults


def messages_in_rust(text: str) -> list[Fault]:
    """Errors of the agent whose message lacks its form. Code after the first module of tests is left out."""
    faults = []
    tests = RUST_TESTS.search(text)
    for token in _rust(text[: tests.start()] if tests else text):
        is_usage = bool(USAGE.search(token.statement))
        if token.kind == "text" and (is_usage or ERROR.search(token.statement)):
            inner = token.said[token.said.index('"') + 1 :].rstrip('#"')
            said = FIELD.sub("{}", CONTINUED.sub("", inner))
            if len(said.split()) > 2:
                message = _Message(said, None, is_placed=True, needs_remedy=is_usage)
                faults += [Fault(token.line, f"{fault}: {said[:80]!r}") for fault in message.faults()]
    return faults


def pages(root: Path) -> Iterator[Path]:
    yield root / "README.md"
    yield root / "ARCHITECTURE.md"
    yield from sorted((root / "docs").rglob("*.md"))


def check(root: Path, listed: Sequence[str], more: str = "") -> list[str]:
    """What is wrong with the documents, each with its page and line. more: planted at the end of each page."""
    faults = []
    for page in pages(root):
        name, text = str(page.relative_to(root)), page.read_text("utf-8") + more
        faults += [f"{name}:{fault.line}: {fault.text}" for fault in [*long_lines(text), *banned(text, listed)]]
        long = [part for part in sentences(text) if len(WORD.findall(part)) > LONGEST_SENTENCE]
        faults += [f"{name}: over {LONGEST_SENTENCE} words: {' '.join(part.split())[:60]} …" for part in long]
        if grade(text) > GRADE_MAX:
            faults.append(f"{name}: grade {grade(text):.1f}")
    return faults


def _files(root: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that match, but for those in hidden directories, such as the programs that benchmarks compare with."""
    files = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts))


def check_source(root: Path, listed: Sequence[str], kept: Collection[str]) -> list[str]:
    """Every banned word and every formless message of the source, each with its place."""
    places = []
    contract = "".join((root / file).read_text("utf-8") for file in CONTRACT if (root / file).exists())
    wire_names = [name for name in kept if f'"{name}"' in contract]
    for file in _files(root, SOURCES + RUST_SOURCES):
        text = file.read_text("utf-8")
        if file.suffix == ".py":
            faults = [*in_source(text, listed, kept), *messages(text)]
        else:
            faults = [*in_rust(text, listed, wire_names, kept), *messages_in_rust(text)]
        places += [f"{file.relative_to(root)}:{fault.line}: {fault.text}" for fault in faults]
    return places


@bench(plants={"line": "a line of each page that is too long"})
def main(options: Options) -> Outcome:
    listed = phrases(BANNED.read_text("utf-8"))
    faults = check(ROOT, listed, " It goes on." * 12 if options.plant else "")
    source = check_source(ROOT, listed, phrases(KEPT.read_text("utf-8")))
    print(*faults, *source, sep="\n")
    grades = {str(page.relative_to(ROOT)): grade(page.read_text("utf-8")) for page in pages(ROOT)}
    hardest = max(grades, key=grades.__getitem__)
    figure = f"{len(grades)} pages, {len(faults)} faults, highest grade {grades[hardest]:.1f} ({hardest})"
    return Outcome(f"{figure}; {len(source)} words or messages in the source", not faults and not source)


if __name__ == "__main__":
    main()
