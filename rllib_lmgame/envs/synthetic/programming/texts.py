"""Problems about texts."""

from __future__ import annotations

from rllib_lmgame.envs.synthetic.programming.families import family, sentence, text, whole, words

LETTERS = "abcdefghijklmnopqrstuvwxyzABCXYZ ,.!"


@family(
    "Shift every letter a-z and A-Z by {K} places in the alphabet, from z on to a again; other characters stay.",
    line=text(LETTERS),
    K=(1, 3, 5, 13),
)
def shift_letters(line: str, *, K: int) -> str:
    result = ""
    for character in line:
        if character.isalpha():
            first = ord("a") if character.islower() else ord("A")
            character = chr((ord(character) - first + K) % 26 + first)
        result += character
    return result


@family(
    "Return how many characters of the text are among '{SET}', in capitals or not.",
    line=text(LETTERS),
    SET=("aeiou", "xyz", "abc", "mnop"),
)
def count_letters(line: str, *, SET: str) -> int:
    return sum(1 for character in line.lower() if character in SET)


@family(
    "Return the words (separated by single spaces) that are longer than {K} letters, in their order.",
    line=sentence(),
    K=(2, 3, 4),
)
def long_words(line: str, *, K: int) -> list[str]:
    return [word for word in line.split() if len(word) > K]


@family(
    "Reverse every word of at least {K} letters and leave the others; words are separated by single spaces.",
    line=sentence(),
    K=(2, 3, 4),
)
def reverse_words(line: str, *, K: int) -> str:
    return " ".join(word[::-1] if len(word) >= K else word for word in line.split(" "))


@family(
    "Take the characters number {K}, 2*{K}, 3*{K}, ... of the text (counted from 1) and join them.",
    line=text(),
    K=(2, 3, 4),
)
def every_kth(line: str, *, K: int) -> str:
    return line[K - 1 :: K]


@family(
    "Write runs of the same letter as the letter and the length of the run if it is at least {K}; shorter runs "
    "stay as they are.",
    line=text("aab", 0, 12),
    K=(2, 3),
)
def run_lengths(line: str, *, K: int) -> str:
    result = ""
    i = 0
    while i < len(line):
        j = i
        while j < len(line) and line[j] == line[i]:
            j += 1
        result += f"{line[i]}{j - i}" if j - i >= K else line[i:j]
        i = j
    return result


@family(
    "The text holds letters, each followed by one digit: write each letter as often as its digit says, then "
    "repeat it all {TIMES} times.",
    line=lambda rng: "".join(rng.choice("abc") + rng.choice("01234") for _ in range(rng.randint(0, 5))),
    TIMES=(1, 2, 3),
)
def expand(line: str, *, TIMES: int) -> str:
    return "".join(line[i] * int(line[i + 1]) for i in range(0, len(line), 2)) * TIMES


@family(
    "Is the text a palindrome once everything but letters is dropped and capitals do not matter, and has it at "
    "least {K} letters?",
    line=lambda rng: (half := text("ab C", 0, 5)(rng)) + rng.choice(("", "a", "!")) + rng.choice((half, half[::-1])),
    K=(0, 3, 5),
)
def palindrome(line: str, *, K: int) -> bool:
    letters = [character.lower() for character in line if character.isalpha()]
    return len(letters) >= K and letters == letters[::-1]


@family(
    "Return how often each letter occurs that occurs at least {K} times, as a dictionary.",
    line=text("abcd", 0, 12),
    K=(1, 2, 3),
)
def letter_counts(line: str, *, K: int) -> dict[str, int]:
    return {letter: line.count(letter) for letter in set(line) if line.count(letter) >= K}


@family(
    "Are the brackets ( ) and [ ] balanced and properly nested, never more than {DEPTH} deep? Other characters "
    "do not matter.",
    line=lambda rng: rng.choice(("{0}", "({0})", "[{0}]()", "([{0}])")).format(text("()[]a", 0, 6)(rng)),
    DEPTH=(1, 2, 3, 10),
)
def balanced(line: str, *, DEPTH: int) -> bool:
    stack: list[str] = []
    for character in line:
        if character in "([":
            stack.append(character)
            if len(stack) > DEPTH:
                return False
        elif character in ")]" and (not stack or stack.pop() + character not in ("()", "[]")):
            return False
    return not stack


