"""What an answer is (a number with its unit, a tuple, a set, an interval, a matrix, an equation, a choice, words), and
whether two are the same.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.support.mathematics.formulas import (
    DIGITS,
    FUNCTIONS,
    Formula,
    UnreadableError,
    as_float,
    close,
    read_formula,
    same_formula,
    value_of,
    values_at,
)
from rllib_lmgame.envs.support.mathematics.formulas import WORDS as FORMULA_WORDS
from rllib_lmgame.envs.support.mathematics.reading import MAX_ANSWER, clean, final_answer
from rllib_lmgame.envs.support.mathematics.units import LETTER, Unit, read_unit

MAX_ITEMS, MAX_NESTED = 64, 6
OPEN, CLOSE = "([{⦃⟨⟦", ")]}⦄⟩⟧"
RELATION = re.compile(r"(<=|>=|=<|=>|≤|≥|≠|<|>|=)")
ORDER = {"<=": "<=", "=<": "<=", "≤": "<=", ">=": ">=", "=>": ">=", "≥": ">=", "<": "<", ">": ">"}
CHOICE = re.compile(r"[\"(\[\s]*(?P<letter>[A-Ja-j])[\")\].:\s]*")
NAMED_CHOICE = re.compile(r"[\"(\[\s]*(?P<letter>[A-J])(?:\s*[\")\]]+[.:]?|[.:])\s*\S.*", re.DOTALL)
THOUSANDS = re.compile(r"(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])")
SURE_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]?(?:,[0-9]{3})*,0[0-9]{2}(?:,[0-9]{3})*(?![0-9,])")
"""Nobody writes the items of a list so."""
RATIO = re.compile(r"(?P<one>[0-9]+):(?P<other>[1-9]|[0-9]{3,})")
"""With two digits at the end it may be a time of day."""
BASED = re.compile(r"(?P<digits>[0-9A-Fa-f]+)\s*_\s*\{?\s*(?P<base>[0-9]{1,2}|two|eight|sixteen)\s*\}?")
REPEATING = re.compile(r"(?P<before>[0-9]*\.[0-9]*)\s*\\overline\s*\{?(?P<again>[0-9]{1,20})\}?")
SCIENTIFIC = re.compile(r"(?<=[0-9])\s*[xX]\s*(?=10\s*\^)")
AND_OR = re.compile(r"[,;]?\s*\"?(?:\band\b|\bor\b)\"?\s*|[;,]", re.IGNORECASE)
EVERYTHING = re.compile(r"ℝ|\"?(?:all )?(?:the )?real(?: numbers?)?s?\"?", re.IGNORECASE)
NOTHING = re.compile(
    r"∅|\"?(?:the )?(?:empty set|null set|none|no (?:real )?(?:solutions?|roots?|such .{1,30})|does not exist|DNE|"
    r"undefined)\"?",
    re.IGNORECASE,
)
SENTENCE = re.compile(
    rf"(?!(?:{'|'.join(FORMULA_WORDS)})(?![a-zA-Z]))[a-zA-Z]{{3,}}(?:\s+\w+)*|(?:[a-zA-Z]+\s+)+[a-zA-Z]{{3,}}"
)
MATHEMATICS, WORD = re.compile(r"[\\^_=<>{}|]"), re.compile(r"\w+(?:[:./'-]\w+)*|[^\w\s.,:;!?'()*]")
HALF_OF_DAY = re.compile(r"\b([ap])\.\s?m\b")
ARTICLE = re.compile(r"^(?:the|an?)\s+(?=\S)")


@dataclass(frozen=True)
class Words:
    """An answer that is no mathematics; compared without case, spaces and punctuation."""

    text: str


@dataclass(frozen=True)
class Quantity:
    """A number or an expression, with what stood behind it."""

    formula: Formula
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True)
class Based:
    """Digits in a base that is not ten."""

    digits: str
    base: int


@dataclass(frozen=True)
class Items:
    """Several results.

    Attributes:
        brackets: ``()``, ``[]``, ``(]``, ``[)``; ``{}`` for a set, and nothing for a list without brackets, neither of
            which has an order.
    """

    items: tuple[Any, ...]
    brackets: str = ""


@dataclass(frozen=True)
class Matrix:
    """Rows of results."""

    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Relation:
    """An equation or a condition, in parts and the signs between these."""

    sides: tuple[Formula, ...]
    signs: tuple[str, ...]
    names: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Interval:
    """Real numbers between two ends; ``None`` is no end."""

    low: Any
    high: Any
    low_open: bool = True
    high_open: bool = True


@dataclass(frozen=True)
class Reals:
    """A union of intervals, in order, none touching the next."""

    intervals: tuple[Interval, ...]


# -- the whole ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An answer in all the ways it can be read; a comma may part thousands or items.

    Attributes:
        said: As it stood in the reply.
        text: Cleaned.
        readings: What it may say.
    """

    said: str
    text: str
    readings: tuple[Any, ...]


