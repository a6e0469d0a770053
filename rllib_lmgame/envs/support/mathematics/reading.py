"""The answer to a problem of mathematics as a text gives it, cleaned of what changes nothing."""

from __future__ import annotations

import re

MAX_REPLY, MAX_ANSWER = 16_384, 1_000
"""Characters that are searched for an answer, and that an answer may have."""

SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "·": "*", "×": "*", "∙": "*", "⋅": "*", "÷": "/", "⁄": "/", "∕": "/", "√": "\\sqrt ",
    "π": "\\pi ", "∞": "\\infty ", "≤": "≤", "≥": "≥", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ",
    "±": "±", "²": "^2", "³": "^3", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
    "º": "°", "％": "%",
    "ℝ": "\\mathbb{R}", "∨": "\\lor ", "∧": "\\land ", "⟨": "\\langle ", "⟩": "\\rangle ", "θ": "\\theta ",
    "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ", "ω": "\\omega ", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    "‘": "'", "’": "'", "`": " ", "…": "\\ldots ",
}  # fmt: skip
SYMBOL = re.compile("|".join(map(re.escape, SYMBOLS)))
COMMANDS = {
    **dict.fromkeys(("left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "displaystyle",
                     "limits", "middle", "mathrm", "rm", "bf", "mathstrut", "phantom", "textstyle"), " "),
    **dict.fromkeys(("quad", "qquad", "thinspace", "enspace", "hspace"), " "),
    **dict.fromkeys(("cdot", "times", "ast"), "*"), "div": "/", "dfrac": "\\frac", "tfrac": "\\frac", "cfrac": "\\frac",
    "dbinom": "\\binom", "tbinom": "\\binom",
    **dict.fromkeys(("le", "leq", "leqslant", "leqq"), "≤"), **dict.fromkeys(("ge", "geq", "geqslant", "geqq"), "≥"),
    **dict.fromkeys(("lt", "less"), "<"), "gt": ">", **dict.fromkeys(("ne", "neq"), "≠"), "pm": "±", "mp": "∓",
    "cup": "∪", "cap": "∩", "in": "∈", "setminus": "∖", "backslash": "∖", "land": " and ", "wedge": " and ",
    "lor": " or ", "vee": " or ", **dict.fromkeys(("emptyset", "varnothing"), "∅"), "degree": "°", "circ": "°",
    **dict.fromkeys(("lbrace",), "⦃"), **dict.fromkeys(("rbrace",), "⦄"), "langle": "⟨", "rangle": "⟩",
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"), "percent": "%", "iff": "=",
    "approx": "≈", "simeq": "≈", "Leftrightarrow": "=",
    **dict.fromkeys(("equiv", "coloneqq"), "="), "ldots": "…", "dots": "…", "cdots": "…",
    "lbrack": "[", "rbrack": "]", "colon": ":", "prime": "'", "dollar": "", "textdollar": "", "pounds": "",
    "arcctg": "\\arccot", "tg": "\\tan", "ctg": "\\cot",
}  # fmt: skip
ESCAPED = {"{": "⦃", "}": "⦄", "%": "%", "$": "", "!": "", ",": " ", ";": " ", ":": " ", " ": " ", "(": " ", ")": " ",
           "[": " ", "]": " ", "_": "_", "&": "&", "#": "#", "|": "|", "\\": "\\\\"}  # fmt: skip
COMMAND = re.compile(r"\\([a-zA-Z]+|.)", re.DOTALL)
TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|mathrm|mbox|hbox|operatorname\*?|mathit|mathsf)\s*\{([^{}]*)\}")
BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm|underline)\s*\{\s*([-+]?[0-9][0-9.,]*)\s*\}")
IN_TEXT = re.compile(
    r"(?:about |approximately )?"
    r"(?P<number>(?:\\?\$ ?)?[-+]?(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?(?:\\?%)?)"
    r"(?: (?P<unit>[a-zA-Z][a-zA-Z. ]*))?"
)
"""A number with what is counted, all of it marked as words."""
RATIO = re.compile(r"(?<=[0-9])\s*:\s*(?=[0-9])")
INSIDE_NUMBER = re.compile(r"(?<=[0-9])(?:,\\!|\{,\}|\\,|\\!)\s*(?=[0-9]{3}(?![0-9]))")
MATRIX = re.compile(r"\\(begin|end)\s*\{(?:[pbBvV]?matrix|smallmatrix|array)\*?\}(?:\{[lcr|\s]*\})?")
LEAD = re.compile(
    r"^\W*(?:(?:so|thus|hence|therefore|finally)\b,?\s*)?(?:(?:the|my|our|its)\s+)?(?:(?:final|correct|exact|right)\s+)?"
    r"(?:answers?|results?|solutions?|value|option|choice)\b\s*(?:sets?\b|choice\b|option\b)?\s*(?:is|are|equals?|=|:)*\s*[:=]?\s*",
    re.IGNORECASE,
)  # fmt: skip
LAST = re.compile(
    r"(?:final answer|answer)\s*(?:is|:)\s*\}?\s*(?:the (?:final )?answer is\s*)?(?P<said>[^\n]+?)"
    r"(?:\.?\s+I hope it is correct\.?.*)?$",
    re.IGNORECASE | re.MULTILINE,
)
BOX, MOST_BOXES = re.compile(r"\\f?box(?:ed)?\s*(?P<open>\{)?"), 32
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
PROSE = re.compile(r"(?<![\\a-zA-Z])(?!(?:and|or)\b)[a-zA-Z]{2,}(?![a-zA-Z])")
LABELLED = re.compile(r"\\(?:begin|end|text|mathrm|mbox|operatorname)\s*\{[^{}]*\}")
BETWEEN = re.compile(r"(?:\s|[,;.$]|\\(?:quad|qquad|[,;!\s\[\]()])|\\text\s*\{\s*(?:and|or|,)?\s*\}|\band\b|\bor\b)*")
FLUFF = re.compile(r"^\s*(?:about|approximately|approx\.?|exactly|equals?|is)\s+", re.IGNORECASE)
NAME_IS_ABOUT = re.compile(r"^(\s*[a-zA-Z](?:_\{?\w\}?)?\s*)≈")