@family(
    "Return the longest prefix that all words share, at most {MOST} letters of it; the empty text if there are "
    "no words.",
    names=lambda rng: [rng.choice(("", "abc", "abca")) + word for word in words("ab", 0, 3)(rng)],
    MOST=(1, 2, 3, 9),
)
def common_prefix(names: list[str], *, MOST: int) -> str:
    if not names:
        return ""
    length = 0
    while length < MOST and all(len(name) > length and name[length] == names[0][length] for name in names):
        length += 1
    return names[0][:length]


@family(
    "Group the words by their first {K} letters: a dictionary from these letters to the list of the words, in "
    "their order.",
    names=words("abc", 0, 7, 4),
    K=(1, 2),
)
def group_by_prefix(names: list[str], *, K: int) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name[:K], []).append(name)
    return groups


@family(
    "Sort the words by length, longest first, those of equal length in alphabetical order; return the first {K} "
    "of them.",
    names=words(),
    K=(1, 2, 3, 9),
)
def by_length(names: list[str], *, K: int) -> list[str]:
    return sorted(names, key=lambda name: (-len(name), name))[:K]


@family(
    "Write every word (separated by single spaces) with a capital first letter, except words of fewer than {K} "
    "letters.",
    line=sentence(),
    K=(2, 3, 4),
)
def capitals(line: str, *, K: int) -> str:
    return " ".join(word.capitalize() if len(word) >= K else word for word in line.split(" "))


@family(
    "Break the words of a line into lines of at most {WIDTH} characters, as many words as fit on each, joined by "
    "single spaces. No word is longer.",
    line=sentence(),
    WIDTH=(8, 10, 15),
)
def wrap(line: str, *, WIDTH: int) -> list[str]:
    lines: list[str] = []
    for word in line.split():
        if lines and len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


@family(
    "Return the smallest number of letters to insert, delete or replace to make one text into the other; "
    "replacing costs {COST} instead of 1.",
    one=text("abc", 0, 6),
    two=text("abc", 0, 6),
    COST=(1, 2, 3),
)
def edit_distance(one: str, two: str, *, COST: int) -> int:
    row = list(range(len(two) + 1))
    for i, first in enumerate(one, start=1):
        diagonal, row[0] = row[0], i
        for j, second in enumerate(two, start=1):
            change = diagonal + (0 if first == second else COST)
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, change)
    return row[-1]


@family(
    "Return the length of the longest piece of neighbouring characters with at most {K} different characters.",
    line=text("abcd", 0, 12),
    K=(1, 2, 3),
)
def few_letters(line: str, *, K: int) -> int:
    best = 0
    for i in range(len(line)):
        for j in range(i + 1, len(line) + 1):
            if len(set(line[i:j])) <= K:
                best = max(best, j - i)
    return best


@family(
    "Count the places where the pattern '{P}' begins in the text; occurrences may overlap.",
    line=text("ab", 0, 14),
    P=("aa", "aba", "bb", "abab"),
)
def occurrences(line: str, *, P: str) -> int:
    return sum(line.startswith(P, i) for i in range(len(line)))


@family(
    "Read the text as comma-separated numbers, ignore parts that are empty, and return their sum times {FACTOR}.",
    line=lambda rng: ",".join(rng.choice(("", str(rng.randint(-20, 99)))) for _ in range(rng.randint(0, 7))),
    FACTOR=(1, 2, 10),
)
def sum_of_fields(line: str, *, FACTOR: int) -> int:
    return FACTOR * sum(int(part) for part in line.split(",") if part)


@family(
    "Evaluate a text of single digits joined by + and - (no spaces, at least one digit), and return the result "
    "modulo {M} (never negative).",
    line=lambda rng: (
        "".join(rng.choice("0123456789") + rng.choice("+-") for _ in range(rng.randint(0, 6)))
        + rng.choice("0123456789")
    ),
    M=(7, 10, 100),
)
def small_sums(line: str, *, M: int) -> int:
    total = int(line[0])
    for i in range(1, len(line), 2):
        total += int(line[i + 1]) * (1 if line[i] == "+" else -1)
    return total % M


@family(
    "Return the words that occur more than once in the line, in the order of their first occurrence, at most {K} "
    "of them.",
    line=sentence(),
    K=(1, 2, 9),
)
def repeated_words(line: str, *, K: int) -> list[str]:
    found: list[str] = []
    names = line.split()
    for name in names:
        if names.count(name) > 1 and name not in found:
            found.append(name)
    return found[:K]


@family(
    "Return the text with n copies of '{MARK}' between every two neighbouring characters.",
    line=text("abc", 0, 8),
    n=whole(0, 3),
    MARK=("-", "*", "."),
)
def spread(line: str, n: int, *, MARK: str) -> str:
    return (MARK * n).join(line)