def read_answer(text: str) -> Answer:
    """What a reply, or a data set's ``answer``, says.

    Raises:
        InvalidAction: if it is empty or too long to be an answer.
    """
    said = final_answer(text)
    if len(said) > MAX_ANSWER:
        raise InvalidAction("the answer is too long; give the result alone.")
    plain = clean(said)
    if not plain:
        raise InvalidAction("the reply holds no answer.")
    number = THOUSANDS.sub(lambda match: match[1].replace(",", ""), plain)
    texts = dict.fromkeys((number,) if SURE_THOUSANDS.search(plain) else (number, plain))
    if ratio := RATIO.fullmatch(plain):
        texts[f"{ratio['one']}/{ratio['other']}"] = None
    if letter := LETTER.fullmatch(plain):
        texts[f'{letter["number"]} "{letter["unit"]}"{letter["power"] or ""}'] = None
    return Answer(said, plain, tuple(_read(one, 0) for one in texts))


def same_answer(given: Answer, gold: Answer, tolerance: Fraction = Fraction(0)) -> bool:
    """Whether ``given`` is the answer ``gold``; numbers may be off by ``tolerance`` of the gold one's size."""
    if given.text == gold.text:
        return True
    if (right := CHOICE.fullmatch(gold.text)) and (said := _choice(given.text)) and right["letter"].isupper():
        return said == right["letter"]
    compare = _Comparison(tolerance)
    readings = (*given.readings, *_concluded(given))
    return any(compare.same(one, other) for one in readings for other in gold.readings)


def numbers_of(answer: Answer) -> Reals | None:
    """The real numbers that an answer describes by intervals or by conditions on a variable that stands alone."""
    for reading in answer.readings:
        if isinstance(reading, Reals | Relation | Items):
            with contextlib.suppress(UnreadableError):
                return _reals(reading)
    return None


def is_worked_out(answer: Answer, concluded: bool = False) -> bool:
    """Whether all numbers of an answer are written as such (``3/4``, ``1 1/2``, ``2.5 * 10^3``), with no sum, product,
    power or root left to do; formulas and words are not asked for. ``concluded``: or what its equation comes to.
    """
    return any(map(_is_plain, (*answer.readings, *(_concluded(answer) if concluded else ()))))


def _concluded(answer: Answer) -> Iterator[Quantity]:
    """What the equation of a reply comes to: 7 of ``m + n = 7``, 144 of ``12^2 = 144``.

    An equation of one unknown (``2x = 6``) asks for another number, and one without any has to be true.
    """
    for reading in answer.readings:
        if isinstance(reading, Relation) and reading.signs == ("=",):
            left, right = reading.sides
            if left.is_number:
                came = left.node != right.node and _Comparison(Fraction(0)).same(Quantity(left), Quantity(right))
            else:
                came = len(left.names) > 1 or left.node[0] in FUNCTIONS
            if came:
                yield Quantity(right)