def final_answer(reply: str) -> str:
    """The part of a reply that is its answer: in its last ``\\boxed{}``, ``<answer>`` or behind ``####`` or *answer
    is*; of a sentence its last formula between ``$``; else the whole.
    """
    text = reply[-MAX_REPLY:]
    if boxed := _boxed(text):
        return boxed
    if "<answer>" in text:
        return text.rsplit("<answer>", 1)[1].split("</answer>")[0].strip()
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().split("\n", 1)[0]
    said = LAST.findall(text[-2 * MAX_ANSWER :])
    text = (said[-1] if said else text).strip()
    formulas = [part for found in FORMULA.findall(text[-2 * MAX_ANSWER :]) for part in found if part.strip()]
    in_words = len(PROSE.findall(FORMULA.sub(" ", text[-2 * MAX_ANSWER :]))) >= 2
    return formulas[-1].strip() if in_words and formulas and not PROSE.search(LABELLED.sub("", formulas[-1])) else text


def _boxed(text: str) -> str:
    """What the last ``\\boxed{...}`` holds, its brackets counted, and those before it that only an *and* or a comma
    parts from it; empty without one.
    """
    found: list[tuple[int, int, str]] = []
    for match in list(BOX.finditer(text))[-MOST_BOXES:]:
        if match.start() < (found[-1][1] if found else 0):
            continue
        end = _closing(text, match.end()) if match["open"] else None
        if end is not None:
            found.append((match.start(), end + 1, text[match.end() : end].strip()))
        elif not match["open"] and (bare := re.match(r"\s*([^\s$]+)", text[match.end() :])):
            found.append((match.start(), match.end() + bare.end(), bare[1].rstrip(".")))
    joined = found[-1:]
    for one in reversed(found[:-1]):
        if not BETWEEN.fullmatch(text[one[1] : joined[0][0]][:MAX_ANSWER]):
            break
        joined.insert(0, one)
    return ", ".join(dict.fromkeys(said for _, _, said in joined))


def _closing(text: str, start: int) -> int | None:
    """Where the bracket that was opened before ``start`` is closed."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
    return None


def clean(text: str) -> str:
    """An answer with one spelling for what is written in several ways: brackets of sets as ``⦃ ⦄``, words that LaTeX
    marks as ``"words"``, rows of a matrix as ``⟦ ⟧``.
    """
    text = SYMBOL.sub(lambda match: SYMBOLS[match[0]], text.strip())
    text = INSIDE_NUMBER.sub("", text)
    text = MATRIX.sub(lambda match: "⟦" if match[1] == "begin" else "⟧", text)
    text = text.replace("\\arraystretch", "")
    for _ in range(3):
        text, changed = TEXT.subn(_words, text)
        if not changed:
            break
    text = BOLD.sub(r" \1 ", text)
    text = COMMAND.sub(_command, text.replace("\\mathbb{R}", "ℝ").replace("\\mathbb R", "ℝ").replace("\\Bbb{R}", "ℝ"))
    text = re.sub(r"\^\s*\{\s*°\s*\}|\^\s*°", "°", text.replace("$", "").replace("~", " "))
    text = RATIO.sub(":", " ".join(text.split()).rstrip(".").strip())
    text = NAME_IS_ABOUT.sub(r"\1=", text.replace("!=", "≠"))
    text = text.partition("≈")[0].strip() or text.replace("≈", "").strip()
    for _ in range(2):
        text = FLUFF.sub("", LEAD.sub("", text, count=1)).strip()
    return text.strip("*").strip()


def _words(match: re.Match[str]) -> str:
    said = " ".join(re.sub(r"\\[ ,;]", " ", match[1]).split())
    if LEAD.fullmatch(said):
        return " "
    if number := IN_TEXT.fullmatch(said):
        return f" {number['number']} " + (f'"{number["unit"]}" ' if number["unit"] else "")
    return f' "{match[1].strip()}" ' if said else " "


def _command(match: re.Match[str]) -> str:
    name = match[1]
    if name.isalpha():
        return COMMANDS.get(name, f"\\{name}")
    return ESCAPED.get(name, name)