def _is_plain(result: Any) -> bool:
    if isinstance(result, Quantity):
        return _is_plain_number(result.formula.node)
    if isinstance(result, Items):
        return all(map(_is_plain, result.items))
    if isinstance(result, Matrix):
        return all(_is_plain(item) for row in result.rows for item in row)
    if isinstance(result, Relation):
        return all(side.node[0] == "name" or _is_plain_number(side.node) for side in result.sides)
    return True


def _is_plain_number(node: Any) -> bool:
    operation, *parts = node
    if operation in ("number", "constant", "mixed"):
        return True
    if operation in ("neg", "percent", "degrees"):
        return _is_plain_number(parts[0])
    if operation == "/":
        return all(part[0] == "number" or (part[0] == "neg" and part[1][0] == "number") for part in parts)
    if operation == "^":
        return parts[0] == ("number", Fraction(10)) and parts[1][0] in ("number", "neg")
    return operation == "*" and parts[1][0] == "^" and all(map(_is_plain_number, parts))


def _choice(text: str) -> str:
    found = CHOICE.fullmatch(text) or NAMED_CHOICE.fullmatch(text)
    return found["letter"].upper() if found else ""


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(text: str, depth: int) -> Any:
    try:
        return _result(text, depth)
    except (UnreadableError, RecursionError):
        return Words(text)


def _result(text: str, depth: int) -> Any:
    text = text.strip()
    if depth > MAX_NESTED:
        raise UnreadableError("nested too deeply")
    if not text:
        raise UnreadableError("empty")
    if EVERYTHING.fullmatch(text):
        return Reals((Interval(None, None),))
    if NOTHING.fullmatch(text):
        return Items((), "{}")
    if match := re.match(r"^\(?\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\)?\s*∈\s*", text):
        return _result(text[match.end() :], depth + 1)
    if found := _matrix(text, depth):
        return found
    for sign, join in (("∖", _minus), ("∪", _union), ("∩", _common)):
        if len(parts := split(text, sign)) > 1:
            return join([_reals(_result(part, depth + 1)) for part in parts])
    inside = _inside(text)
    if inside is not None:
        listed = _bracketed(text, inside, depth)
        if listed is not None:
            return listed
    parts = _split_list(text)
    if len(parts) > 1:
        return _listed(text, parts, depth)
    if "±" in text or "∓" in text:
        return _both_signs(text, depth)
    if RELATION.search(text):
        return _relation(text, depth)
    return _quantity(text)


def split(text: str, signs: str) -> list[str]:
    """The parts between ``signs`` that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for at, mark in enumerate(text):
        depth += (mark in OPEN) - (mark in CLOSE)
        if mark in signs and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    if len(parts) > MAX_ITEMS:
        raise UnreadableError("too many parts")
    return [part.strip() for part in parts]


def _split_list(text: str) -> list[str]:
    """The items of a list without brackets: parted by commas, semicolons, *and*, *or*."""
    depth, marked = 0, []
    for mark in text:
        depth += (mark in OPEN) - (mark in CLOSE)
        marked.append(mark if depth == 0 and mark not in CLOSE else "\x00")
    outside, parts, start = "".join(marked), [], 0
    for match in AND_OR.finditer(outside):
        parts.append(text[start : match.start()].strip())
        start = match.end()
    parts = [part for part in (*parts, text[start:].strip()) if part]
    if len(parts) > MAX_ITEMS:
        raise UnreadableError("too many items")
    return parts


def _inside(text: str) -> str | None:
    """What stands between the first and last mark, if these are one pair of brackets (of any two kinds)."""
    if len(text) < 2 or text[0] not in OPEN or text[-1] not in CLOSE:
        return None
    depth = 0
    for at, mark in enumerate(text):
        depth += (mark in OPEN) - (mark in CLOSE)
        if depth == 0 and at < len(text) - 1:
            return None
    return text[1:-1].strip() if depth == 0 else None


def _bracketed(text: str, inside: str, depth: int) -> Any:
    items = [item for item in split(inside, ",;") if item]
    brackets = text[0] + text[-1]
    if brackets == "⦃⦄":
        if bars := re.fullmatch(r"(?:[a-zA-Z]\s*(?:∈\s*ℝ\s*)?)[|:](?P<condition>.+)", inside):
            return _reals(_result(bars["condition"], depth + 1))
        found = [_result(item, depth + 1) for item in items]
        return Items(tuple(_spread(found)), "{}")
    if len(items) < 2 or brackets not in ("()", "[]", "(]", "[)", "{}", "⟨⟩"):
        return _result(inside, depth + 1) if brackets in ("()", "⟦⟧") and RELATION.search(inside) else None
    found = [_result(item, depth + 1) for item in items]
    if brackets == "[]" and all(isinstance(item, Items) and item.brackets == "[]" for item in found):
        return _rows(tuple(item.items for item in found))
    if "±" in inside:
        raise UnreadableError("several signs in a tuple")
    return Items(tuple(found), "()" if brackets == "⟨⟩" else brackets)


def _spread(items: Sequence[Any]) -> Iterator[Any]:
    """Items with those of lists among them (``1 ± 2``)."""
    for item in items:
        if isinstance(item, Items) and not item.brackets:
            yield from item.items
        else:
            yield item


def _listed(text: str, parts: list[str], depth: int) -> Any:
    items = [_result(part, depth + 1) for part in parts]
    conditions = [item for item in items if isinstance(item, Relation) and item.signs[0] != "="]
    if conditions and len(conditions) == len(items):
        join = _union if re.search(r"\bor\b", text, re.IGNORECASE) else _common
        return join([_reals(item) for item in items])
    if any(isinstance(item, Reals) for item in items):
        return _union([_reals(item) for item in items])
    if isinstance(items[0], Relation) and items[0].signs == ("=",):  # x = 1, 2
        name = items[0].sides[0]
        items = [items[0], *(_named(name, item) for item in items[1:])]
    return Items(tuple(_spread(items)))


def _named(name: Formula, item: Any) -> Any:
    return Relation((name, item.formula), ("=",)) if isinstance(item, Quantity) else item


def _both_signs(text: str, depth: int) -> Any:
    if text.count("±") + text.count("∓") > 3:
        raise UnreadableError("too many signs")
    return Items(
        tuple(
            _result(text.replace("±", plus).replace("∓", minus), depth + 1) for plus, minus in (("+", "-"), ("-", "+"))
        )
    )


def _matrix(text: str, depth: int) -> Any:
    """A matrix in LaTeX, with a number or a name and ``=`` before it or not."""
    text = re.sub(r"^[^=<>≤≥≠⟦⟧]*=\s*(?=[^=<>≤≥≠⟦⟧]*⟦)", "", text)
    match = re.fullmatch(r"(?P<before>[^⟦⟧]*)⟦(?P<cells>[^⟦⟧]*)⟧\s*(?P<after>[)\]|}]?)", text)
    if match is None:
        return None
    before = re.sub(r"[(\[|{]?\s*$", "", match["before"]) if match["after"] else match["before"]
    rows = [row for row in match["cells"].split("\\\\") if row.replace("\\hline", "").strip()]
    factor = f"({before.strip()})*" if before.strip() else ""
    cells = tuple(
        tuple(_result(f"{factor}({cell.strip()})" if factor else cell, depth + 1) for cell in row.split("&"))
        for row in rows
    )
    return _rows(cells)


def _rows(cells: tuple[tuple[Any, ...], ...]) -> Matrix:
    if not cells or len({len(row) for row in cells}) > 1 or sum(map(len, cells)) > MAX_ITEMS:
        raise UnreadableError("no matrix")
    return Matrix(cells)


def _relation(text: str, depth: int) -> Any:
    parts = RELATION.split(text)
    sides, signs = [part.strip() for part in parts[::2]], [ORDER.get(sign, sign) for sign in parts[1::2]]
    if not all(sides):
        raise UnreadableError("a side is missing")
    if set(signs) == {"="} and len(signs) <= MAX_NESTED:
        last = _result(sides[-1], depth + 1)
        names = [_inside(side) for side in sides[:1]]
        if not isinstance(last, Quantity):  # x = {1, 2}, (x, y) = (1, 2), A = matrix
            return last if _is_name(sides[0]) or names[0] is not None else Words(text)
        if last.unit is not None or last.percent:
            return last
        return Relation(tuple(_formula(side) for side in (sides[0], sides[-1])), ("=",))
    if len(signs) > 2 or (len(signs) == 2 and any(sign in "=≠" for sign in signs)):
        raise UnreadableError("too many signs")
    return Relation(tuple(_formula(side) for side in sides), tuple(signs))


def _is_name(text: str) -> bool:
    try:
        return read_formula(text).node[0] == "name"
    except UnreadableError:
        return bool(re.fullmatch(r"[\w\s\"(),^'{}\\-]{1,40}", text))


def _formula(text: str) -> Formula:
    text = REPEATING.sub(_repeated, SCIENTIFIC.sub("*", text.replace("∞", "\\infty ")))
    return read_formula(re.sub(r'"([a-zA-Z])"', r"\1", text))


def _repeated(match: re.Match[str]) -> str:
    whole, _, digits = match["before"].partition(".")
    nines, scale = 10 ** len(match["again"]) - 1, 10 ** len(digits)
    value = Fraction(int((whole or "0") + digits) * nines + int(match["again"]), nines * scale)
    return f"({value.numerator}/{value.denominator})"


def _quantity(text: str) -> Any:
    if match := BASED.fullmatch(text):
        base = {"two": 2, "eight": 8, "sixteen": 16}.get(match["base"]) or int(match["base"])
        if 2 <= base <= 16 and all(int(digit, 16) < base for digit in match["digits"]):
            return Based(match["digits"].upper().lstrip("0"), base)
    if match := re.fullmatch(r"(?P<rest>.+?)\s*(?:%|\"?\b(?:percent|per cent|pct)\b\"?)", text, re.IGNORECASE):
        return Quantity(_formula(match["rest"]), percent=True)
    value, unit = read_unit(text)
    if not value:
        raise UnreadableError("words")
    formula = _formula(value)
    product = re.fullmatch(r"[b-df-hj-np-tv-z]{3,5}", value)  # No word is without a vowel.
    if unit is None and not product and SENTENCE.fullmatch(value) and not formula.is_number:
        return Words(text)
    return Quantity(formula, unit)


# -- sets of real numbers ----------------------------------------------------------------------------------------------


def _reals(result: Any) -> Reals:
    """A result as a set of real numbers.

    Raises:
        UnreadableError: if it is none.
    """
    if isinstance(result, Reals):
        return result
    if isinstance(result, Items):
        if result.brackets in ("{}", ""):
            return _union([_reals(item) for item in result.items])
        if len(result.items) == 2 and set(result.brackets) <= set("()[]"):
            low, high = (_end(item) for item in result.items)
            left, right = result.brackets[0] == "(", result.brackets[1] == ")"
            if _below(low, high, low_side=True):
                return Reals((Interval(low, high, low is None or left, high is None or right),))
    if isinstance(result, Quantity) and result.formula.is_number:
        value = value_of(result.formula)
        return Reals((Interval(value, value, False, False),))
    if isinstance(result, Relation):
        return _condition(result)
    raise UnreadableError("no set of real numbers")


def _end(item: Any) -> Any:
    """The end of an interval, ``None`` for an infinite one."""
    if not isinstance(item, Quantity) or not item.formula.is_number:
        raise UnreadableError("no number")
    node = item.formula.node
    if node in (("constant", "oo"), ("neg", ("constant", "oo"))):
        return None
    value = value_of(item.formula)
    if not isinstance(value, Fraction) and value.imag != 0:
        raise UnreadableError("no real number")
    return value if isinstance(value, Fraction) else value.real


def _below(low: Any, high: Any, low_side: bool = False) -> bool:
    if low is None or high is None:
        return low_side or low is None
    return bool(_key(low) <= _key(high))


def _key(value: Any) -> Any:
    import mpmath

    with mpmath.workdps(DIGITS):
        return as_float(value)


def _union(parts: Sequence[Reals]) -> Reals:
    import mpmath

    def key(interval: Interval) -> tuple[Any, bool]:
        return (mpmath.mpf("-inf") if interval.low is None else _key(interval.low), interval.low_open)

    found: list[Interval] = []
    for interval in sorted((one for part in parts for one in part.intervals), key=key):
        last = found[-1] if found else None
        if last is not None and _touches(last, interval):
            longer = last.high is not None and (interval.high is None or _key(interval.high) > _key(last.high))
            same = (
                not longer and last.high is not None and interval.high is not None and close(last.high, interval.high)
            )
            if longer:
                found[-1] = replace(last, high=interval.high, high_open=interval.high_open)
            elif same and not interval.high_open:
                found[-1] = replace(last, high_open=False)
        else:
            found.append(interval)
    return Reals(tuple(found))


def _touches(left: Interval, right: Interval) -> bool:
    if left.high is None or right.low is None:
        return True
    if close(left.high, right.low):
        return not (left.high_open and right.low_open)
    return bool(_key(left.high) > _key(right.low))


def _others(reals: Reals) -> Reals:
    """All real numbers that are not in ``reals``."""
    found, low, low_open = [], None, True
    for interval in reals.intervals:
        if interval.low is not None:
            found.append(Interval(low, interval.low, low_open, not interval.low_open))
        low, low_open = interval.high, not interval.high_open
        if low is None:
            return Reals(tuple(found))
    return Reals((*found, Interval(low, None, low_open, True)))


def _common(parts: Sequence[Reals]) -> Reals:
    return _others(_union([_others(part) for part in parts]))


def _minus(parts: Sequence[Reals]) -> Reals:
    return _common([parts[0], *(_others(part) for part in parts[1:])])


def _condition(relation: Relation) -> Reals:
    """Numbers that meet a condition on one variable that stands alone."""
    found = []
    for left, sign, right in zip(relation.sides, relation.signs, relation.sides[1:], strict=False):
        if left.is_number and right.node[0] == "name":
            left, right, sign = right, left, sign.translate(str.maketrans("<>", "><"))
        if left.node[0] != "name" or not right.is_number:
            raise UnreadableError("the variable does not stand alone")
        end = _end(Quantity(right))
        point = Reals((Interval(end, end, False, False),)) if end is not None else Reals(())
        if sign == "=":
            found.append(point)
        elif sign == "≠":
            found.append(_others(point))
        else:
            strict = "=" not in sign
            found.append(
                Reals((Interval(None, end, True, strict),))
                if sign[0] == "<"
                else Reals((Interval(end, None, strict, True),))
            )
    return _common(found)


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Comparison:
    """Whether a given result is the one asked for."""

    tolerance: Fraction

    def same(self, given: Any, gold: Any) -> bool:
        try:
            return self._same(given, gold)
        except (UnreadableError, RecursionError):
            return False

    def _same(self, given: Any, gold: Any) -> bool:
        if isinstance(given, Reals) or isinstance(gold, Reals):
            return self._same_reals(_reals(given), _reals(gold))
        if isinstance(given, Relation) or isinstance(gold, Relation):
            return self._same_relation(given, gold)
        if isinstance(given, Words) or isinstance(gold, Words):
            if isinstance(given, Quantity) or isinstance(gold, Quantity):  # xyz beside x y z
                return self._same_quantity(*(_letters(side) for side in (given, gold)))
            return _said(given) == _said(gold) != ""
        if isinstance(given, Matrix) or isinstance(gold, Matrix):
            return self._same_matrix(given, gold)
        if isinstance(given, Items) or isinstance(gold, Items):
            return self._same_sequence(given, gold)
        if isinstance(given, Based) or isinstance(gold, Based):
            return self._same_based(given, gold)
        return self._same_quantity(given, gold)

    def _same_quantity(self, given: Quantity, gold: Quantity) -> bool:
        factors = [Fraction(1)]
        if given.percent != gold.percent:
            factors = [Fraction(1, 100) if given.percent else Fraction(100)]
            factors.append(Fraction(1))  # "What percent ...?" is answered with and without the sign.
        elif given.unit is not None and gold.unit is not None:
            factor = given.unit.in_terms_of(gold.unit)
            if factor is None:
                return False
            factors = [factor]
        return any(self._same_formula(given.formula, factor, gold.formula) for factor in factors)

    def _same_formula(self, given: Formula, factor: Fraction, gold: Formula) -> bool:
        one = given if factor == 1 else Formula(("*", ("number", factor), given.node), given.names)
        return same_formula(one, gold, self.tolerance)

    def _same_based(self, given: Any, gold: Any) -> bool:
        if isinstance(given, Based) and isinstance(gold, Based):
            return given == gold
        based, other = (given, gold) if isinstance(given, Based) else (gold, given)
        return (
            isinstance(other, Quantity) and other.formula.node == ("number", Fraction(based.digits))
            if based.digits.isdigit()
            else False
        )

    def _same_sequence(self, given: Any, gold: Any) -> bool:
        one, other = ((part if isinstance(part, Items) else Items((part,))) for part in (given, gold))
        unordered = {"", "{}"}
        if one.brackets in unordered and other.brackets in unordered:
            return self._covers(one.items, other.items) and self._covers(other.items, one.items, turned=True)
        if not isinstance(given, Items) or not isinstance(gold, Items):
            return False
        if "{}" in (one.brackets, other.brackets) or len(one.items) != len(other.items):
            return False
        if "" not in (one.brackets, other.brackets) and len(one.items) == 2 and one.brackets != other.brackets:
            return False
        return all(self.same(a, b) for a, b in zip(map(_bare, one.items), map(_bare, other.items), strict=True))

    def _covers(self, these: Sequence[Any], those: Sequence[Any], turned: bool = False) -> bool:
        named = all(isinstance(item, Relation) for item in (*these, *those))
        if not named:
            these, those = [_bare(item) for item in these], [_bare(item) for item in those]
        return all(any(self.same(b, a) if turned else self.same(a, b) for b in those) for a in these)

    def _same_matrix(self, given: Any, gold: Any) -> bool:
        if isinstance(given, Matrix) and isinstance(gold, Matrix):
            if [len(row) for row in given.rows] != [len(row) for row in gold.rows]:
                return False
            pairs = zip(given.rows, gold.rows, strict=True)
            return all(self.same(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))
        if isinstance(given, Matrix):
            return self._same_sequence(_vector(given), gold)
        return self._same_sequence(given, _vector(gold))

    def _same_reals(self, given: Reals, gold: Reals) -> bool:
        return len(given.intervals) == len(gold.intervals) and all(
            (a.low_open, a.high_open) == (b.low_open, b.high_open)
            and self._same_end(a.low, b.low)
            and self._same_end(a.high, b.high)
            for a, b in zip(given.intervals, gold.intervals, strict=True)
        )

    def _same_end(self, given: Any, gold: Any) -> bool:
        return given is gold if given is None or gold is None else close(given, gold, self.tolerance)

    def _same_relation(self, given: Any, gold: Any) -> bool:
        if not (isinstance(given, Relation) and isinstance(gold, Relation)):
            if isinstance(given, Items) or isinstance(gold, Items):
                if any(isinstance(side, Relation) and side.signs != ("=",) for side in (given, gold)):
                    return self._same_reals(_reals(given), _reals(gold))
                return self._same_sequence(given, gold)
            return self.same(_bare(given), _bare(gold)) if (_bare(given), _bare(gold)) != (given, gold) else False
        if any(sign not in "=" for sign in (*given.signs, *gold.signs)):
            one, other = self._sets(given, gold)
            return self._same_reals(one, other) if one and other else self._same_condition(given, gold)
        alone = [relation.sides[0].node for relation in (given, gold)]
        if alone[0] == alone[1] and same_formula(given.sides[1], gold.sides[1], self.tolerance):
            return True
        return _proportional(given, gold, any_sign=True)

    def _sets(self, given: Relation, gold: Relation) -> tuple[Reals | None, Reals | None]:
        if given.sides and {name for side in given.sides for name in side.names} != {
            name for side in gold.sides for name in side.names
        }:
            return None, None
        try:
            return _condition(given), _condition(gold)
        except UnreadableError:
            return None, None

    def _same_condition(self, given: Relation, gold: Relation) -> bool:
        if len(given.signs) != 1 or len(gold.signs) != 1:
            return False
        turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
        if given.signs == gold.signs and _proportional(given, gold, any_sign="≠" in given.signs):
            return True
        flipped = Relation(given.sides[::-1], (turned.get(given.signs[0], given.signs[0]),))
        return flipped.signs == gold.signs and _proportional(flipped, gold, any_sign=False)


def _proportional(given: Relation, gold: Relation, any_sign: bool) -> bool:
    """Whether the difference of one's sides is a constant times that of the other's."""
    differences = tuple(
        Formula(
            ("-", relation.sides[0].node, relation.sides[1].node), relation.sides[0].names | relation.sides[1].names
        )
        for relation in (given, gold)
    )
    if differences[0].names != differences[1].names or not differences[0].names:
        return False
    pairs = [(a, b) for a, b in values_at(differences) if not (close(a, Fraction(0)) or close(b, Fraction(0)))]
    if not pairs:
        return False
    import mpmath

    with mpmath.workdps(DIGITS):
        ratios = [a / b if isinstance(a, Fraction) and isinstance(b, Fraction) else _key(a) / _key(b) for a, b in pairs]
        return all(close(ratio, ratios[0]) for ratio in ratios) and (any_sign or ratios[0].real > 0)


def _bare(item: Any) -> Any:
    """A value without the name before it (``x``, ``AB``, ``|AB|``, a ratio of such)."""
    if isinstance(item, Relation) and item.signs == ("=",) and _is_label(item.sides[0].node):
        return Quantity(item.sides[1])
    return item


def _is_label(node: Any, alone: bool = True) -> bool:
    operation, *parts = node
    if operation == "name":
        return alone or parts[0][0].isupper()
    return operation in ("*", "/", "abs", "prime") and all(_is_label(part, alone=False) for part in parts)


def _vector(matrix: Matrix) -> Items:
    """A matrix of one row or column as a tuple.

    Raises:
        UnreadableError: if it has more.
    """
    if len(matrix.rows) == 1:
        return Items(matrix.rows[0], "()")
    if all(len(row) == 1 for row in matrix.rows):
        return Items(tuple(row[0] for row in matrix.rows), "()")
    raise UnreadableError("no vector")


def _letters(result: Any) -> Quantity:
    """A short word as the product of its letters. Raises: UnreadableError: it is longer."""
    if isinstance(result, Words) and not re.fullmatch(r"[a-z]{3,5}", result.text):
        raise UnreadableError("words")
    return Quantity(read_formula(result.text)) if isinstance(result, Words) else result


def _said(result: Any) -> str:
    """Words without case, article, spaces and punctuation around them. What has signs of mathematics, and could still
    not be read, stays as it is.
    """
    if not isinstance(result, Words):
        return ""
    text = re.sub(r"\"", " ", result.text)
    if MATHEMATICS.search(text):
        return " ".join(text.split())
    plain = HALF_OF_DAY.sub(r"\1m", ARTICLE.sub("", text.casefold().strip()))
    return " ".join(WORD.findall(plain))
